/* Lists flags and environment variables of llama.cpp's programs. Of flags: those that ask for nothing that terse would do otherwise, and those that it refuses by name.
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

/* A variable of the environment says what an option says that the command line leaves out. */
struct llama_variable {
    const char *name;   /* "LLAMA_ARG_MODEL" */
    const char *option; /* one of the names in a command's table; commands that lack it leave the variable alone */
    const char *unless; /* another option that, on the command line, says the same; "": an argument that is no option; NULL: none */
    const char *with;   /* options, of which the command line has one where the command knows them: "--chat,-cnv"; NULL: none */
};

/* Returns the i-th variable, or NULL past the last. */
const struct llama_variable *llama_variable_at(int i);

/* Returns terse's name of the chat format that llama.cpp's --chat-template names; any other name, or NULL, as it is. */
const char *llama_template_name(const char *name);

#endif
