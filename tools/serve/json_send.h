/* Sends JSON as the whole of a reply, or as an event of one. */
#ifndef TERSE_SERVE_JSON_SEND_H
#define TERSE_SERVE_JSON_SEND_H

#include "exchange.h"

#include <cjson/cJSON.h>

/* Answers with `status` and *json, which is deleted; NULL, or what there is no memory to print: with 500. */
void json_send(struct exchange *exchange, int status, cJSON *json);
/* Adds *json, which is deleted, to a stream of events, which begins with it unless it has begun; `name` is the event's, or NULL. */
void json_send_event(struct exchange *exchange, const char *name, cJSON *json);

#endif
