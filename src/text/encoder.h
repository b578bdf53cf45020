/* Declares the state of one call of tokenizer_encode: the tokens so far and working memory, which every kind of tokenizer fills. */
#ifndef TERSE_TEXT_ENCODER_H
#define TERSE_TEXT_ENCODER_H

#include "text/merge.h"

struct tokenizer; /* text/tokenizer.h */

/* An encoder begins as zeros behind `tokenizer` and `error`. */
struct encoder {
    const struct tokenizer *tokenizer;
    struct terse_error *error;
    int32_t *tokens;
    size_t n_tokens, capacity;
    struct merger merger;
    char *scratch;
    size_t scratch_capacity;
};

/* Adds a token. */
enum terse_status encoder_emit(struct encoder *encoder, int32_t token);
/* Makes encoder->scratch hold n bytes; what was in it is lost. */
enum terse_status encoder_scratch(struct encoder *encoder, size_t n);
/* Releases what it holds, `tokens` included. */
void encoder_destroy(struct encoder *encoder);

#endif
