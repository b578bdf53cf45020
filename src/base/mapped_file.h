/* A file mapped read-only into memory. */
#ifndef TERSE_BASE_MAPPED_FILE_H
#define TERSE_BASE_MAPPED_FILE_H

#include "base/status.h"

struct mapped_file {
    const void *data; /* page-aligned; NULL for an empty file */
    size_t size;
};

/* TERSE_E_IO when the file is missing, a directory, not readable: the message names the path and the system's reason. */
enum terse_status mapped_file_open(const char *path, struct mapped_file *file, struct terse_error *error);
/* These bytes, which are mapped, will be read soon: begins to fetch them without waiting. A hint. */
void mapped_file_fetch(const void *data, size_t size);
/* Accepts a zeroed struct. */
void mapped_file_close(struct mapped_file *file);

#endif
