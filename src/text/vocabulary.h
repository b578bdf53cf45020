/* Holds the tokens of a vocabulary as the file has them, with their texts and types, and finds the token of a text. */
#ifndef TERSE_TEXT_VOCABULARY_H
#define TERSE_TEXT_VOCABULARY_H

#include "gguf/gguf.h"

/* These are the values of tokenizer.ggml.token_type. */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,      /* stands for text that has no token */
    TOKEN_CONTROL,      /* found in a text only where special tokens are parsed */
    TOKEN_USER_DEFINED, /* found in every text, before anything else */
    TOKEN_UNUSED,
    TOKEN_BYTE /* "<0x41>" */
};

/* A vocabulary is immutable after vocabulary_load. */
struct vocabulary {
    uint32_t n;
    struct gguf_string *text; /* [n], in the file's data; all different, except empty ones, which are never found */
    uint8_t *type;            /* [n] */
    size_t longest;           /* bytes of the longest text */
    uint32_t *buckets;        /* hash table of token + 1, 0 when free; a power of two of them, at least twice n */
    uint64_t mask;
};

/* Reads tokenizer.ggml.tokens and .token_type into a zeroed struct, which must be destroyed also after a failure. */
enum terse_status vocabulary_load(struct vocabulary *vocabulary, const struct gguf *gguf, struct terse_error *error);
void vocabulary_destroy(struct vocabulary *vocabulary);

/* Returns the token whose text is data[size], or -1. */
int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *data, size_t size);

#endif
