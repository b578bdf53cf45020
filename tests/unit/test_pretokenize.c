/* Pre-tokenizers against another regular expression engine (fixtures/tokens/words.json), and what no expression describes: names,
 * bytes that are not UTF-8, texts that exceed a regular expression engine's limits. */
#include "text/pretokenize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "base/mapped_file.h"

static struct gguf_string string(const char *text) { return (struct gguf_string){text, strlen(text)}; }

static struct pretokenizer *make(const char *name) {
    struct terse_error error = {0};
    struct pretokenizer *p;
    if (pretokenizer_new(string(name), &p, &error)) fail_msg("%s: %s", name, error.message);
    return p;
}

/* The words so far, each followed by U+001F, which no test text has. */
struct words {
    char *text;
    size_t size, count;
};

static enum terse_status keep(void *user, const char *word, size_t n_bytes) {
    struct words *words = user;
    memcpy(words->text + words->size, word, n_bytes);
    words->size += n_bytes;
    words->text[words->size++] = '\x1f';
    words->count++;
    return TERSE_OK;
}

static struct words cut(const struct pretokenizer *p, const char *text, size_t n_bytes) {
    struct terse_error error = {0};
    struct words words = {.text = malloc(2 * n_bytes + 1)};
    assert_non_null(words.text);
    if (pretokenizer_split(p, text, n_bytes, &(struct word_sink){keep, &words}, &error)) fail_msg("%s", error.message);
    return words;
}

static void check_words(const struct pretokenizer *p, const char *text, size_t n_bytes, const char *expected, size_t n_expected) {
    struct words words = cut(p, text, n_bytes);
    if (words.size != n_expected || memcmp(words.text, expected, n_expected) != 0)
        fail_msg("'%s' was cut into '%.*s', not '%.*s'", text, (int)words.size, words.text, (int)n_expected, expected);
    free(words.text);
}

static void test_words_of_another_engine(void **state) {
    (void)state;
    static const char *const names[] = {"gpt-2",     "llama-bpe", "qwen2",        "default",        "qwen35",      "gpt-4o",
                                        "starcoder", "falcon",    "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken"};
    struct mapped_file file;
    struct terse_error error = {0};
    if (mapped_file_open(TESTS_DIR "/fixtures/tokens/words.json", &file, &error)) fail_msg("%s", error.message);
    cJSON *rows = cJSON_ParseWithLength(file.data, file.size), *row;
    assert_true(cJSON_GetArraySize(rows) >= 30);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct pretokenizer *p = make(names[i]);
        cJSON_ArrayForEach(row, rows) {
            const char *text = cJSON_GetObjectItem(row, "text")->valuestring;
            const cJSON *word;
            char expected[1024];
            size_t n = 0;
            cJSON_ArrayForEach(word, cJSON_GetObjectItem(row, names[i])) n +=
                (size_t)snprintf(expected + n, sizeof expected - n, "%s\x1f", word->valuestring);
            assert_true(n < sizeof expected);
            check_words(p, text, strlen(text), expected, n);
        }
        pretokenizer_free(p);
    }
    cJSON_Delete(rows);
    mapped_file_close(&file);
}

/* Checks the flags that come with each name besides its expression, and the aliases. "12" tells qwen2 from the others, "'S" gpt-2 and default. */
static void test_names(void **state) {
    (void)state;
#define DIGITS \
    "1\x1f" \
    "2\x1f"
    static const struct {
        const char *name;
        bool ignores_merges, adds_bos;
        const char *words; /* of "12'S==" */
    } kinds[] = {
        {"gpt-2", false, false, "12\x1f'\x1fS\x1f==\x1f"},
        {"", false, false, "12\x1f'\x1fS\x1f==\x1f"},
        {"llama-bpe", true, true, "12\x1f'S\x1f==\x1f"},
        {"llama3", true, true, "12\x1f'S\x1f==\x1f"},
        {"llama-v3", true, true, "12\x1f'S\x1f==\x1f"},
        {"smaug-bpe", false, false, "12\x1f'S\x1f==\x1f"},
        {"qwen2", false, false, DIGITS "'S\x1f==\x1f"},
        {"deepseek-r1-qwen", false, false, DIGITS "'S\x1f==\x1f"},
        {"default", false, false, "12\x1f'\x1fS\x1f==\x1f"},
        {"qwen35", false, false, DIGITS "'S\x1f==\x1f"},
        {"gpt-4o", false, false, "12\x1f'S\x1f==\x1f"},
        {"llama4", false, false, "12\x1f'S\x1f==\x1f"},
        {"tekken", true, true, DIGITS "'S\x1f==\x1f"},
        {"starcoder", false, false, DIGITS "'\x1fS\x1f==\x1f"},
        {"refact", false, false, DIGITS "'\x1fS\x1f==\x1f"},
        {"command-r", false, false, DIGITS "'\x1fS\x1f==\x1f"},
        {"smollm", false, false, DIGITS "'\x1fS\x1f==\x1f"},
        {"falcon", false, false, "12\x1f'\x1fS\x1f==\x1f"},
        {"deepseek-llm", false, false, "12\x1f'\x1fS\x1f==\x1f"},
        {"deepseek-coder", false, false, DIGITS "'\x1fS\x1f==\x1f"},
        {"deepseek-v3", false, false, "12\x1f'S\x1f==\x1f"},
        {"hunyuan-dense", false, false, "12\x1f'S\x1f==\x1f"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct pretokenizer *p = make(kinds[i].name);
        assert_int_equal(pretokenizer_ignores_merges(p), kinds[i].ignores_merges);
        assert_int_equal(pretokenizer_adds_bos(p), kinds[i].adds_bos);
        check_words(p, "12'S==", 6, kinds[i].words, strlen(kinds[i].words));
        pretokenizer_free(p);
    }
}

static void test_unknown_names_are_named(void **state) {
    (void)state;
    static const struct gguf_string names[] = {
        {"poro-chat", 9},    {"llama", 5},
        {"qwen2 gpt-2", 11}, {" ", 1},
        {"gpt-2\0", 6},      {"gpt-2\n", 6},
        {"\xff\x00", 2},     {"default llama-bpe llama-v3 llama3 falcon3 pixtral midm-2.0 lfm2 default", 72}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct terse_error error = {0};
        struct pretokenizer *p;
        assert_int_equal(pretokenizer_new(names[i], &p, &error), TERSE_E_UNSUPPORTED);
        assert_null(p);
        assert_non_null(strstr(error.message, "gpt-2, llama-bpe, qwen2, qwen35, gpt-4o, "));
        assert_null(strchr(error.message, '\n'));
    }
}

/* A run of bytes that are no characters is a word, and the words around it do not see it. */
static void test_bytes_that_are_not_text(void **state) {
    (void)state;
    struct pretokenizer *p = make("llama-bpe");
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"ab\xff\xfe"
         "cd",
         "ab\x1f\xff\xfe\x1f"
         "cd\x1f"},
        {"\xe2\x82", "\xe2\x82\x1f"},                         /* a cut euro sign */
        {"x \xc3", "x\x1f \x1f\xc3\x1f"},                     /* a cut letter */
        {"\xc0\xaf/", "\xc0\xaf\x1f/\x1f"},                   /* overlong */
        {"\xed\xa0\x80z", "\xed\xa0\x80\x1fz\x1f"},           /* a surrogate */
        {"\xf4\x90\x80\x80 z", "\xf4\x90\x80\x80\x1f z\x1f"}, /* past U+10FFFF */
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_words(p, cases[i].text, strlen(cases[i].text), cases[i].words, strlen(cases[i].words));
    pretokenizer_free(p);
}

