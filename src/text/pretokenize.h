/* Cuts a text into words, by the expression that tokenizer.ggml.pre names, before byte-level BPE merges inside each of them.
 *
 * A pre-tokenizer is one or more expressions. The first cuts the text into what it matches and what lies between; each later one
 * cuts every piece again, and sees nothing of the text beside its piece. */
#ifndef TERSE_TEXT_PRETOKENIZE_H
#define TERSE_TEXT_PRETOKENIZE_H

#include "gguf/gguf.h"

struct pretokenizer; /* immutable, shared between threads */

/* Makes a pre-tokenizer. `name` is the value of tokenizer.ggml.pre; size 0 (the key is missing) means "default". An unknown one is
 * TERSE_E_UNSUPPORTED. */
enum terse_status pretokenizer_new(struct gguf_string name, struct pretokenizer **pretokenizer, struct terse_error *error);
void pretokenizer_free(struct pretokenizer *pretokenizer);

/* Returns whether a word that is in the vocabulary becomes that token, whatever the merges say. */
bool pretokenizer_ignores_merges(const struct pretokenizer *pretokenizer);
/* Returns whether models with this pre-tokenizer want BOS when their file does not say. */
bool pretokenizer_adds_bos(const struct pretokenizer *pretokenizer);

/* A word_sink receives the words in order; a status other than TERSE_OK ends the cutting and is returned. */
struct word_sink {
    enum terse_status (*word)(void *user, const char *word, size_t n_bytes);
    void *user;
};

/* Cuts text[n_bytes]. The words put together are the text. A stretch of bytes that are not UTF-8 is a word of its own. */
enum terse_status pretokenizer_split(const struct pretokenizer *pretokenizer, const char *text, size_t n_bytes,
                                     const struct word_sink *sink, struct terse_error *error);

#endif
