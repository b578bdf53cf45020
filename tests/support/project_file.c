/* Finding files of the repository. */
#include "support/project_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

const char *must_find_project_file(const char *path) {
    static char full[4096];
    const char *project = getenv("TERSE_PROJECT");
    snprintf(full, sizeof full, "%s/%s", project ? project : PROJECT_DIR, path);
    if (access(full, R_OK) == 0) return full;
    print_message(
        "skipped: there is no %s here; put terse's sources, or this file of them, there, or set TERSE_PROJECT to where they are\n",
        full);
    skip();
    return NULL;
}
