/* Checks the nodes of a JSON schema together, once all are there: unions within unions, and whether values of them exist at all. */
#ifndef TERSE_TEXT_JSON_WAYS_H
#define TERSE_TEXT_JSON_WAYS_H

#include "text/json_filter.h"

/* Writes each node's `levels`, and replaces unions among a union's ways by what they are unions of. TERSE_E_ARGUMENT where a union is one of
 * more than JSON_WAYS kinds of values, or no value fits the whole schema within JSON_DEPTH. */
enum terse_status json_ways_resolve(struct json_schema *schema, struct terse_error *error);

#endif
