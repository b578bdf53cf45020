#define _GNU_SOURCE /* dladdr */
#include "base/plugin_file.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Finds the folder that the library itself lies in. */
static void library_folder(char folder[PLUGIN_PATH]) {
    Dl_info info;
    folder[0] = 0;
    if (!dladdr((const void *)(uintptr_t)plugin_find, &info) || !info.dli_fname) return;
    snprintf(folder, PLUGIN_PATH, "%s", info.dli_fname);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    else
        snprintf(folder, PLUGIN_PATH, ".");
}

bool plugin_find(const char *name, struct plugin_file *file) {
    const char *own = getenv("TERSE_PLUGIN_PATH");
    if (own)
        snprintf(file->folder, PLUGIN_PATH, "%s", own);
    else
        library_folder(file->folder);
    for (int i = 0; i < (own ? 1 : 2); i++) {
        int length = snprintf(file->path, PLUGIN_PATH, "%s%s/libterse-%s.so", file->folder, i ? "/terse" : "", name);
        if (length > 0 && length < PLUGIN_PATH && access(file->path, R_OK) == 0) return true;
    }
    return false;
}
