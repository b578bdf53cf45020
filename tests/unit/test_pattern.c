/* Regular expressions, held to PCRE2: random texts are taken to their end, and may end, exactly where it finds a match; every prefix that is
 * let through leads on to a match. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "support/kernel_check.h"
#include "text/pattern.h"

#include <pcre2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct pattern *pattern_of(const char *text) {
    struct terse_error error;
    struct pattern *pattern;
    if (pattern_new(text, &pattern, &error) != TERSE_OK) fail_msg("%s: %s", text, error.message);
    return pattern;
}

static const uint32_t alphabet[] = {'a', 'b', 'c', 'x',  'Z', '0', '1',  '9',  '-',    '_',    '.',
                                    '@', ' ', '"', '\\', ']', '}', '\n', 0xe9, 0x4e16, 0x1f99e};
#define LETTERS (sizeof alphabet / sizeof *alphabet)

static size_t write_character(uint32_t c, char *to) {
    if (c < 0x80) return (size_t)sprintf(to, "%c", (int)c);
    if (c < 0x800) return (size_t)sprintf(to, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f)));
    if (c < 0x10000)
        return (size_t)sprintf(to, "%c%c%c", (int)(0xe0 | c >> 12), (int)(0x80 | (c >> 6 & 0x3f)), (int)(0x80 | (c & 0x3f)));
    return (size_t)sprintf(to, "%c%c%c%c", (int)(0xf0 | c >> 18), (int)(0x80 | (c >> 12 & 0x3f)), (int)(0x80 | (c >> 6 & 0x3f)),
                           (int)(0x80 | (c & 0x3f)));
}

static pcre2_code *oracle_of(const char *text) {
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_ANYCRLF);
    pcre2_code *oracle = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX,
                                       &code, &at, context);
    pcre2_compile_context_free(context);
    if (!oracle) fail_msg("%s: the oracle refuses it at %zu", text, (size_t)at);
    return oracle;
}

static bool oracle_matches(const pcre2_code *oracle, const char *text, size_t n) {
    pcre2_match_data *found = pcre2_match_data_create_from_pattern(oracle, NULL);
    int code = pcre2_match(oracle, (PCRE2_SPTR)text, n, 0, 0, found, NULL);
    pcre2_match_data_free(found);
    assert_true(code >= 0 || code == PCRE2_ERROR_NOMATCH);
    return code >= 0;
}

static const char *const expressions[] = {"^[a-c]+$",
                                          "^a{2,4}$",
                                          "^a{0,2}b{3}$",
                                          "^(ab|b)*c?$",
                                          "b",
                                          "^b",
                                          "b$",
                                          "^a|b$",
                                          "^$",
                                          "",
                                          "^\\d{1,3}-\\d{2}$",
                                          "^[^\\d\\s]+$",
                                          "^\\w+@\\w+\\.(?:abc|x)$",
                                          "^.{3}$",
                                          "^(a|b(c|x){2}){2,}$",
                                          "^(a*)*$",
                                          "^(a?){3}b$",
                                          "^[\\-\\]a-]+$",
                                          "^\\u00e9\\x61?$",
                                          "^[\\u4e00-\\u9fff]{1,2}$",
                                          "^[^a]$",
                                          "^\"\\\\$",
                                          "^a{0}b$",
                                          "^(){5}a$",
                                          "a.c",
                                          "^\\S+\\s\\S+$",
                                          "^\\D\\W$",
                                          "(?:a|b)$",
                                          "^a+?b*?c??$",
                                          "^(|a)b$",
                                          "^}]$",
                                          "^a{2,}$",
                                          "^(?:(?:a{2}){2}){2}$",
                                          "^(a|ab)(c|bcx)(x*)$"};
#define EXPRESSIONS (sizeof expressions / sizeof *expressions)

/* A random text of letters that are let through, now and then one that may not be. */
static bool walk(struct random *random, const struct pattern *pattern, char *text, size_t *n) {
    struct pattern_state state;
    pattern_begin(pattern, &state);
    *n = 0;
    for (size_t length = random_bits(random) % 14; length > 0; length--) {
        uint32_t c = alphabet[random_bits(random) % LETTERS];
        bool stray = random_bits(random) % 32 == 0;
        for (int tries = 0; tries < 200 && !stray && !pattern_allows(pattern, &state, c, c); tries++)
            c = alphabet[random_bits(random) % LETTERS];
        *n += write_character(c, text + *n);
        bool allowed = pattern_allows(pattern, &state, c, c);
        assert_int_equal(pattern_take(pattern, &state, c), allowed);
        if (!allowed) return false;
    }
    return pattern_may_end(pattern, &state);
}

