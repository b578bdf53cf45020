/* Tests what is chosen for a model: by the tuned method that is kept for it, by bytes, and what is refused. Costs of rates are tested by
 * tests/cli/cli_rate_choice.sh, which measures some. */
#include "terse_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct terse_model *model;
static char folder[] = P_tmpdir "/terse-test-choice-XXXXXX", path[4096];
static struct terse_error error;

static const struct terse_tuned tuned = {
    .method = "q8_0", .corpus = "a \"text\"", .context = 512, .positions = 1000, .bits = 8.5, .divergence = 0.0018, .speed = 2.1};

static int begin(void **state) {
    char made[4096];
    (void)state;
    if (!mkdtemp(folder) || setenv("XDG_CACHE_HOME", folder, 1)) return -1;
    snprintf(made, sizeof made, "%s/terse", folder);
    if (mkdir(made, 0700)) return -1;
    if (terse_model_load(TESTS_DIR "/fixtures/models/llama.gguf", &model, &error)) return -1;
    return terse_kept_path(model, "tuned", ".json", path, sizeof path, &error);
}

static int end(void **state) {
    char made[4096];
    (void)state;
    terse_model_free(model);
    unlink(path);
    snprintf(made, sizeof made, "%s/terse", folder);
    return rmdir(made) || rmdir(folder);
}

static struct terse_choice choose(const struct terse_choice_options *options) {
    struct terse_choice choice;
    assert_int_equal(terse_choose(model, options, &choice, &error), TERSE_OK);
    return choice;
}

static struct terse_choice choose_auto(uint32_t context, uint64_t budget) {
    struct terse_choice_options options = terse_choice_options_defaults();
    options.context = context;
    options.kv_budget = budget;
    return choose(&options);
}

static uint64_t bytes_of(const char *method, uint64_t tokens) {
    struct terse_cache_options options = terse_cache_options_defaults();
    uint64_t bytes;
    options.method = method;
    assert_int_equal(terse_cache_peak(model, NULL, &options, tokens, &bytes, &error), TERSE_OK);
    return bytes;
}

static void keep(const struct terse_tuned *t) { assert_int_equal(terse_tuned_save(model, t, path, &error), TERSE_OK); }

static void write_file(const char *text) {
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
}

static void nothing_was_measured(void **state) {
    (void)state;
    unlink(path);
    struct terse_choice choice = choose_auto(0, 0);
    assert_string_equal(choice.method, "terse-4");
    assert_int_equal(choice.reason, TERSE_CHOICE_UNKNOWN);
    assert_false(choice.left_aside);
}

static void a_tuned_method_is_taken(void **state) {
    (void)state;
    keep(&tuned);
    struct terse_choice choice = choose_auto(0, 0);
    assert_string_equal(choice.method, "q8_0");
    assert_int_equal(choice.reason, TERSE_CHOICE_TUNED);
    assert_string_equal(choice.why,
                        "terse tune picked it for this model: 8.50 bits per value at 512 tokens, KL divergence 0.0018 from "
                        "f16, 2.1 times its speed");
}

/* A divergence or a number of bytes that the caller names is about terse-N. */
static void what_is_asked_for_goes_before_it(void **state) {
    (void)state;
    struct terse_choice_options options = terse_choice_options_defaults();
    keep(&tuned);
    options.kv = "auto:0.02";
    assert_int_equal(choose(&options).reason, TERSE_CHOICE_UNKNOWN);
    options.kv = "auto:1G";
    struct terse_choice choice = choose(&options);
    assert_int_equal(choice.reason, TERSE_CHOICE_BYTES);
    assert_string_equal(choice.method, "terse-8");
    options.kv = "kivi-2";
    choice = choose(&options);
    assert_int_equal(choice.reason, TERSE_CHOICE_NAMED);
    assert_string_equal(choice.method, "kivi-2");
    assert_string_equal(choice.why, "");
}

