/* Turns a request's conversation into tokens. */
#ifndef TERSE_SERVE_CHAT_PROMPT_H
#define TERSE_SERVE_CHAT_PROMPT_H

#include "request.h"

/* Reads "messages" of the body and writes their tokens, in the model's chat format, with the request's tools and with a reply opened, to its first
 * prompt. What looks like a special token in a message stays letters. */
bool chat_prompt_read(const struct request_limits *limits, const cJSON *body, struct request *request, struct api_error *error);
/* Does the same, but renders the prompt as *text, which is released by terse_string_free. */
bool chat_prompt_render(const struct request_limits *limits, const cJSON *body, const struct request *request, char **text,
                        struct api_error *error);

#endif
