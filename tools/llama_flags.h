/* Lists flags of llama.cpp's programs: those that ask for nothing that terse would do otherwise, and those that it refuses by name.
 * Flags that terse implements have rows in the commands' own tables of options. */
#ifndef TERSE_TOOLS_LLAMA_FLAGS_H
#define TERSE_TOOLS_LLAMA_FLAGS_H

#include <stdbool.h>

struct llama_flag {
    const char *names; /* "-tb, --threads-batch" */
    const char *value; /* "N": one follows; "on|off": one of these may follow; NULL: none */
    bool refused;      /* else it is accepted and has no effect */
    const char *reason;
};

/* Returns the i-th flag, or NULL past the last. */
const struct llama_flag *llama_flag_at(int i);

#endif
