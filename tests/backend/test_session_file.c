/* Saved sessions go on as if they had never stopped; what is damaged or of something else is refused in a line; a process that is killed
 * while it saves leaves the old file or the new one. KILLS=1000 in the environment kills that many times. */
#include "base/clock.h"
#include "engine/session_file.h"
#include "format/codebook_private.h"
#include "support/fixture_model.h"
#include "support/session_steps.h"
#include "support/temporary.h"
#include "terse_calibrate.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { TOKENS = 300, PROMPT = 210, STEPS = 6 };

static struct terse_model *model;
static struct terse_engine *engine;
static struct terse_model_info info;
static struct terse_codebook *codebook; /* of the method in turn, NULL where it learns nothing */
static int32_t tokens[TOKENS];
static char folder[TEMPORARY_PATH], path[TEMPORARY_PATH + 8];

static int make_engine(void **state) {
    (void)state;
    must_start_fixture("qwen3", 2, &model, &engine, &info);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 37 + i * i % 11) % (int32_t)info.vocabulary;
    temporary_template("state", folder);
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/state", folder);
    return 0;
}

static int free_engine(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    unlink(path);
    return rmdir(folder); /* nothing is left behind */
}

static struct terse_session_options options_of(const char *method) {
    struct terse_session_options options = short_session_options(method, 64);
    options.cache.codebook = codebook;
    return options;
}

static struct terse_session *new_session(const char *method) {
    struct terse_session_options options = options_of(method);
    return must_open(engine, &options);
}

static void save(const struct terse_session *session) { must_save(session, path); }

static struct terse_session *load(const char *method) {
    struct terse_session_options options = options_of(method);
    return must_load(engine, &options, path);
}

static const char *const methods[] = {"f16",          "q8_0",    "q4_0",       "kivi-2",   "terse-2",
                                      "streaming-64", "mat-128", "snapkv-128", "quest-64", "selfindex-2",
                                      "selfindex-16", "antkv-1", "million-4",  "cq-1",     "commvq-2"};
#define METHODS (sizeof methods / sizeof methods[0])

static void what_is_loaded_goes_on_as_if_it_had_never_stopped(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        if (m >= 11) assert_int_equal(terse_codebook_random(model, methods[m], &codebook, NULL), TERSE_OK);
        int32_t going_on[3 * STEPS], loaded[3 * STEPS];
        struct terse_cache_report before, after;
        struct terse_session *session = new_session(methods[m]), *again;
        sample_by(session, 5, m % 2 ? 0 : 3);
        must_prefill(session, tokens, PROMPT);
        must_generate(session, 20, (int32_t[20]){0}); /* the worker has pages under way */
        save(session);
        again = load(methods[m]);
        terse_session_cache(session, &before);
        terse_session_cache(again, &after);
        assert_int_equal(after.tokens, PROMPT + 20);
        assert_int_equal(after.kept, before.kept);
        assert_true(after.resident <= before.resident);
        check_same_logits(again, session);
        must_generate(session, STEPS, going_on);
        must_generate(again, STEPS, loaded);
        save(again); /* over the file that its pages are in */
        terse_session_free(again);
        again = load(methods[m]);
        must_prefill(session, tokens + PROMPT, TOKENS - PROMPT);
        must_prefill(again, tokens + PROMPT, TOKENS - PROMPT);
        must_generate(session, 2 * STEPS, going_on + STEPS);
        must_generate(again, 2 * STEPS, loaded + STEPS);
        assert_memory_equal(loaded, going_on, sizeof loaded);
        check_same_logits(again, session);
        terse_session_free(session);
        terse_session_free(again);
        terse_codebook_free(codebook);
        codebook = NULL;
    }
}

/* Forks, cuts and resets of a session whose pages lie in a file write nothing there. */
static void pages_in_the_file_stay_as_they_are(void **state) {
    (void)state;
    struct terse_session *session = new_session("q4_0"), *copy;
    int32_t first[STEPS], again[STEPS];
    must_prefill(session, tokens, PROMPT);
    save(session);
    must_generate(session, STEPS, first);
    terse_session_free(session);
    session = load("q4_0");
    copy = must_fork(session);
    assert_int_equal(terse_session_truncate(session, 100, NULL), TERSE_OK);
    must_prefill(session, tokens, TOKENS);
    terse_session_reset(session);
    must_prefill(session, tokens + 1, TOKENS - 1);
    terse_session_free(session);
    must_generate(copy, STEPS, again);
    assert_memory_equal(first, again, sizeof first);
    terse_session_free(copy);
    copy = load("q4_0");
    must_generate(copy, STEPS, again);
    assert_memory_equal(first, again, sizeof first);
    terse_session_free(copy);
}

