/* The CPU. A program that brings a backend_under_test() of its own is linked with that in place of this file's. */
#include "support/backend_under_test.h"

static enum terse_status available(struct terse_error *error) {
    (void)error;
    return TERSE_OK;
}

const struct backend_under_test *backend_under_test(void) {
    static struct backend_under_test cpu = {.name = "cpu", .head_dim = 32, .available = available};
    cpu.kv = backend_cpu.kv;
    return &cpu;
}
