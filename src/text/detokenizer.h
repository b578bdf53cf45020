/* A stream of tokens as text. What terse.h declares of struct terse_detokenizer besides its creation is defined beside it. */
#ifndef TERSE_TEXT_DETOKENIZER_H
#define TERSE_TEXT_DETOKENIZER_H

#include "text/tokenizer.h"

/* The tokenizer must outlive the detokenizer. `show_special`: as tokenizer_bytes. */
enum terse_status detokenizer_new(const struct tokenizer *tokenizer, bool show_special, struct terse_detokenizer **detokenizer,
                                  struct terse_error *error);

#endif