/* A prompt that begins as the saved one does shares its pages, as if it had never been away. */
static void what_is_loaded_serves_as_a_prefix(void **state) {
    (void)state;
    struct terse_session_options options = options_of("q8_0");
    struct terse_session *session = new_session("q8_0"), *second;
    int32_t other[TOKENS];
    size_t held;
    for (size_t i = 0; i < TOKENS; i++) other[i] = i < 170 ? tokens[i] : (tokens[i] + 5) % (int32_t)info.vocabulary;
    must_prefill(session, tokens, PROMPT);
    save(session);
    terse_session_free(session);
    session = load("q8_0");
    assert_int_equal(terse_engine_keep_prefix(engine, session, NULL), TERSE_OK);
    terse_session_free(session);
    assert_int_equal(terse_session_new_with_prefix(engine, &options, other, TOKENS, &second, &held, NULL), TERSE_OK);
    assert_int_equal(held, 170); /* all that is alike: the difference lies in the window */
    must_prefill(second, other + held, TOKENS - held);
    terse_session_free(second);
    terse_engine_drop_prefixes(engine);
}

static void an_empty_session_and_one_without_logits(void **state) {
    (void)state;
    struct terse_session *session = new_session("terse-2");
    save(session);
    terse_session_free(session);
    session = load("terse-2");
    assert_int_equal(terse_session_length(session), 0);
    assert_null(terse_session_logits(session));
    must_prefill(session, tokens, PROMPT);
    assert_int_equal(terse_session_truncate(session, 100, NULL), TERSE_OK);
    save(session);
    terse_session_free(session);
    session = load("terse-2");
    assert_int_equal(terse_session_length(session), 100);
    assert_null(terse_session_logits(session));
    must_prefill(session, tokens + 100, 100);
    terse_session_free(session);
}

/* A session is put aside for another, and goes on after that one has ended. */
static void sessions_take_turns_in_a_budget(void **state) {
    (void)state;
    struct terse_engine_options limits = terse_engine_options_defaults();
    struct terse_session_options options = options_of("q8_0");
    struct terse_cache_report report;
    struct terse_engine *small;
    struct terse_session *one, *two;
    struct terse_error error;
    int32_t first[STEPS], again[STEPS];
    limits.threads = 1;
    assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, PROMPT + 64, &report, &error), TERSE_OK);
    limits.kv_budget = report.resident + report.resident / 4;
    assert_int_equal(terse_engine_new(model, &limits, &small, &error), TERSE_OK);
    assert_int_equal(terse_session_new(small, &options, &one, &error), TERSE_OK);
    assert_int_equal(terse_session_prefill(one, tokens, PROMPT, NULL, &error), TERSE_OK);
    terse_session_cache(one, &report);
    assert_int_equal(terse_engine_kv_bytes(small), report.resident);
    assert_int_equal(terse_session_new(small, &options, &two, &error), TERSE_OK);
    uint64_t used = terse_engine_kv_bytes(small);
    assert_int_equal(terse_session_prefill(two, tokens, PROMPT, NULL, &error), TERSE_E_MEMORY);
    assert_non_null(strstr(error.message, "a KV cache of 210 tokens do not fit"));
    assert_int_equal(terse_engine_kv_bytes(small), used);
    assert_int_equal(terse_session_length(two), 0);
    save(one);
    must_generate(one, STEPS, first);
    terse_session_free(one);
    assert_int_equal(terse_session_prefill(two, tokens, PROMPT, NULL, &error), TERSE_OK);
    assert_int_equal(terse_session_load(small, &options, path, &one, &error), TERSE_E_MEMORY);
    assert_non_null(strstr(error.message, "budget"));
    for (size_t i = 0; i < 8; i++) { /* more prefixes than fit: they make room for one another, and all for the session */
        terse_session_free(two);
        assert_int_equal(terse_session_new(small, &options, &two, &error), TERSE_OK);
        assert_int_equal(terse_session_prefill(two, tokens + i, 50, NULL, &error), TERSE_OK);
        assert_int_equal(terse_engine_keep_prefix(small, two, &error), TERSE_OK);
        assert_true(terse_engine_kv_bytes(small) <= limits.kv_budget);
    }
    terse_session_free(two);
    assert_true(terse_engine_kv_bytes(small) > limits.kv_budget / 2);
    assert_int_equal(terse_session_load(small, &options, path, &one, &error), TERSE_OK);
    must_generate(one, STEPS, again);
    assert_memory_equal(first, again, sizeof first);
    for (size_t i = 0; i < 700 && !terse_session_decode(one, tokens, 1, NULL, &error); i++)
        assert_true(terse_engine_kv_bytes(small) <= limits.kv_budget);
    assert_int_equal(error.code, TERSE_E_MEMORY);
    assert_true(terse_session_length(one) > PROMPT + 60);
    terse_session_free(one);
    terse_engine_free(small);
}

