/* Reads the tools of a chat's request, and which of them its reply shall call. */
#ifndef TERSE_SERVE_TOOL_REQUEST_H
#define TERSE_SERVE_TOOL_REQUEST_H

#include "request.h"

/* Reads "tools", "tool_choice" and "parallel_tool_calls" into the request. Where a call is required, the reply becomes JSON: the call, by the schema
 * of its function's parameters. */
bool tool_request_read(const cJSON *body, struct request *request, struct api_error *error);

#endif
