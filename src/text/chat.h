/* Writes a conversation in the chat format of a tokenizer's model. */
#ifndef TERSE_TEXT_CHAT_H
#define TERSE_TEXT_CHAT_H

#include "text/tokenizer.h"

/* Implements terse_chat_render. */
enum terse_status chat_render(const struct tokenizer *tokenizer, const char *format, const struct terse_message *messages,
                              size_t n_messages, bool open_reply, char **text, struct terse_error *error);

/* Implements terse_chat_tokenize. */
enum terse_status chat_tokenize(const struct tokenizer *tokenizer, const char *format, const struct terse_message *messages,
                                size_t n_messages, size_t after, bool open_reply, int32_t **tokens, size_t *n_tokens,
                                struct terse_error *error);

#endif