/* ---- What does not fit */

static void save_one(const char *method) {
    struct terse_session *session = new_session(method);
    must_prefill(session, tokens, PROMPT);
    save(session);
    terse_session_free(session);
}

static void expect_refused(struct terse_engine *by, const struct terse_session_options *options, enum terse_status wanted,
                           const char *word) {
    struct terse_session *session;
    struct terse_error error;
    assert_int_equal(terse_session_load(by, options, path, &session, &error), wanted);
    assert_null(session);
    if (!strstr(error.message, word) || strchr(error.message, '\n')) fail_msg("\"%s\" does not say %s", error.message, word);
    assert_non_null(strstr(error.message, path));
}

static void what_was_saved_with_something_else_is_refused(void **state) {
    (void)state;
    struct terse_session *session = new_session("q8_0");
    must_prefill(session, tokens, PROMPT);
    save(session);
    terse_session_free(session);
    struct terse_session_options options = options_of("q4_0");
    expect_refused(engine, &options, TERSE_E_ARGUMENT, "(q8_0) than this session's (q4_0)");
    options = options_of("q8_0");
    options.cache.tail_tokens = 32;
    expect_refused(engine, &options, TERSE_E_ARGUMENT, "(tail 64) than this session's (tail 32)");
    options = options_of("q8_0");
    options.cache.anchor_percent = 2;
    expect_refused(engine, &options, TERSE_E_ARGUMENT, "another cache");

    struct terse_model *other = fixture_model("qwen2");
    struct terse_engine *others = must_start(&backend_cpu, other, 1);
    options = options_of("q8_0");
    expect_refused(others, &options, TERSE_E_ARGUMENT, "another model (fingerprint ");
    terse_engine_free(others);
    terse_model_free(other);

    assert_int_equal(terse_codebook_random(model, "cq-1", &codebook, NULL), TERSE_OK);
    session = new_session("cq-1");
    must_prefill(session, tokens, PROMPT);
    save(session);
    terse_session_free(session);
    codebook->halves[CODEC_KEYS][CODEBOOK_CENTROIDS][5] ^= 1;
    options = options_of("cq-1");
    expect_refused(engine, &options, TERSE_E_ARGUMENT, "another codebook");
    terse_codebook_free(codebook);
    codebook = NULL;

    /* The profile that the weights imply is the same in every session. */
    session = new_session("terse-2");
    must_prefill(session, tokens, PROMPT);
    save(session);
    others = must_start(&backend_cpu, model, 1);
    options = options_of("terse-2");
    struct terse_session *by_others;
    assert_int_equal(terse_session_load(others, &options, path, &by_others, NULL), TERSE_OK);
    terse_session_free(by_others);
    terse_session_free(session);
    terse_engine_free(others);
    save_one("q8_0");
    options = options_of("q8_0");

    struct terse_session *short_one;
    struct terse_error error;
    options.context = 100;
    assert_int_equal(terse_session_load(engine, &options, path, &short_one, &error), TERSE_E_CONTEXT);
    assert_null(short_one);
    assert_int_equal(terse_session_load(engine, &options, "/nowhere/state", &short_one, &error), TERSE_E_IO);
    assert_int_equal(terse_session_load(engine, &options, folder, &short_one, &error), TERSE_E_IO);
}

/* ---- Damage */

static uint8_t *read_state(size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, STATE_PAGES_ALIGN, *size), 0);
    assert_int_equal(fread(memory, 1, *size, file), *size);
    fclose(file);
    return memory;
}

