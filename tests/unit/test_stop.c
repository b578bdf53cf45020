/* Stop strings: what is shown of a text, however it is cut into pieces, against a search of the whole. */
#include "support/kernel_check.h"
#include "terse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Returns how many bytes of a text should be shown: those before the first stop string. */
static size_t end_of(const char *text, const char *const *strings, size_t n, bool *stopped) {
    size_t end = strlen(text);
    *stopped = false;
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(text, strings[i]);
        if (!at) continue;
        *stopped = true;
        if ((size_t)(at - text) < end) end = (size_t)(at - text);
    }
    return end;
}

/* Pieces of random lengths, 0 included. */
static void check(struct random *random, const char *text, const char *const *strings, size_t n) {
    struct terse_error error;
    struct terse_stop *stop;
    char shown[256];
    size_t length = strlen(text), at = 0, n_shown = 0, n_out;
    bool stopped = false, should_stop;
    const char *out;
    size_t end = end_of(text, strings, n, &should_stop);
    assert_int_equal(terse_stop_new(strings, n, &stop, &error), TERSE_OK);
    for (size_t piece; at < length; at += piece) {
        piece = random_bits(random) % 5;
        if (piece > length - at) piece = length - at;
        assert_int_equal(terse_stop_push(stop, text + at, piece, &out, &n_out, &stopped, &error), TERSE_OK);
        memcpy(shown + n_shown, out, n_out);
        n_shown += n_out;
        assert_true(n_shown <= end); /* never what comes after */
    }
    assert_int_equal(stopped, should_stop);
    out = terse_stop_finish(stop, &n_out);
    memcpy(shown + n_shown, out, n_out);
    n_shown += n_out;
    assert_int_equal(n_shown, end);
    assert_memory_equal(shown, text, end);
    assert_int_equal(terse_stop_push(stop, "z", 1, &out, &n_out, &stopped, &error), TERSE_OK); /* a new text */
    assert_false(stopped);
    assert_int_equal(n_out, 1);
    terse_stop_free(stop);
}

static void every_cut_shows_the_same(void **state) {
    (void)state;
    static const char *const strings[] = {"abab", "bbb", "ca"};
    struct random random = {1};
    for (int round = 0; round < 20000; round++) {
        char text[64];
        size_t n = random_bits(&random) % (sizeof text - 1);
        for (size_t i = 0; i < n; i++) text[i] = "abcd"[random_bits(&random) % 4];
        text[n] = 0;
        check(&random, text, strings, random_bits(&random) % 4);
    }
}

static void only_what_may_begin_one_is_held_back(void **state) {
    (void)state;
    static const char *const strings[] = {"</s>", "User:"};
    struct terse_error error;
    struct terse_stop *stop;
    const char *out;
    size_t n;
    bool stopped;
    assert_int_equal(terse_stop_new(strings, 2, &stop, &error), TERSE_OK);
    assert_int_equal(terse_stop_push(stop, "one two <", 9, &out, &n, &stopped, &error), TERSE_OK);
    assert_int_equal(n, 8);
    assert_int_equal(terse_stop_push(stop, "/b> Us", 6, &out, &n, &stopped, &error), TERSE_OK);
    assert_int_equal(n, 5);
    assert_memory_equal(out, "</b> ", 5);
    assert_int_equal(terse_stop_push(stop, "er: hello", 9, &out, &n, &stopped, &error), TERSE_OK);
    assert_int_equal(n, 0);
    assert_true(stopped);
    assert_int_equal(terse_stop_push(stop, "more", 4, &out, &n, &stopped, &error), TERSE_OK);
    assert_int_equal(n, 0);
    assert_true(stopped);
    terse_stop_free(stop);
    static const char *const empty[] = {"a", ""};
    assert_int_equal(terse_stop_new(empty, 2, &stop, &error), TERSE_E_ARGUMENT);
    assert_null(stop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_shows_the_same),
        cmocka_unit_test(only_what_may_begin_one_is_held_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
