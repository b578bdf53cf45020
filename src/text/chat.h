/* A conversation in the chat format of a tokenizer's model. */
#ifndef TERSE_TEXT_CHAT_H
#define TERSE_TEXT_CHAT_H

#include "text/tokenizer.h"

/* As terse_chat_render. */
enum terse_status chat_render(const struct tokenizer *tokenizer, const char *format, const struct terse_message *messages,
                              size_t n_messages, bool open_reply, char **text, struct terse_error *error);

#endif
