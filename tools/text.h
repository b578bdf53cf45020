/* Reads text files and turns text into tokens. */
#ifndef TERSE_TOOLS_TEXT_H
#define TERSE_TOOLS_TEXT_H

#include "terse.h"

/* Returns the offset of the first byte that is no text, a NUL or no UTF-8; n_bytes where all bytes are text. */
size_t text_valid(const char *text, size_t n_bytes);

/* Refuses what is not text, a NUL byte or bytes that are not UTF-8, with their offset; `name` says where the text comes from.
 * Returns an exit status; a complaint was made when it is not EXIT_OK. */
int text_check(const char *name, const char *text, size_t n_bytes);

/* Reads a whole file, "-": standard input, zero-terminated, and checks it; *text is released by free. Returns as text_check. */
int text_read(const char *path, char **text, size_t *n_bytes);

/* Tokenizes all of text[n_bytes]; *tokens is released by free. Returns as text_check. */
int text_tokenize(const struct terse_model *model, const char *text, size_t n_bytes, unsigned flags, int32_t **tokens,
                  size_t *n_tokens);

/* Reads a whole file and tokenizes it, with BOS and EOS where the model's file says so; *tokens is released by free. Returns as
 * text_check. */
int text_read_tokens(const struct terse_model *model, const char *path, int32_t **tokens, size_t *n_tokens);

/* Makes a string from a file fit to be printed: control characters and bytes that are not UTF-8 become '?'. In place; returns
 * text. */
char *text_make_printable(char *text);

/* Returns TERSE_OK where chats can be written in the format of that name, or that template_text has; both NULL: in the model's own. */
enum terse_status text_try_chat(const struct terse_model *model, const char *format, const char *template_text,
                                struct terse_error *error);

#endif
