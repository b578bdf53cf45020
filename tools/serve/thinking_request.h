/* Reads how a chat's reply shall think. */
#ifndef TERSE_SERVE_THINKING_REQUEST_H
#define TERSE_SERVE_THINKING_REQUEST_H

#include "request.h"

/* Reads `reasoning_effort` and `chat_template_kwargs`. Returns false, with *error, where something in them is wrong. */
bool thinking_request_read(const cJSON *body, struct request *request, struct api_error *error);

#endif
