/* These functions describe a failure to the caller. They own nothing; see struct terse_error in terse.h. */
#ifndef TERSE_BASE_STATUS_H
#define TERSE_BASE_STATUS_H

#include "terse.h"

/* Writes `code` and the formatted message (one line, cut to fit) to *error, if there is one, and returns `code`. */
__attribute__((format(printf, 3, 4))) enum terse_status status_fail(struct terse_error *error, enum terse_status code,
                                                                    const char *format, ...);

/* Does the same for a failure at a byte offset of a file. */
__attribute__((format(printf, 4, 5))) enum terse_status status_fail_at(struct terse_error *error, enum terse_status code,
                                                                       uint64_t offset, const char *format, ...);

/* Puts the file's name before the message, unless the message begins with it. */
void status_name_file(struct terse_error *error, const char *name);

/* Returns TERSE_E_MEMORY, with the message that an allocation of `bytes` for `what` was refused. */
enum terse_status status_no_memory(struct terse_error *error, uint64_t bytes, const char *what);

#endif
