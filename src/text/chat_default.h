/* Finds the system text that a model's template writes where a conversation has none. */
#ifndef TERSE_TEXT_CHAT_DEFAULT_H
#define TERSE_TEXT_CHAT_DEFAULT_H

#include "text/chat_format.h"

/* Writes to *text what a template of this format says as the system, without the format's marks; free releases it. *text is NULL
 * where the template says nothing, or nothing that is certain. Returns false where there is no memory. */
bool chat_default_system(struct gguf_string template, const struct chat_format *format, char **text);

#endif
