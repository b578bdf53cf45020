/* The fields of a body that are read nowhere else: which of them change nothing, and which would change a reply in a way that terse has not. */
#ifndef TERSE_SERVE_FIELDS_H
#define TERSE_SERVE_FIELDS_H

#include "request.h"

/* Checks the fields. Returns false, with *error, where a field asks for what terse has not, or is none that terse knows. One that is null says
 * nothing, and so do the values with which other servers say that a thing is off. */
bool fields_check(const cJSON *body, enum api api, struct api_error *error);
/* The same for an address that knows names[n] alone. */
bool fields_only(const cJSON *body, const char *const *names, size_t n, struct api_error *error);

#endif
