/* Sends JSON as the whole of a reply. */
#ifndef TERSE_SERVE_JSON_SEND_H
#define TERSE_SERVE_JSON_SEND_H

#include "exchange.h"

#include <cjson/cJSON.h>

/* Answers with `status` and *json, which is deleted; NULL, or what there is no memory to print: with 500. */
void json_send(struct exchange *exchange, int status, cJSON *json);

#endif