static void bytes_that_it_must_keep_to(void **state) {
    (void)state;
    uint64_t bytes = bytes_of("q8_0", 512);
    keep(&tuned);
    assert_int_equal(choose_auto(512, bytes).reason, TERSE_CHOICE_TUNED);
    struct terse_choice choice = choose_auto(512, bytes - 1);
    assert_int_equal(choice.reason, TERSE_CHOICE_UNKNOWN);
    assert_true(choice.left_aside);
    assert_non_null(strstr(choice.why, "the tuned q8_0 is not used: 512 tokens take "));
    /* Those that it was picked for count too. */
    struct terse_tuned small = tuned;
    small.budget = bytes;
    keep(&small);
    assert_int_equal(choose_auto(512, 0).reason, TERSE_CHOICE_TUNED);
    small.budget = bytes - 1;
    keep(&small);
    assert_int_equal(choose_auto(512, 0).reason, TERSE_CHOICE_UNKNOWN);
}

/* Where the caller names no context, it is the one that the method was picked for. */
static void a_context_that_it_was_picked_for(void **state) {
    (void)state;
    struct terse_tuned small = tuned;
    small.context = 256;
    small.budget = bytes_of("q8_0", 256);
    keep(&small);
    assert_int_equal(choose_auto(0, 0).reason, TERSE_CHOICE_TUNED);
    assert_int_equal(choose_auto(256, 0).reason, TERSE_CHOICE_TUNED);
    struct terse_choice choice = choose_auto(257, 0);
    assert_int_equal(choice.reason, TERSE_CHOICE_UNKNOWN);
    assert_non_null(strstr(choice.why, "the tuned q8_0 is not used: it was picked for 256 tokens, and 257 are asked for"));
}

static void a_method_that_the_model_cannot_use(void **state) {
    (void)state;
    struct terse_tuned other = tuned;
    other.method = "f17";
    keep(&other);
    struct terse_choice choice = choose_auto(0, 0);
    assert_string_equal(choice.method, "terse-4");
    assert_non_null(strstr(choice.why, "the tuned f17 is not used: unknown KV method 'f17'"));
}

static void files_that_are_of_no_use(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
    } files[] = {
        {"", "is no file of a tuned method"},
        {"{", "is no file of a tuned method"},
        {"[1]", "is no file of a tuned method"},
        {"{\"format\": \"terse tuned method\", \"version\": 2}", "is of version 2, and this library reads 1"},
        {"{\"format\": \"terse tuned method\", \"version\": 1, \"norms_fingerprint\": \"0\"}", "is of another model"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_file(files[i].text);
        struct terse_choice choice = choose_auto(0, 0);
        assert_string_equal(choice.method, "terse-4");
        assert_true(choice.left_aside);
        assert_non_null(strstr(choice.why, files[i].why));
    }
}

/* Each member is missed. */
static void files_with_a_wrong_member(void **state) {
    (void)state;
    static const char *const members[] = {"context",    "budget",         "positions", "bits_per_value",
                                          "divergence", "speed_over_f16", "corpus",    "method"};
    char text[2048];
    keep(&tuned);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    size_t n = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    text[n] = 0;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        char changed[2048], key[64];
        strcpy(changed, text);
        snprintf(key, sizeof key, "\"%s\":\t", members[i]);
        char *member = strstr(changed, key);
        assert_non_null(member);
        member[1] = 'X';
        write_file(changed);
        struct terse_choice choice = choose_auto(0, 0);
        assert_int_equal(choice.reason, TERSE_CHOICE_UNKNOWN);
        assert_true(choice.left_aside);
    }
}

static void numbers_that_are_impossible(void **state) {
    (void)state;
    struct terse_tuned wrong[] = {tuned, tuned, tuned};
    wrong[0].bits = -1;
    wrong[1].divergence = -0.001;
    wrong[2].speed = 1e9;
    for (size_t i = 0; i < 3; i++) {
        keep(&wrong[i]);
        struct terse_choice choice = choose_auto(0, 0);
        assert_int_equal(choice.reason, TERSE_CHOICE_UNKNOWN);
        assert_non_null(strstr(choice.why, "lacks something or has an impossible number"));
    }
}

static void names_that_are_too_long(void **state) {
    (void)state;
    struct terse_tuned other = tuned;
    char name[65];
    memset(name, 'x', 64);
    name[64] = 0;
    other.method = name;
    assert_int_equal(terse_tuned_save(model, &other, path, &error), TERSE_E_ARGUMENT);
    struct terse_choice_options options = terse_choice_options_defaults();
    struct terse_choice choice;
    options.kv = name;
    assert_int_equal(terse_choose(model, &options, &choice, &error), TERSE_E_ARGUMENT);
    char found[8];
    assert_int_equal(terse_kept_path(model, "tuned", ".json", found, sizeof found, &error), TERSE_E_ARGUMENT);
}

