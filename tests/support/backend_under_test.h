/* The backend whose caches a program tests. A test of tests/kv that includes this header is for all of them, and is built once for each: test_NAME for
 * the CPU, test_cuda_NAME for a GPU (TERSE_CUDA), test_cuda_NAME_emulated for a GPU's kernels run on the host (TERSE_CUDA_EMULATED). All other tests
 * are programs of one backend, the CPU unless they are in tests/cuda. */
#ifndef TESTS_BACKEND_UNDER_TEST_H
#define TESTS_BACKEND_UNDER_TEST_H

#include "backend/backend.h"

#define NO_DEVICE_STATUS 77 /* of a program that ran nothing: ctest counts it as skipped */

struct backend_under_test {
    const char *name;        /* "cpu" */
    const struct kv_ops *kv; /* whose steps take keys, values and queries in the host's memory */
    double
        allowed; /* of a difference of outputs from the oracle's, which are about 1 in size; 0: what the CPU's kernels are allowed */
    /* Copies memory of a device's pages to the host's; NULL: they lie there. */
    void (*fetch)(void *to, const void *from, size_t bytes);
    uint32_t head_dim; /* the least that is served */
    bool emulated;     /* kernels are thousands of times slower */
    enum terse_status (*available)(struct terse_error *error);
};

const struct backend_under_test *backend_under_test(void);

/* Returns the number of cases to run, of which the first `emulated` are what emulated kernels have time for. */
static inline size_t cases(size_t n, size_t emulated) { return backend_under_test()->emulated && emulated < n ? emulated : n; }

/* Called first by `main(argc, argv)` of "test_NAME [PATTERN]", which runs the tests whose names match. Returns false after a line that says why nothing
 * can be run; the program then ends with NO_DEVICE_STATUS. */
bool backend_begins(int argc, char **argv);

#endif