static void matches_what_pcre_matches(void **state) {
    (void)state;
    struct random random = {1};
    for (size_t i = 0; i < EXPRESSIONS; i++) {
        size_t matches = 0;
        struct pattern *pattern = pattern_of(expressions[i]);
        pcre2_code *oracle = oracle_of(expressions[i]);
        for (int k = 0; k < 2000; k++) {
            char text[80];
            size_t n;
            bool good = walk(&random, pattern, text, &n), wanted;
            text[n] = 0;
            /* A text that was left at a letter that may not come cannot match, whatever follows; it must not match as it is. */
            wanted = oracle_matches(oracle, text, n);
            if (good != wanted) fail_msg("%s: \"%s\" %d, not %d", expressions[i], text, good, wanted);
            matches += good;
        }
        if (!matches) fail_msg("%s: no text of the test matches", expressions[i]);
        pcre2_code_free(oracle);
        pattern_free(pattern);
    }
}

/* From each state that a text comes to, some letter leads on or the text may end; and what leads on ends, however it is chosen. */
static void nothing_ends_in_nowhere(void **state) {
    (void)state;
    struct random random = {2};
    for (size_t i = 0; i < EXPRESSIONS; i++) {
        struct pattern *pattern = pattern_of(expressions[i]);
        for (int k = 0; k < 100; k++) {
            struct pattern_state at;
            pattern_begin(pattern, &at);
            for (int length = 0; length < 30; length++) {
                if (!pattern_allows(pattern, &at, 0, 0x10ffff)) {
                    assert_true(pattern_may_end(pattern, &at));
                    break;
                }
                uint32_t c = alphabet[random_bits(&random) % LETTERS];
                for (uint32_t other = 0x20; !pattern_allows(pattern, &at, c, c); other++) c = other;
                assert_true(pattern_take(pattern, &at, c));
            }
        }
        pattern_free(pattern);
    }
}

static void expressions_that_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
    } bad[] = {{"^(?=a)", "character 3"},
               {"a**", "character 3"},
               {"(a", "not closed"},
               {"a)", "not opened"},
               {"[a", "ends too early"},
               {"[]", "no character"},
               {"[b-a]", "before it begins"},
               {"[\\d-a]", "begins with a class"},
               {"a^", "beginning alone"},
               {"a$b", "end alone"},
               {"(a$)", "end alone"},
               {"(a)\\1", "references"},
               {"\\bx", "escape"},
               {"\\p{L}", "escape"},
               {"\\", "escape"},
               {"\\u12", "missing"},
               {"\\ud800", "no character"},
               {"\\x01", "no character"},
               {"a{", "number of repetitions"},
               {"a{3,1}", "number of repetitions"},
               {"a{1", "number of repetitions"},
               {"a{9999999}", "too often"},
               {"(a{50}){50}", "too large"},
               {"\xc3\xa9\xff", "character 2"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pattern *pattern;
        struct terse_error error;
        if (pattern_new(bad[i].text, &pattern, &error) != TERSE_E_ARGUMENT) fail_msg("%s is taken", bad[i].text);
        assert_null(pattern);
        if (!strstr(error.message, bad[i].why)) fail_msg("%s: %s", bad[i].text, error.message);
    }
    char deep[200] = "";
    for (int i = 0; i < 70; i++) strcat(deep, "(");
    struct pattern *pattern;
    struct terse_error error;
    assert_int_equal(pattern_new(deep, &pattern, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "too deep"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_what_pcre_matches),
        cmocka_unit_test(nothing_ends_in_nowhere),
        cmocka_unit_test(expressions_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
