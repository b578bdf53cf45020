/* Maps files read-only into memory. */
#ifndef TERSE_BASE_MAPPED_FILE_H
#define TERSE_BASE_MAPPED_FILE_H

#include "base/status.h"

struct mapped_file {
    const void *data; /* page-aligned; NULL for an empty file */
    size_t size;
};

/* Maps the file at `path`. TERSE_E_IO when it is missing, a directory or not readable: the message names the path and the system's
 * reason. */
enum terse_status mapped_file_open(const char *path, struct mapped_file *file, struct terse_error *error);
/* Asks the system to fetch these mapped bytes, which will be read soon, and does not wait for them. */
void mapped_file_fetch(const void *data, size_t size);
/* Accepts a zeroed struct. */
void mapped_file_close(struct mapped_file *file);

#endif
