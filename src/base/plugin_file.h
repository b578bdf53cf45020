/* Finds the files of plug-ins: shared objects that are opened at run time and lie beside the library. */
#ifndef TERSE_BASE_PLUGIN_FILE_H
#define TERSE_BASE_PLUGIN_FILE_H

#include "terse.h"

#include <stdbool.h>

#define PLUGIN_TEXT_OF(x) #x
#define PLUGIN_TEXT(x) PLUGIN_TEXT_OF(x)
#define PLUGIN_VERSION PLUGIN_TEXT(TERSE_VERSION_MAJOR) "." PLUGIN_TEXT(TERSE_VERSION_MINOR) "." PLUGIN_TEXT(TERSE_VERSION_PATCH)

#define PLUGIN_PATH 4096 /* bytes of a path, with its end */

struct plugin_file {
    char path[PLUGIN_PATH];
    char folder[PLUGIN_PATH]; /* where it was looked for; "" where that is not known */
};

/* Finds libterse-NAME.so in TERSE_PLUGIN_PATH alone, if that is set, else in the library's own folder or in terse/ below it. Returns
 * false if there is none that can be read. */
bool plugin_find(const char *name, struct plugin_file *file);

#endif
