/* Memory of the GPU: what is taken is counted, and what there is no room for is refused in one line. */
#include "backend/cuda/device.h"
#include "no_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void memory_is_counted(void **state) {
    (void)state;
    struct kv_budget budget = {.most = 1 << 20};
    struct terse_error error;
    void *half = device_alloc(&budget, 1 << 19, "half of it", &error);
    assert_non_null(half);
    assert_int_equal(budget.used, 1 << 19);
    assert_null(device_alloc(&budget, (1 << 19) + 1, "more than the rest", &error));
    assert_int_equal(error.code, TERSE_E_MEMORY);
    device_free(&budget, half, 1 << 19);
    assert_int_equal(budget.used, 0);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    struct kv_budget budget = {.most = UINT64_MAX};
    struct terse_error error;
    assert_null(device_alloc(&budget, (size_t)1 << 46, "64 TiB", &error));
    assert_int_equal(error.code, TERSE_E_MEMORY);
    assert_non_null(strstr(error.message, "64 TiB"));
    assert_int_equal(budget.used, 0);
    void *some = device_alloc(&budget, 1 << 20, "a MiB", &error); /* the refusal is over */
    assert_non_null(some);
    device_free(&budget, some, 1 << 20);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_counted), cmocka_unit_test(what_does_not_fit_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
