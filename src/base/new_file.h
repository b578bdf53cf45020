/* Writes files that appear under their name only when they are whole and on the disk. No other process finds such a file before;
 * any number of processes may make the same file at once, and the last to publish wins. Where the file system can (Linux:
 * O_TMPFILE) the file has no name until it is published, so that a killed process leaves nothing; elsewhere it has another name in
 * the same folder. One struct new_file is for one thread at a time. */
#ifndef TERSE_BASE_NEW_FILE_H
#define TERSE_BASE_NEW_FILE_H

#include "base/status.h"

#include <stddef.h>

struct new_file {
    int descriptor; /* to be written to */
    char *path;     /* its place; owned */
    char *own;      /* its name in the same folder until it is in its place; "" while it has none */
};

/* Returns TERSE_OK, or TERSE_E_IO or TERSE_E_MEMORY and nothing that would have to be dropped. A file that exists already and is no regular file
 * (a folder, a device) is not replaced. A symbolic link is replaced, its target is not. */
enum terse_status new_file_open(struct new_file *file, const char *path, struct terse_error *error);

/* Writes all of the bytes. Returns 0 or an errno. */
int new_file_write(struct new_file *file, const void *data, size_t bytes);

/* Both end the making of the file and free the struct's memory. Publishing may fail with TERSE_E_IO, which leaves the file that was
 * there before. */
enum terse_status new_file_publish(struct new_file *file, struct terse_error *error);
void new_file_drop(struct new_file *file); /* accepts one that is ended, or zeros */

/* Writes the message "PATH: cannot be written: REASON: ..." for `reason`, an errno, and returns TERSE_E_IO. */
enum terse_status new_file_refuse(const char *path, int reason, struct terse_error *error);

#endif