/* The words put together are the text, whatever the bytes. */
static void test_nothing_is_lost(void **state) {
    (void)state;
    static const char *const names[] = {"gpt-2",     "llama-bpe", "qwen2",        "default",        "qwen35",      "gpt-4o",
                                        "starcoder", "falcon",    "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken"};
    static const char alphabet[] = "ab'sS \n\r\t1.\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98";
    srand(1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct pretokenizer *p = make(names[i]);
        for (int round = 0; round < 2000; round++) {
            char text[64];
            size_t n = (size_t)rand() % sizeof text, size = 0;
            for (size_t k = 0; k < n; k++) text[k] = alphabet[(size_t)rand() % (sizeof alphabet - 1)];
            struct words words = cut(p, text, n);
            for (size_t k = 0; k < words.size; k++)
                if (words.text[k] != '\x1f') words.text[size++] = words.text[k];
            assert_int_equal(size, n);
            assert_memory_equal(words.text, text, n);
            free(words.text);
        }
        pretokenizer_free(p);
    }
}

static void check_run(const struct pretokenizer *p, const char *unit, size_t n_bytes, size_t n_words) {
    size_t n_unit = strlen(unit);
    char *text = malloc(n_bytes);
    assert_non_null(text);
    for (size_t k = 0; k < n_bytes; k++) text[k] = unit[k % n_unit];
    struct words words = cut(p, text, n_bytes);
    assert_int_equal(words.count, n_words);
    free(words.text);
    free(text);
}

/* Ten million spaces are more than PCRE2 takes back by default; the others keep a naive matcher busy for ever. */
static void test_long_runs(void **state) {
    (void)state;
    static const struct {
        const char *unit;
        size_t n_bytes, words;
    } runs[] = {{" ", 12000000, 1}, {"a", 3000000, 1},       {"\r\n", 3000000, 1},     {" \n", 3000000, 1},
                {".", 3000000, 1},  {"9", 3000000, 1000000}, {"\xc2\xa0", 3000000, 1}, {" x", 3000000, 1500000}};
    static const struct {
        const char *name, *unit;
        size_t words;
    } more[] = {{"gpt-4o", "a", 1}, {"gpt-4o", "A", 1},         {"gpt-4o", "\xe6\x97\xa5", 1},       {"gpt-4o", "Aa", 1500000},
                {"tekken", "A", 1}, {"deepseek-llm", " ", 1},   {"deepseek-llm", "\xe6\x97\xa5", 1}, {"deepseek-v3", "x", 1},
                {"falcon", "`", 1}, {"starcoder", "9", 3000000}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        struct pretokenizer *p = make(more[i].name);
        check_run(p, more[i].unit, 3000000, more[i].words);
        pretokenizer_free(p);
    }
    struct pretokenizer *p = make("llama-bpe");
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) check_run(p, runs[i].unit, runs[i].n_bytes, runs[i].words);
    pretokenizer_free(p);
}

static enum terse_status refuse(void *user, const char *word, size_t n_bytes) {
    (void)word;
    (void)n_bytes;
    ++*(int *)user;
    return TERSE_E_INTERRUPTED;
}

static void test_a_failing_sink_ends_it(void **state) {
    (void)state;
    static const char *const texts[] = {"one two three", "\xff one", "a=b=c"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int calls = 0;
        struct pretokenizer *p = make("default");
        assert_int_equal(pretokenizer_split(p, texts[i], strlen(texts[i]), &(struct word_sink){refuse, &calls}, NULL),
                         TERSE_E_INTERRUPTED);
        assert_int_equal(calls, 1);
        pretokenizer_free(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_of_another_engine), cmocka_unit_test(test_names),
        cmocka_unit_test(test_unknown_names_are_named), cmocka_unit_test(test_bytes_that_are_not_text),
        cmocka_unit_test(test_nothing_is_lost),         cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_a_failing_sink_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
