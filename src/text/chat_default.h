/* The system text that a model's template writes where a conversation brings none. */
#ifndef TERSE_TEXT_CHAT_DEFAULT_H
#define TERSE_TEXT_CHAT_DEFAULT_H

#include "text/chat_format.h"

/* *text: what the template of that format says as the system, without the format's marks, released by free; NULL where it says nothing, or
 * nothing that is certain. False where there is no memory. */
bool chat_default_system(struct gguf_string template, const struct chat_format *format, char **text);

#endif