static void write_state(const uint8_t *data, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
}

static void expect_damaged(const uint8_t *data, size_t size) {
    struct state_file *file;
    struct terse_error error;
    enum terse_status status = state_file_open_memory(data, size, "state", &file, &error);
    assert_true(status == TERSE_E_FORMAT || status == TERSE_E_UNSUPPORTED);
    assert_null(file);
    assert_int_equal(strncmp(error.message, "state: ", 7), 0);
}

static void every_truncation_and_flipped_bit_is_refused(void **state) {
    (void)state;
    enum { HEAD = 64 + 32 * STATE_SECTIONS };
    size_t size;
    save_one("q4_0");
    uint8_t *data = read_state(&size);
    for (size_t n = 0; n < size; n++) expect_damaged(data, n);
    uint64_t random = 1;
    for (size_t i = 0; i < 8 * HEAD + 4000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t bit = i < 8 * HEAD ? i : (size_t)((random >> 16) % (8 * size));
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        expect_damaged(data, size);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    /* And from a file. */
    struct terse_session_options options = options_of("q4_0");
    write_state(data, size - 64);
    expect_refused(engine, &options, TERSE_E_FORMAT, "incomplete");
    write_state(data, 0);
    expect_refused(engine, &options, TERSE_E_FORMAT, "not a saved state");
    uint64_t pages;
    memcpy(&pages, data + 64 + 32 * STATE_PAGES + 8, sizeof pages);
    data[pages + 100] ^= 4;
    write_state(data, size);
    expect_refused(engine, &options, TERSE_E_FORMAT, "damaged: the checksum of its pages");
    data[pages + 100] ^= 4;
    for (int version = 1; version <= STATE_VERSION + 1; version++) {
        if (version == STATE_VERSION) continue;
        char what[80];
        snprintf(what, sizeof what, "a saved state of version %d, ", version);
        data[8] = (uint8_t)version;
        write_state(data, size);
        expect_refused(engine, &options, TERSE_E_UNSUPPORTED, what);
        expect_refused(engine, &options, TERSE_E_UNSUPPORTED, "read the text again");
    }
    data[8] = STATE_VERSION;
    write_state(data, size);
    terse_session_free(load("q4_0"));
    free(data);
}

/* Numbers that checksums agree with but that cannot be. */
static void contradictions_are_refused(void **state) {
    (void)state;
    static const struct {
        enum state_section section;
        size_t at;
        uint64_t value;
    } wrong[] = {{STATE_CACHE, 0, 5},
                 {STATE_CACHE, 8, 3},
                 {STATE_CACHE, 16, 68},
                 {STATE_CACHE, 16, 1 << 20},
                 {STATE_CACHE, 24, 211},
                 {STATE_CACHE, 24, UINT64_MAX},
                 {STATE_CACHE, 32, 1},
                 {STATE_CACHE, 40, 1000},
                 {STATE_CACHE, 48, 1},
                 {STATE_CACHE, 48, UINT64_MAX},
                 {STATE_CACHE, 56, 2},
                 {STATE_PAGE_SETS, 0, 5},
                 {STATE_PAGE_SETS, 8, 65},
                 {STATE_PAGE_SETS, 8, 0},
                 {STATE_PAGE_SETS, 16, 0},
                 {STATE_TOKENS, 0, 1 << 30},
                 {STATE_SESSION, 0, 0x7fc00000},
                 {STATE_SESSION, 36, 1},
                 {STATE_SESSION, 56, 1000}};
    struct terse_session_options options = options_of("q4_0");
    size_t size;
    save_one("q4_0");
    uint8_t *data = read_state(&size), *changed = NULL;
    assert_int_equal(posix_memalign((void **)&changed, STATE_PAGES_ALIGN, size), 0);
    for (size_t i = 0; i <= sizeof wrong / sizeof wrong[0]; i++) {
        struct state_file *file;
        struct terse_session *session;
        struct terse_error error;
        bool none = i == sizeof wrong / sizeof wrong[0];
        memcpy(changed, data, size);
        if (!none) {
            uint64_t offset;
            memcpy(&offset, data + 64 + 32 * wrong[i].section + 8, sizeof offset);
            memcpy(changed + offset + wrong[i].at, &wrong[i].value, wrong[i].section == STATE_CACHE ? 8 : 4);
        }
        assert_true(state_file_reseal(changed, size));
        if (state_file_open_memory(changed, size, "state", &file, &error)) fail_msg("%s", error.message);
        enum terse_status status = session_load(engine, &options, file, &session, &error);
        if (none) {
            assert_int_equal(status, TERSE_OK);
        } else if (status != TERSE_E_FORMAT || strncmp(error.message, "state: its ", 11) != 0 || session) {
            fail_msg("%zu: %d %s", i, status, error.message);
        }
        terse_session_free(session);
        state_file_close(file);
    }
    free(changed);
    free(data);
}

/* ---- Saving that fails */

static void what_cannot_be_written_leaves_the_old_file(void **state) {
    (void)state;
    struct terse_session *session = new_session("q4_0");
    struct terse_error error;
    struct stat before, after;
    must_prefill(session, tokens, PROMPT);
    save(session);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(terse_session_save(session, "/nowhere/state", &error), TERSE_E_IO);
    assert_non_null(strstr(error.message, "/nowhere/state: cannot be written"));
    assert_int_equal(terse_session_save(session, folder, &error), TERSE_E_IO);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(terse_session_require_json(session, NULL, &error), TERSE_OK);
    assert_int_equal(terse_session_save(session, path, &error), TERSE_E_UNSUPPORTED);
    terse_session_free(session);
}

static void remove_parts(void) {
    char command[TEMPORARY_PATH + 32];
    snprintf(command, sizeof command, "rm -f %s/state.*.part", folder);
    assert_int_equal(system(command), 0);
}

/* A child saves two sessions by turns until it is killed, at a random moment; then the file is one of them. */
static void a_killed_process_leaves_a_whole_file(void **state) {
    (void)state;
    const char *wanted = getenv("KILLS");
    long kills = wanted ? strtol(wanted, NULL, 10) : 40;
    struct terse_session *one = new_session("q4_0"), *two = new_session("q4_0");
    struct terse_session_options options = options_of("q4_0");
    size_t old = 0, new = 0;
    uint64_t random = (uint64_t)getpid();
    must_prefill(one, tokens, 100);
    must_prefill(two, tokens, TOKENS);
    save(two);
    double start = clock_now();
    save(one);
    double both = 2 * (clock_now() - start); /* so that kills fall everywhere within some rounds */
    for (long i = 0; i < kills; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child)
            for (;;) /* saving computes nothing and needs no thread of the engine's */
                if (terse_session_save(two, path, NULL) || terse_session_save(one, path, NULL)) _exit(1);
        random = random * 6364136223846793005u + 1442695040888963407u;
        double wait = (double)(random >> 33) * 0x1p-31 * (both < 0.1 ? 3 * both : 0.3);
        nanosleep(&(struct timespec){0, (long)(wait * 1e9)}, NULL);
        int status;
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        struct terse_session *loaded;
        struct terse_error error;
        if (terse_session_load(engine, &options, path, &loaded, &error)) fail_msg("kill %ld: %s", i, error.message);
        bool is_two = terse_session_length(loaded) == TOKENS;
        assert_true(is_two || terse_session_length(loaded) == 100);
        assert_memory_equal(terse_session_logits(loaded), terse_session_logits(is_two ? two : one),
                            info.vocabulary * sizeof(float));
        old += !is_two;
        new += is_two;
        terse_session_free(loaded);
    }
    print_message("%ld kills: %zu times one file, %zu times the other\n", kills, old, new);
    remove_parts(); /* of those that were killed between naming a file and putting it in its place */
    terse_session_free(one);
    terse_session_free(two);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_loaded_goes_on_as_if_it_had_never_stopped),
                                       cmocka_unit_test(pages_in_the_file_stay_as_they_are),
                                       cmocka_unit_test(what_is_loaded_serves_as_a_prefix),
                                       cmocka_unit_test(an_empty_session_and_one_without_logits),
                                       cmocka_unit_test(sessions_take_turns_in_a_budget),
                                       cmocka_unit_test(what_was_saved_with_something_else_is_refused),
                                       cmocka_unit_test(every_truncation_and_flipped_bit_is_refused),
                                       cmocka_unit_test(contradictions_are_refused),
                                       cmocka_unit_test(what_cannot_be_written_leaves_the_old_file),
                                       cmocka_unit_test(a_killed_process_leaves_a_whole_file)};
    return cmocka_run_group_tests(tests, make_engine, free_engine);
}
