/* Makes a detokenizer, which gives a stream of tokens as text. The other functions that terse.h declares of it are defined beside it. */
#ifndef TERSE_TEXT_DETOKENIZER_H
#define TERSE_TEXT_DETOKENIZER_H

#include "text/chat_format.h"

enum detokenizer_shows {
    DETOKENIZER_TEXT,
    DETOKENIZER_ALL,  /* special tokens, too */
    DETOKENIZER_REPLY /* and those special tokens that chat_format_bytes shows */
};

/* Makes a detokenizer; the tokenizer must outlive it. `format` is that of a reply, else NULL; it is copied. */
enum terse_status detokenizer_new(const struct tokenizer *tokenizer, enum detokenizer_shows shows, const struct chat_format *format,
                                  struct terse_detokenizer **detokenizer, struct terse_error *error);

#endif
