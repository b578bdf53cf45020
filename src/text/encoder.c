/* Collects the tokens of a text as they are found, with the working memory for it. */
#include "text/encoder.h"

#include <stdlib.h>

enum terse_status encoder_emit(struct encoder *e, int32_t token) {
    if (e->n_tokens == e->capacity) {
        size_t capacity = e->capacity ? e->capacity * 2 : 256;
        int32_t *tokens = realloc(e->tokens, capacity * sizeof *tokens);
        if (!tokens) return status_no_memory(e->error, capacity * sizeof *tokens, "the tokens of a text");
        e->tokens = tokens;
        e->capacity = capacity;
    }
    e->tokens[e->n_tokens++] = token;
    return TERSE_OK;
}

enum terse_status encoder_scratch(struct encoder *e, size_t n) {
    if (n <= e->scratch_capacity) return TERSE_OK;
    free(e->scratch);
    e->scratch = malloc(n);
    e->scratch_capacity = e->scratch ? n : 0;
    return e->scratch ? TERSE_OK : status_no_memory(e->error, n, "tokenizing a text");
}

void encoder_destroy(struct encoder *e) {
    merger_destroy(&e->merger);
    free(e->scratch);
    free(e->tokens);
}
