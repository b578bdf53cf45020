/* Copies of a test's data in the device's memory, all freed at once. */
#ifndef TERSE_TESTS_CUDA_SENT_H
#define TERSE_TESTS_CUDA_SENT_H

#include "backend/cuda/device.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void *sent_memory[64];
static size_t n_sent;

static inline void *sent(const void *data, size_t bytes) {
    void *to = NULL;
    assert_true(n_sent < sizeof sent_memory / sizeof *sent_memory);
    assert_int_equal(cudaMalloc(&to, bytes), cudaSuccess);
    assert_int_equal(device_send(to, data, bytes), cudaSuccess);
    return sent_memory[n_sent++] = to;
}

static inline void free_sent(void) {
    while (n_sent) assert_int_equal(cudaFree(sent_memory[--n_sent]), cudaSuccess);
}

#endif
