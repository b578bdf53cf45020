/* Says what a decoding step chooses among a prompt's tokens (select.h), by token counts, for the host: it decides neither which
 * tokens nor for which head. */
#ifndef TERSE_BACKEND_CUDA_KV_CHOICE_H
#define TERSE_BACKEND_CUDA_KV_CHOICE_H

#include "backend/cuda/kv/state.h"

struct choice {
    bool made;                       /* the step chooses; else it reads all that the list of its sequence names */
    uint32_t tokens_read, runs_read; /* as of struct query_row_view; anchors are read besides */
    uint32_t pages_read;             /* at most, those of generated tokens among them */
};

/* Returns what the plan's step chooses. */
struct choice choice_of(const struct cache *cache);

/* Returns how many tokens of a cache of the method a decoding step takes at most. One that chooses takes as many as a perplexity's step
 * has: prompts, which take more, do not choose. The parts of a cache take as many as each other. */
static inline uint32_t decode_tokens_most(const struct method *method) {
    return method->index || method->beside_index ? 64 : DECODE_TOKENS_MOST;
}

#endif
