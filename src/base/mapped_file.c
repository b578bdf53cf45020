/* Maps a whole regular file into memory; readers such as gguf check its contents. */
#include "base/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum terse_status refuse(const char *path, int reason, struct terse_error *error) {
    const char *advice = reason == ENOENT || reason == ENOTDIR ? ": check the path"
                         : reason == EACCES || reason == EPERM ? ": check its permissions"
                                                               : "";
    return status_fail(error, TERSE_E_IO, "%s: cannot be read: %s%s", path, strerror(reason), advice);
}

enum terse_status mapped_file_open(const char *path, struct mapped_file *file, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    struct stat information;
    *file = (struct mapped_file){0};

    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not blocking: a pipe must not stop us before it is refused */
    if (descriptor < 0) return refuse(path, errno, error);
    if (fstat(descriptor, &information)) {
        status = refuse(path, errno, error);
        goto done;
    }
    if (!S_ISREG(information.st_mode)) {
        status = status_fail(error, TERSE_E_IO, "%s: is %s: give the path of a file", path,
                             S_ISDIR(information.st_mode) ? "a directory" : "not a regular file");
        goto done;
    }
    if ((uintmax_t)information.st_size > PTRDIFF_MAX) {
        status = refuse(path, EFBIG, error);
        goto done;
    }
    if (information.st_size == 0) goto done; /* nothing to map */
    void *data = mmap(NULL, (size_t)information.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED) {
        status = refuse(path, errno, error);
        goto done;
    }
    file->data = data;
    file->size = (size_t)information.st_size;
done:
    close(descriptor);
    return status;
}

void mapped_file_fetch(const void *data, size_t size) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data / page * page;
    (void)posix_madvise((void *)begin, (uintptr_t)data + size - begin, POSIX_MADV_WILLNEED);
}

void mapped_file_close(struct mapped_file *file) {
    if (file->data) munmap((void *)file->data, file->size);
    *file = (struct mapped_file){0};
}
