/* The system's allocator, which refuses. Included by one source file of a test program; the linker puts these functions in the place of the system's
 * (tests/CMakeLists.txt), for the library as well. */
#ifndef TERSE_TESTS_SUPPORT_REFUSING_MEMORY_H
#define TERSE_TESTS_SUPPORT_REFUSING_MEMORY_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *memory, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
void __wrap_free(void *memory);

static _Atomic long blocks, asked,
    allowed = -1; /* of allocations: the next one is refused when so many were asked for; -1: none is */

static size_t small; /* allocations below so many bytes are neither counted nor refused */

static bool refused(size_t size) { return allowed >= 0 && size >= small && asked++ >= allowed; }

void *__wrap_malloc(size_t size) {
    void *memory = refused(size) ? NULL : __real_malloc(size);
    blocks += memory != NULL;
    return memory;
}

void *__wrap_calloc(size_t n, size_t size) {
    void *memory = refused(n * size) ? NULL : __real_calloc(n, size);
    blocks += memory != NULL;
    return memory;
}

void *__wrap_realloc(void *memory, size_t size) {
    void *moved = refused(size) ? NULL : __real_realloc(memory, size);
    blocks += !memory && moved;
    return moved;
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    int status = refused(size) ? ENOMEM : __real_posix_memalign(memory, alignment, size);
    blocks += !status;
    return status;
}

void __wrap_free(void *memory) {
    blocks -= memory != NULL;
    __real_free(memory);
}

#endif
