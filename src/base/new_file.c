#define _GNU_SOURCE /* O_TMPFILE */
#include "base/new_file.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SUFFIX_BYTES 32 /* ".12345678.part" */
#define TRIES 100

enum terse_status new_file_refuse(const char *path, int reason, struct terse_error *error) {
    return status_fail(error, TERSE_E_IO, "%s: cannot be written: %s: free some space or choose another folder", path,
                       strerror(reason));
}

/* Returns the folder of a path, with its last slash; scratch has room for the path and two bytes more. */
static const char *folder_of(const char *path, char *scratch) {
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    memcpy(scratch, path, n);
    memcpy(scratch + n, ".", 2);
    return scratch;
}

static void next_own_name(struct new_file *file, unsigned try) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned mixed = ((unsigned)now.tv_nsec ^ (unsigned)getpid() * 2654435761u) + try * 40503u;
    snprintf(file->own, strlen(file->path) + SUFFIX_BYTES, "%s.%08x.part", file->path, mixed);
}

static int open_named(struct new_file *file) {
    for (unsigned try = 0; try < TRIES; try++) {
        next_own_name(file, try);
        int descriptor = open(file->own, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST) return descriptor;
    }
    return -1;
}

/* Writes the name of a descriptor in /proc, by which a file without a name gets one. */
static const char *of_descriptor(int descriptor, char text[32]) {
    snprintf(text, 32, "/proc/self/fd/%d", descriptor);
    return text;
}

static int open_nameless(struct new_file *file) {
#ifdef O_TMPFILE
    char text[32];
    int descriptor = open(folder_of(file->path, file->own), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    file->own[0] = '\0';
    if (descriptor < 0 || !access(of_descriptor(descriptor, text), F_OK)) return descriptor;
    close(descriptor);
#else
    (void)file;
#endif
    return -1;
}

enum terse_status new_file_open(struct new_file *file, const char *path, struct terse_error *error) {
    struct stat there;
    size_t bytes = strlen(path) + 1;
    *file = (struct new_file){.descriptor = -1};
    if (!lstat(path, &there) && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode))
        return status_fail(error, TERSE_E_IO, "%s: cannot be written: it is there already and not a regular file", path);
    file->path = memory_array(bytes, 1);
    file->own = memory_array(bytes + SUFFIX_BYTES, 1);
    if (!file->path || !file->own) {
        new_file_drop(file);
        return status_no_memory(error, bytes, "a file's name");
    }
    memcpy(file->path, path, bytes);
    file->own[0] = '\0';
    if ((file->descriptor = open_nameless(file)) < 0) file->descriptor = open_named(file);
    if (file->descriptor >= 0) return TERSE_OK;
    int reason = errno;
    file->own[0] = '\0';
    new_file_drop(file);
    return new_file_refuse(path, reason, error);
}

int new_file_write(struct new_file *file, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes) {
        ssize_t n = write(file->descriptor, from, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        from += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static void end(struct new_file *file) {
    if (file->descriptor >= 0) close(file->descriptor);
    memory_free(file->path);
    memory_free(file->own);
    *file = (struct new_file){.descriptor = -1};
}

static int name_it(struct new_file *file) {
    char text[32];
    for (unsigned try = 0; try < TRIES; try++) {
        next_own_name(file, try);
        if (!linkat(AT_FDCWD, of_descriptor(file->descriptor, text), AT_FDCWD, file->own, AT_SYMLINK_FOLLOW)) return 0;
        if (errno != EEXIST) break;
    }
    file->own[0] = '\0';
    return -1;
}

/* Synchronizes the folder, so that the new name is on the disk too. The file is in its place even if this fails. */
static void sync_folder(struct new_file *file) {
    int folder = open(folder_of(file->path, file->own), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    fsync(folder); /* not every file system can */
    close(folder);
}

enum terse_status new_file_publish(struct new_file *file, struct terse_error *error) {
    if (fsync(file->descriptor) || (!file->own[0] && name_it(file)) || rename(file->own, file->path)) {
        enum terse_status status = new_file_refuse(file->path, errno, error);
        new_file_drop(file);
        return status;
    }
    sync_folder(file);
    end(file);
    return TERSE_OK;
}

void new_file_drop(struct new_file *file) {
    if (file->own && file->own[0]) unlink(file->own);
    if (!file->path) file->descriptor = -1; /* zeros */
    end(file);
}
