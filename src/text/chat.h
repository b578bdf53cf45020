/* Writes a conversation in the chat format of a tokenizer's model. */
#ifndef TERSE_TEXT_CHAT_H
#define TERSE_TEXT_CHAT_H

#include "text/tokenizer.h"

/* Implements terse_chat_render_with. */
enum terse_status chat_render(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                              const struct terse_message *messages, size_t n_messages, char **text, struct terse_error *error);

/* Implements terse_chat_tokenize_with. */
enum terse_status chat_tokenize(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                const struct terse_message *messages, size_t n_messages, int32_t **tokens, size_t *n_tokens,
                                struct terse_error *error);

#endif
