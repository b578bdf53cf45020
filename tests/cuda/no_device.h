/* A program of GPU tests that finds no GPU says so and counts as skipped. */
#ifndef TESTS_CUDA_NO_DEVICE_H
#define TESTS_CUDA_NO_DEVICE_H

#include "backend/cuda/device.h"
#include "support/backend_under_test.h"

#include <stdbool.h>
#include <stdio.h>

/* Returns whether there is no GPU that tests can use, after a line that says why. */
static inline bool no_device(void) {
    struct terse_error error;
    if (!device_available(&error)) return false;
    fprintf(stderr, "skipped: %s\n", error.message);
    return true;
}

#endif
