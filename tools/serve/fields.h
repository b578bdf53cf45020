/* Checks the fields of a body that are read nowhere else: some change nothing, others would change a reply in a way that terse does
 * not implement. */
#ifndef TERSE_SERVE_FIELDS_H
#define TERSE_SERVE_FIELDS_H

#include "request.h"

/* Checks the fields. Returns false, with *error, where a field asks for something that terse does not implement, or is unknown to
 * it. A null field says nothing, and neither do the values by which other servers turn a thing off. */
bool fields_check(const cJSON *body, enum api api, struct api_error *error);
/* Does the same for an address that knows names[n] alone. */
bool fields_only(const cJSON *body, const char *const *names, size_t n, struct api_error *error);

#endif
