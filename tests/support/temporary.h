/* Names files and folders of a test alone, in $TMPDIR or else where the system has its temporary files. */
#ifndef TESTS_TEMPORARY_H
#define TESTS_TEMPORARY_H

#include <stdio.h>
#include <stdlib.h>

#define TEMPORARY_PATH 256 /* bytes of such a name, and of one that is a little longer */

/* Writes to path[TEMPORARY_PATH] what mkstemp and mkdtemp take. */
static inline void temporary_template(const char *name, char *path) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, TEMPORARY_PATH, "%.200s/terse-%s-XXXXXX", folder && *folder ? folder : P_tmpdir, name);
}

#endif
