/* Turns a request of OpenAI's /v1/responses into one of /v1/chat/completions. */
#ifndef TERSE_SERVE_RESPONSES_REQUEST_H
#define TERSE_SERVE_RESPONSES_REQUEST_H

#include "json.h"

/* Returns the chat's body, whose fields are read as a chat's are, and writes to *shown what replies repeat of the request, as a JSON text. Both belong
 * to the caller (cJSON_Delete, cJSON_free). NULL, with *error, where a field is wrong. */
cJSON *responses_chat(const cJSON *body, char **shown, struct api_error *error);

#endif
