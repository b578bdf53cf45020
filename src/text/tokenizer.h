/* Turns text into tokens and back, from nothing but a GGUF file's tokenizer.ggml.* metadata.
 *
 * There are two kinds: byte-level BPE (tokenizer.ggml.model = gpt2; the text is first cut into words by the expression that
 * tokenizer.ggml.pre names, see pretokenize.h) and SentencePiece-style BPE by scores with byte fallback (= llama). A tokenizer is
 * immutable and may be shared between threads. */
#ifndef TERSE_TEXT_TOKENIZER_H
#define TERSE_TEXT_TOKENIZER_H

#include "gguf/gguf.h"

struct tokenizer;

/* Makes a tokenizer, which may point into the gguf's data; these must outlive it. A file without a vocabulary gives a tokenizer of
 * 0 tokens that tokenizes nothing (tests of random models). TERSE_E_UNSUPPORTED for another kind or pre-tokenizer, TERSE_E_FORMAT
 * for a vocabulary that contradicts itself: ids out of range, two tokens with one text, arrays of different lengths, merges of
 * texts that are no tokens. */
enum terse_status tokenizer_new(const struct gguf *gguf, struct tokenizer **tokenizer, struct terse_error *error);
void tokenizer_free(struct tokenizer *tokenizer);

uint32_t tokenizer_size(const struct tokenizer *tokenizer);

/* Implements terse_tokenize. User-defined tokens are always found in the text, control tokens only with TERSE_TOKENIZE_PARSE_SPECIAL; where
 * several begin at one place, the longest is taken. Without that flag no text gives a control token. */
enum terse_status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t n_bytes, unsigned flags,
                                   int32_t *tokens, size_t capacity, size_t *n_tokens, struct terse_error *error);

/* A text_span is the bytes [begin, end) of a text. */
struct text_span {
    size_t begin, end;
};

/* Does the same with TERSE_TOKENIZE_PARSE_SPECIAL for a text of which the parts literal[n_literal], in order and apart, are the
 * contents of messages. In these parts a special token other than white space is not found if only TERSE_TOKENIZE_PARSE_SPECIAL
 * would find it or if the text also has it outside them. Only text[first ..] is tokenized. *tokens is released by free. */
enum terse_status tokenizer_encode_around(const struct tokenizer *tokenizer, const char *text, size_t n_bytes, size_t first,
                                          const struct text_span *literal, size_t n_literal, int32_t **tokens, size_t *n_tokens,
                                          struct terse_error *error);

/* Returns the bytes of one token (a byte-level token's letters mapped back, SentencePiece's U+2581 as a space), not
 * zero-terminated, valid as long as the tokenizer; 0 bytes for ids that are no tokens, and unless show_special for control, unknown
 * and unused ones. */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t token, bool show_special, size_t *n_bytes);
/* Returns how many bytes the longest token has. */
size_t tokenizer_longest(const struct tokenizer *tokenizer);

/* -1 when there is none; `*added` (may be NULL): whether TERSE_TOKENIZE_ADD_SPECIAL puts it before a text. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer, bool *added);
/* -1 when there is none. */
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
/* -1 when there is none. */
int32_t tokenizer_fim(const struct tokenizer *tokenizer, enum terse_fim_mark mark);
bool tokenizer_ends(const struct tokenizer *tokenizer, int32_t token);
/* Returns the Jinja template of the file, of size 0 when it has none. */
struct gguf_string tokenizer_chat_template(const struct tokenizer *tokenizer);
/* The same of the template that it has for conversations with tools, beside the other. */
struct gguf_string tokenizer_tools_template(const struct tokenizer *tokenizer);

#endif
