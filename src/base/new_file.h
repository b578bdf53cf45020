/* A file that takes its place, under its name, when it is whole and on the disk; until then no other process finds it, and any number of processes
 * may make the same file at once: the last to publish wins. Where the file system can (Linux: O_TMPFILE) it has no name until then, and a process that
 * is killed leaves nothing; elsewhere it has a name of its own in the same folder. Not safe for use of one by several threads. */
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

/* Writes all of it; 0 or an errno. */
int new_file_write(struct new_file *file, const void *data, size_t bytes);

/* Each ends the making of the file and frees the struct's memory. Publishing may fail with TERSE_E_IO, and then leaves what was in its place. */
enum terse_status new_file_publish(struct new_file *file, struct terse_error *error);
void new_file_drop(struct new_file *file); /* accepts one that is ended, or zeros */

/* TERSE_E_IO and the line that says so: "PATH: cannot be written: REASON: ..."; reason: an errno. */
enum terse_status new_file_refuse(const char *path, int reason, struct terse_error *error);

#endif
