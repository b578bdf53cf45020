/* Preloaded into a server, makes fsync wait while the file is there that HOLD_FSYNC names, and says by a file of that name and ".held" that it
 * does: a disk that takes its time, for as long as a test wants. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int fsync(int descriptor) {
    const char *path = getenv("HOLD_FSYNC");
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    char held[4096];
    if (path && access(path, F_OK) == 0) {
        snprintf(held, sizeof held, "%s.held", path);
        close(open(held, O_WRONLY | O_CREAT, 0600));
    }
    while (path && access(path, F_OK) == 0) usleep(10000);
    return next(descriptor);
}
