/* Makes what reads and constrains the reply to a conversation, by the conversation's options. */
#ifndef TERSE_TEXT_CHAT_REPLY_H
#define TERSE_TEXT_CHAT_REPLY_H

#include "text/call_filter.h"

/* Makes the filter that terse_session_hold_calls describes; *filter is NULL where the options have no tools. */
enum terse_status chat_filter_calls(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                    struct call_filter **filter, struct terse_error *error);
/* Implements terse_reply_reader_new. */
enum terse_status chat_read_reply(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                  struct terse_reply_reader **reader, struct terse_error *error);
/* Implements terse_detokenizer_new_for_reply. */
enum terse_status chat_detokenize_reply(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                                        struct terse_detokenizer **detokenizer, struct terse_error *error);

/* Makes a reader of replies in this format, which has tools where it `finds_calls`. */
enum terse_status reply_reader_new(const struct chat_format *format, bool finds_calls, bool open_call,
                                   struct terse_reply_reader **reader, struct terse_error *error);

#endif
