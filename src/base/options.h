/* Checks option structs of the public headers: each begins with its size, which says which version of the struct the caller was
 * compiled with. */
#ifndef TERSE_BASE_OPTIONS_H
#define TERSE_BASE_OPTIONS_H

#include "base/status.h"

static inline enum terse_status options_check(size_t size, size_t known, const char *name, struct terse_error *error) {
    if (size == known) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT,
                       "struct %s is of %zu bytes, this library's of %zu: fill it by %s_defaults(), and build with this "
                       "library's header",
                       name, size, known, name);
}

#define OPTIONS_CHECK(options, type, error) options_check((options)->size, sizeof(struct type), #type, error)

#endif
