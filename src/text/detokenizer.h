/* Makes a detokenizer, which gives a stream of tokens as text. The other functions that terse.h declares of it are defined beside it. */
#ifndef TERSE_TEXT_DETOKENIZER_H
#define TERSE_TEXT_DETOKENIZER_H

#include "text/tokenizer.h"

/* Makes a detokenizer; the tokenizer must outlive it. `show_special` is that of tokenizer_bytes. */
enum terse_status detokenizer_new(const struct tokenizer *tokenizer, bool show_special, struct terse_detokenizer **detokenizer,
                                  struct terse_error *error);

#endif
