/* How programs begin that test the caches of a backend. */
#include "support/backend_under_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

bool backend_begins(int argc, char **argv) {
    struct terse_error error;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (!backend_under_test()->available(&error)) return true;
    fprintf(stderr, "skipped: %s\n", error.message);
    return false;
}
