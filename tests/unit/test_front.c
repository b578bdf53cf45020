/* Tests which rows are on the front of bytes and divergence, and which of them is picked. */
#include "front.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* f16, two rates that keep to 0.005, one that does not, two that others beat, one that was not scored. */
static const struct front_row measured[] = {
    {.method = "terse-1", .bytes = 100, .peak = 150, .bits = 1.5, .divergence = 0.03, .positions = 10, .speed = 2.5},
    {.method = "f16", .bytes = 1000, .peak = 1000, .bits = 16, .divergence = 0, .positions = 10, .speed = 1},
    {.method = "q4_0", .bytes = 310, .peak = 310, .bits = 4.85, .divergence = 0.011, .positions = 10, .speed = 1.9},
    {.method = "terse-2.5", .bytes = 180, .peak = 190, .bits = 2.6, .divergence = 0.006, .positions = 10, .speed = 2.2},
    {.method = "terse-3", .bytes = 200, .peak = 210, .bits = 3.06, .divergence = 0.0018, .positions = 10, .speed = 2.06},
    {.method = "kivi-4", .bytes = 200, .peak = 200, .bits = 3.06, .divergence = 0.004, .positions = 10, .speed = 2},
    {.method = "kivi-2", .bytes = 90, .peak = 90, .bits = 1.4},
};
enum { N = sizeof measured / sizeof measured[0] };

static const struct front_row *row_of(const struct front_row *rows, const char *method) {
    for (size_t i = 0; i < N; i++)
        if (strcmp(rows[i].method, method) == 0) return &rows[i];
    return NULL;
}

static void find(struct front_row rows[N]) {
    memcpy(rows, measured, sizeof measured);
    front_find(rows, N);
}

static void rows_that_no_other_beats(void **state) {
    (void)state;
    static const char *const on_front[] = {"f16", "terse-3", "terse-2.5", "terse-1"}, *const beaten[] = {"q4_0", "kivi-4",
                                                                                                         "kivi-2"};
    struct front_row rows[N];
    find(rows);
    for (size_t i = 0; i < sizeof on_front / sizeof on_front[0]; i++) assert_true(row_of(rows, on_front[i])->on_front);
    for (size_t i = 0; i < sizeof beaten / sizeof beaten[0]; i++) assert_false(row_of(rows, beaten[i])->on_front);
    for (size_t i = 1; i < N; i++) assert_true(rows[i - 1].bytes >= rows[i].bytes);
}

static void equal_rows_do_not_beat_each_other(void **state) {
    (void)state;
    struct front_row rows[] = {{.method = "a", .bytes = 5, .divergence = 1, .positions = 1},
                               {.method = "b", .bytes = 5, .divergence = 1, .positions = 1}};
    front_find(rows, 2);
    assert_true(rows[0].on_front && rows[1].on_front);
}

static void the_smallest_that_keeps_to_the_divergence(void **state) {
    (void)state;
    struct front_row rows[N];
    find(rows);
    assert_string_equal(front_pick(rows, N, 0, 0.005)->method, "terse-3");
    assert_string_equal(front_pick(rows, N, 0, 0.006)->method, "terse-2.5");
    assert_string_equal(front_pick(rows, N, 0, 1)->method, "terse-1");
    assert_string_equal(front_pick(rows, N, 0, 1e-9)->method, "f16");
}

/* The peak counts, not the bytes at the end. */
static void within_a_budget(void **state) {
    (void)state;
    struct front_row rows[N];
    find(rows);
    assert_string_equal(front_pick(rows, N, 210, 0.005)->method, "terse-3");
    assert_string_equal(front_pick(rows, N, 209, 0.005)->method, "terse-2.5");
    assert_string_equal(front_pick(rows, N, 150, 0.005)->method, "terse-1");
    assert_null(front_pick(rows, N, 149, 0.005));
}

static void the_sentence(void **state) {
    (void)state;
    struct front_row rows[N];
    char text[512];
    find(rows);
    front_explain(rows, N, front_pick(rows, N, 0, 0.005), 0.005, text, sizeof text);
    assert_string_equal(
        text, "3.06 bits per value, 0.0 MiB, divergence 0.0018 from f16, 2.1x its speed; the next smaller one, terse-2.5, "
              "has 0.006");
    front_explain(rows, N, front_pick(rows, N, 0, 1), 1, text, sizeof text);
    assert_non_null(strstr(text, "; no smaller one was measured"));
    front_explain(rows, N, front_pick(rows, N, 200, 0.005), 0.005, text, sizeof text);
    assert_non_null(strstr(text, "; none that fits has at most 0.005"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_that_no_other_beats),
                                       cmocka_unit_test(equal_rows_do_not_beat_each_other),
                                       cmocka_unit_test(the_smallest_that_keeps_to_the_divergence),
                                       cmocka_unit_test(within_a_budget), cmocka_unit_test(the_sentence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
