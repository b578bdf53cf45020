/* Chooses the chat format of a conversation, and refuses what there is none for. */
#ifndef TERSE_TEXT_CHAT_CHOOSE_H
#define TERSE_TEXT_CHAT_CHOOSE_H

#include "text/chat_format.h"

/* Writes to *format the one that the options name, or the model's own as its template varies it (*own, which may be NULL). TERSE_E_ARGUMENT: the
 * options are not whole, or no format has that name; TERSE_E_UNSUPPORTED: the model's template is none that terse knows. */
enum terse_status chat_choose(const struct tokenizer *tokenizer, const struct terse_chat_options *options,
                              struct chat_format *format, bool *own, struct terse_error *error);
/* Returns the template that the options have in the place of the model's own, or that. */
struct gguf_string chat_template_of(const struct tokenizer *tokenizer, const struct terse_chat_options *options);
/* Refuses tools: neither this format nor, where it is the model's own, its template has any. */
enum terse_status chat_refuse_tools(const struct chat_format *format, bool own, struct terse_error *error);

#endif