static void words(void **state) {
    (void)state;
    static const char *const choices[] = {"auto", "auto:0.02", "auto:2G", "auto:11"}, *const refused[] = {"auto:", "auto:x",
                                                                                                          "auto:-1"};
    bool chooses;
    for (size_t i = 0; i < 4; i++) assert_true(!terse_choice_check(choices[i], &chooses, &error) && chooses);
    for (size_t i = 0; i < 3; i++) assert_int_equal(terse_choice_check(refused[i], &chooses, &error), TERSE_E_ARGUMENT);
    assert_true(!terse_choice_check("automatic", &chooses, &error) && !chooses);
    struct terse_choice_options options = terse_choice_options_defaults();
    struct terse_choice choice;
    options.kv = "auto:100";
    assert_int_equal(terse_choose(model, &options, &choice, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "auto:100: 512 tokens take "));
    options.size = 3;
    assert_int_equal(terse_choose(model, &options, &choice, &error), TERSE_E_ARGUMENT);
}

/* A budget may lower pages of terse-N, as far as the caller says or the library does, and no other method's. */
static void how_far_a_budget_lowers(void **state) {
    (void)state;
    struct terse_choice_options options = terse_choice_options_defaults();
    unlink(path);
    assert_true(choose(&options).least_rate == 0); /* no budget */
    options.kv_budget = 1 << 30;
    struct terse_choice choice = choose(&options);
    assert_string_equal(choice.method, "terse-4");
    assert_true(choice.least_rate == TERSE_CHOICE_LEAST);
    options.kv = "auto:min=terse-2";
    assert_true(choose(&options).least_rate == 2);
    options.kv = "auto:64M,min=terse-6.5"; /* above the rate that the bytes choose, or at it */
    choice = choose(&options);
    assert_true(choice.least_rate == 6.5 && strtod(choice.method + strlen("terse-"), NULL) >= 6.5);
    options.kv = "auto";
    options.state_method = "terse-1";
    choice = choose(&options);
    assert_string_equal(choice.method, "terse-1");
    assert_true(choice.least_rate == 0 && choice.reason == TERSE_CHOICE_STATE);
    options.state_method = "q8_0";
    assert_true(choose(&options).least_rate == 0);
    options.state_method = NULL;
    keep(&tuned);
    assert_true(choose(&options).least_rate == 0); /* q8_0 */
    options.kv = "terse-4";
    assert_true(choose(&options).least_rate == 0); /* the caller named it */
    static const char *const bad[] = {"auto:min=",     "auto:min=terse-",  "auto:min=terse-2x",
                                      "auto:min=q8_0", "auto,min=terse-2", "auto:min=terse--1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bool chooses;
        enum terse_status status = terse_choice_check(bad[i], &chooses, &error);
        assert_true(!chooses || status == TERSE_E_ARGUMENT);
    }
    options.kv = "auto:min=terse-2";
    options.kv_budget = 0;
    assert_int_equal(terse_choose(model, &options, &choice, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "budget"));
}

static void without_a_home(void **state) {
    (void)state;
    char found[64];
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "relative", 1);
    assert_int_equal(terse_kept_path(model, "tuned", ".json", found, sizeof found, &error), TERSE_E_ARGUMENT);
    assert_int_equal(choose_auto(0, 0).reason, TERSE_CHOICE_UNKNOWN);
    setenv("HOME", "/h", 1);
    assert_int_equal(terse_kept_path(model, "terse", ".gguf", found, sizeof found, &error), TERSE_OK);
    assert_memory_equal(found, "/h/.cache/terse/terse-", 22);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_was_measured),
        cmocka_unit_test(a_tuned_method_is_taken),
        cmocka_unit_test(what_is_asked_for_goes_before_it),
        cmocka_unit_test(bytes_that_it_must_keep_to),
        cmocka_unit_test(a_context_that_it_was_picked_for),
        cmocka_unit_test(a_method_that_the_model_cannot_use),
        cmocka_unit_test(files_that_are_of_no_use),
        cmocka_unit_test(files_with_a_wrong_member),
        cmocka_unit_test(numbers_that_are_impossible),
        cmocka_unit_test(names_that_are_too_long),
        cmocka_unit_test(words),
        cmocka_unit_test(how_far_a_budget_lowers),
        cmocka_unit_test(without_a_home),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
