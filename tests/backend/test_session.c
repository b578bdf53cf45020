/* Sessions, mostly over the shipped model: the same text read in different ways gives the same logits; limits and failures. */
#include "base/memory.h"
#include "support/random_model.h"
#include "terse.h"
#include "terse_calibrate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

enum { TOKENS = 200 };

static struct terse_model *model;
static struct terse_engine *engine;
static struct terse_model_info info;
static int32_t tokens[TOKENS];

/* Starts an engine on the model and chooses a text for it. */
static int take_model(struct terse_model *taken) {
    struct terse_error error;
    struct terse_engine_options options = terse_engine_options_defaults();
    options.threads = 2;
    model = taken;
    if (terse_engine_new(model, &options, &engine, &error)) {
        print_error("%s\n", error.message);
        return -1;
    }
    terse_model_describe(model, &info);
    int32_t bos = terse_token_bos(model, NULL);
    tokens[0] = bos < 0 ? 0 : bos;
    for (int i = 1; i < TOKENS; i++) tokens[i] = (300 + (i * 37) % 4000) % (int32_t)info.vocabulary;
    return 0;
}

static int load_model(void **state) {
    (void)state;
    struct terse_error error;
    struct terse_model *loaded;
    if (!terse_model_load(PROJECT_DIR "/models/lab-27m-q8_0.gguf", &loaded, &error)) return take_model(loaded);
    print_error("%s\n", error.message);
    return -1;
}

static int free_model(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}

/* For tests of hundreds of steps about which what the model computes says nothing: a model of two layers. */
static int take_small_model(void **state) {
    void *file;
    free_model(state);
    int failed = take_model(random_model_new(&random_models[0], &file));
    *state = file;
    return failed;
}

static int leave_small_model(void **state) {
    free_model(state);
    memory_free(*state);
    return load_model(state);
}

static struct terse_session *open_session(const char *method, enum terse_prefill prefill) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    options.cache.method = method;
    options.prefill = prefill;
    options.batch = 48;
    if (terse_session_new(engine, &options, &session, &error)) fail_msg("%s", error.message);
    return session;
}

struct rows {
    float *logits; /* [TOKENS][vocabulary] */
    size_t shift, count;
};

static void store_row(void *user, size_t i, const float *logits) {
    struct rows *rows = user;
    memcpy(rows->logits + (rows->shift + i) * info.vocabulary, logits, info.vocabulary * sizeof *logits);
    rows->count++;
}

static float *new_rows(void) {
    float *rows = calloc(TOKENS * (size_t)info.vocabulary, sizeof *rows);
    assert_non_null(rows);
    return rows;
}

/* Reads the first `prompt` tokens as a prompt and the rest in steps of `step`, keeping every row of logits. */
static float *read_text(const char *method, enum terse_prefill prefill, size_t prompt, size_t step) {
    struct terse_session *session = open_session(method, prefill);
    struct terse_error error;
    struct rows rows = {.logits = new_rows()};
    struct terse_logits_sink sink = {store_row, &rows, 0};
    if (prompt && terse_session_prefill(session, tokens, prompt, &sink, &error)) fail_msg("%s", error.message);
    for (size_t i = prompt; i < TOKENS; i += step) {
        rows.shift = i;
        size_t n = TOKENS - i < step ? TOKENS - i : step;
        if (terse_session_decode(session, tokens + i, n, &sink, &error)) fail_msg("%s", error.message);
    }
    assert_int_equal(rows.count, TOKENS);
    assert_int_equal(terse_session_length(session), TOKENS);
    assert_memory_equal(terse_session_logits(session), rows.logits + (TOKENS - 1) * (size_t)info.vocabulary,
                        info.vocabulary * sizeof(float));
    terse_session_free(session);
    return rows.logits;
}

/* Largest difference relative to the largest logit, over all rows. */
static double difference(const float *a, const float *b) {
    double most = 0, size = 0;
    for (size_t i = 0; i < TOKENS * (size_t)info.vocabulary; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        size = fmax(size, fabs((double)b[i]));
    }
    return most / size;
}

static void check_same(const char *what, float *read, const float *whole, double bound) {
    double d = difference(read, whole);
    free(read);
    print_message("%s: %.2g\n", what, d);
    if (!(d <= bound)) fail_msg("%s: logits differ by %g of the largest, more than %g", what, d, bound);
}

static void test_steps_equal_prefill(void **state) {
    (void)state;
    float *whole = read_text("f16", TERSE_PREFILL_EXACT, TOKENS, 1);
    check_same("one by one", read_text("f16", TERSE_PREFILL_EXACT, 0, 1), whole, 5e-3);
    check_same("prompt of 77, then one by one", read_text("f16", TERSE_PREFILL_EXACT, 77, 1), whole, 5e-3);
    check_same("prompt of 64, then steps of 17", read_text("f16", TERSE_PREFILL_EXACT, 64, 17), whole, 5e-3);
    check_same("chunks of 48", read_text("f16", TERSE_PREFILL_COMPRESSED, TOKENS, 1), whole, 5e-3);
    check_same("every token reads f16", read_text("f16", TERSE_PREFILL_PAPER, TOKENS, 1), whole, 5e-3);
    check_same("streaming within its budget", read_text("streaming-512", TERSE_PREFILL_EXACT, 100, 1), whole, 5e-3);
    check_same("q8_0", read_text("q8_0", TERSE_PREFILL_EXACT, 100, 1), whole, 3e-2);
    free(whole);
}

/* Rows that are not computed leave the others as they are but for rounding: how many rows there are decides how they are multiplied, many in
 * floats and few as fixed point (include/terse.h). */
static void test_sink_first(void **state) {
    (void)state;
    struct terse_session *session = open_session("f16", TERSE_PREFILL_COMPRESSED);
    struct terse_error error;
    struct rows rows = {.logits = new_rows()};
    float *whole = read_text("f16", TERSE_PREFILL_COMPRESSED, TOKENS, 1);
    struct terse_logits_sink sink = {store_row, &rows, 150};
    assert_int_equal(terse_session_prefill(session, tokens, TOKENS, &sink, &error), TERSE_OK);
    assert_int_equal(rows.count, TOKENS - 150);
    memcpy(rows.logits, whole, 150 * (size_t)info.vocabulary * sizeof(float)); /* not asked for */
    check_same("the last 50 rows alone", rows.logits, whole, 2e-4);
    free(whole);
    terse_session_free(session);
}

static void test_reset_forgets(void **state) {
    (void)state;
    struct terse_session *session = open_session("q8_0", TERSE_PREFILL_EXACT);
    struct terse_error error;
    float *first = malloc(info.vocabulary * sizeof *first);
    assert_null(terse_session_logits(session));
    assert_int_equal(terse_session_prefill(session, tokens, TOKENS, NULL, &error), TERSE_OK);
    memcpy(first, terse_session_logits(session), info.vocabulary * sizeof *first);
    terse_session_reset(session);
    assert_null(terse_session_logits(session));
    assert_int_equal(terse_session_length(session), 0);
    assert_int_equal(terse_session_prefill(session, tokens, TOKENS, NULL, &error), TERSE_OK);
    assert_memory_equal(first, terse_session_logits(session), info.vocabulary * sizeof *first);
    free(first);
    terse_session_free(session);
}

static void test_memory_is_as_predicted(void **state) {
    (void)state;
    static const char *methods[] = {"f16", "q8_0", "q4_0", "streaming-128", "terse-2", "terse-0.5"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        for (size_t n = 63; n <= TOKENS; n += 65) {
            struct terse_session *session = open_session(methods[i], TERSE_PREFILL_EXACT);
            struct terse_cache_options options = terse_cache_options_defaults();
            struct terse_cache_report before, after;
            struct terse_error error;
            options.method = methods[i];
            assert_int_equal(terse_cache_bytes(model, NULL, &options, n, &before, &error), TERSE_OK);
            assert_int_equal(terse_session_prefill(session, tokens, n, NULL, &error), TERSE_OK);
            terse_session_cache(session, &after);
            assert_int_equal(after.resident, before.resident);
            assert_int_equal(after.tokens, n);
            assert_int_equal(after.resident, after.codes + after.exact + after.window + after.tables);
            double values = 2.0 * n * info.layers * info.kv_heads * info.head_dim;
            assert_true(fabs(after.bits_per_value - 8.0 * after.resident / values) < 1e-9);
            terse_session_free(session);
        }
}

static void test_streaming_is_endless(void **state) {
    (void)state;
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    struct terse_cache_report early, late;
    options.cache.method = "streaming-64";
    options.context = 128;
    assert_int_equal(terse_session_new(engine, &options, &session, &error), TERSE_OK);
    assert_int_equal(terse_session_prefill(session, tokens, 100, NULL, &error), TERSE_OK);
    for (int i = 0; i < 600; i++) {
        int32_t token = tokens[1 + i % (TOKENS - 1)];
        assert_int_equal(terse_session_decode(session, &token, 1, NULL, &error), TERSE_OK);
        if (i == 200) terse_session_cache(session, &early);
    }
    terse_session_cache(session, &late);
    assert_int_equal(late.tokens, 700);
    assert_int_equal(late.kept, 64);
    assert_int_equal(early.resident, late.resident);
    for (uint32_t i = 0; i < info.vocabulary; i++) assert_true(isfinite(terse_session_logits(session)[i]));
    terse_session_free(session);
}

/* ---- Failures: one line that says what to do, and the session goes on */

static void expect(enum terse_status status, enum terse_status wanted, const struct terse_error *error, const char *word) {
    assert_int_equal(status, wanted);
    assert_int_equal(error->code, wanted);
    assert_null(strchr(error->message, '\n'));
    if (!strstr(error->message, word)) fail_msg("\"%s\" does not mention %s", error->message, word);
}

static void test_limits(void **state) {
    (void)state;
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    int32_t next;
    options.context = info.context + 1;
    expect(terse_session_new(engine, &options, &session, &error), TERSE_E_ARGUMENT, &error, "--allow-longer-context");
    assert_null(session);
    options.context = 50;
    options.cache.method = "q9_9";
    expect(terse_session_new(engine, &options, &session, &error), TERSE_E_ARGUMENT, &error, "q8_0");
    options.cache.method = "f16";
    assert_int_equal(terse_session_new(engine, &options, &session, &error), TERSE_OK);
    expect(terse_session_sample(session, &next, &error), TERSE_E_ARGUMENT, &error, "no tokens");
    expect(terse_session_prefill(session, tokens, 51, NULL, &error), TERSE_E_CONTEXT, &error, "-c");
    expect(terse_session_prefill(session, tokens, 0, NULL, &error), TERSE_E_ARGUMENT, &error, "no tokens");
    int32_t wrong[] = {1, 2, (int32_t)info.vocabulary};
    expect(terse_session_prefill(session, wrong, 3, NULL, &error), TERSE_E_ARGUMENT, &error, "vocabulary");
    wrong[2] = -1;
    expect(terse_session_decode(session, wrong, 3, NULL, &error), TERSE_E_ARGUMENT, &error, "vocabulary");
    assert_int_equal(terse_session_length(session), 0);
    assert_int_equal(terse_session_prefill(session, tokens, 50, NULL, &error), TERSE_OK);
    expect(terse_session_decode(session, tokens, 1, NULL, &error), TERSE_E_CONTEXT, &error, "streaming");
    assert_int_equal(terse_session_length(session), 50);
    assert_int_equal(terse_session_sample(session, &next, &error), TERSE_OK);
    terse_session_free(session);
}

static void test_limits_of_streaming(void **state) {
    (void)state;
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    options.cache.method = "streaming-64";
    options.context = info.context + 1;
    expect(terse_session_new(engine, &options, &session, &error), TERSE_E_ARGUMENT, &error, "--allow-longer-context");
    options.context = 64;
    expect(terse_session_new(engine, &options, &session, &error), TERSE_E_ARGUMENT, &error, "no room");
    options.context = 80;
    options.prefill = TERSE_PREFILL_PAPER;
    expect(terse_session_new(engine, &options, &session, &error), TERSE_E_UNSUPPORTED, &error, "--paper");
    options.prefill = (enum terse_prefill)7;
    expect(terse_session_new(engine, &options, &session, &error), TERSE_E_ARGUMENT, &error, "prefill mode");
    options.prefill = TERSE_PREFILL_COMPRESSED;
    options.batch = 17; /* positions reach 64 + 17, one too many */
    assert_int_equal(terse_session_new(engine, &options, &session, &error), TERSE_OK);
    assert_int_equal(terse_session_prefill(session, tokens, 80, NULL, &error), TERSE_OK);
    expect(terse_session_prefill(session, tokens, 40, NULL, &error), TERSE_E_CONTEXT, &error, "-b");
    assert_int_equal(terse_session_decode(session, tokens, 16, NULL, &error), TERSE_OK);
    terse_session_free(session);
}

static void test_fill_random(void **state) {
    (void)state;
    struct terse_session *session = open_session("q8_0", TERSE_PREFILL_EXACT);
    struct terse_error error;
    struct terse_cache_report report;
    struct terse_counters counters;
    int32_t next;
    assert_int_equal(terse_session_fill_random(session, 1000, 3, &error), TERSE_OK);
    terse_session_cache(session, &report);
    assert_int_equal(report.tokens, 1000);
    expect(terse_session_sample(session, &next, &error), TERSE_E_ARGUMENT, &error, "no tokens");
    assert_int_equal(terse_session_decode(session, tokens, 1, NULL, &error), TERSE_OK);
    for (uint32_t i = 0; i < info.vocabulary; i++) assert_true(isfinite(terse_session_logits(session)[i]));
    terse_session_counters(session, &counters, true);
    assert_int_equal(counters.prefill_tokens, 0);
    assert_int_equal(counters.decode_tokens, 1);
    uint64_t stored = report.codes + report.exact + report.window; /* each layer once; the window may have room left */
    assert_in_range(counters.attention_bytes, stored - report.window, stored);
    terse_session_counters(session, &counters, false);
    assert_int_equal(counters.decode_tokens, 0);
    terse_session_free(session);
}

/* It serves the method that it was made for, as one that was learned would. */
static void test_random_codebook(void **state) {
    (void)state;
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_codebook *codebook;
    struct terse_codebook_info about;
    struct terse_error error;
    expect(terse_codebook_random(model, "q4_0", &codebook, &error), TERSE_E_ARGUMENT, &error, "learns nothing");
    assert_null(codebook);
    expect(terse_codebook_random(model, "bogus", &codebook, &error), TERSE_E_ARGUMENT, &error, "bogus");
    static const char *const methods[] = {"million-4", "antkv-1", "commvq-1"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        assert_int_equal(terse_codebook_random(model, methods[i], &codebook, &error), TERSE_OK);
        terse_codebook_describe(codebook, &about);
        assert_string_equal(about.method, methods[i]);
        assert_string_equal(about.corpus, "random numbers");
        assert_true(about.fingerprint == info.fingerprint);
        options.cache.method = methods[i];
        options.cache.codebook = codebook;
        assert_int_equal(terse_session_new(engine, &options, &session, &error), TERSE_OK);
        assert_int_equal(terse_session_fill_random(session, 500, 3, &error), TERSE_OK);
        assert_int_equal(terse_session_decode(session, tokens, 1, NULL, &error), TERSE_OK);
        for (uint32_t t = 0; t < info.vocabulary; t++) assert_true(isfinite(terse_session_logits(session)[t]));
        terse_session_free(session);
        terse_codebook_free(codebook);
    }
}

/* Stops a prompt half way, by its progress or by terse_session_cancel. */
struct stopping {
    struct terse_session *session; /* NULL until it is to be stopped */
    bool cancels;
};

static bool stop_half_way(void *user, const char *what, uint64_t done, uint64_t total) {
    struct stopping *stopping = user;
    (void)what;
    if (!stopping->session || done < total / 2) return true;
    if (!stopping->cancels) return false;
    terse_session_cancel(stopping->session);
    return true;
}

static struct terse_session *stopped_session(const char *method, enum terse_prefill prefill, struct stopping *stopping) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    options.cache.method = method;
    options.prefill = prefill;
    options.batch = 48;
    options.progress = (struct terse_progress){stop_half_way, stopping};
    if (terse_session_new(engine, &options, &session, &error)) fail_msg("%s", error.message);
    return session;
}

static void same_logits(const struct terse_session *a, const struct terse_session *b, const char *method) {
    if (memcmp(terse_session_logits(a), terse_session_logits(b), info.vocabulary * sizeof(float)) != 0)
        fail_msg("%s: logits differ from those of a session that was not interrupted", method);
}

/* A later turn that is stopped leaves the session as it was, bit for bit, logits included; and so goes on. */
static void test_an_interrupted_turn_leaves_the_session_as_it_was(void **state) {
    (void)state;
    static const char *const methods[] = {"f16", "terse-2", "kivi-2", "streaming-64", "mat-64", "snapkv-128", "quest-32"};
    for (size_t i = 0; i < 3 * sizeof methods / sizeof methods[0]; i++) {
        const char *method = methods[i / 3];
        struct stopping stopping = {.cancels = i % 2}, none = {0};
        struct terse_error error;
        enum terse_prefill mode = i % 3 == 2 ? TERSE_PREFILL_COMPRESSED : TERSE_PREFILL_EXACT;
        size_t first = i % 3 ? 150 : 90;
        if (mode == TERSE_PREFILL_COMPRESSED && strncmp(method, "snapkv", 6) == 0) continue; /* chooses in exact prefills alone */
        struct terse_session *session = stopped_session(method, mode, &stopping), *other = stopped_session(method, mode, &none);
        stopping.session = session;
        expect(terse_session_prefill(session, tokens, first, NULL, &error), TERSE_E_INTERRUPTED, &error,
               stopping.cancels ? "cancelled" : "interrupted");
        assert_int_equal(terse_session_length(session), 0);
        assert_null(terse_session_logits(session));
        stopping.session = NULL;
        for (size_t turn = 0; turn < 3; turn++) {
            size_t n = turn ? 50 : first;
            stopping.session = turn ? session : NULL;
            if (turn) {
                uint64_t length = terse_session_length(session);
                assert_int_equal(terse_session_prefill(session, tokens + 7, 190, NULL, &error), TERSE_E_INTERRUPTED);
                assert_int_equal(terse_session_length(session), length);
                same_logits(session, other, method);
            }
            stopping.session = NULL;
            assert_int_equal(terse_session_prefill(session, tokens + turn, n, NULL, &error), TERSE_OK);
            assert_int_equal(terse_session_prefill(other, tokens + turn, n, NULL, &error), TERSE_OK);
            for (size_t k = 0; k < 20; k++) {
                same_logits(session, other, method);
                assert_int_equal(terse_session_decode(session, tokens + k, 1, NULL, &error), TERSE_OK);
                assert_int_equal(terse_session_decode(other, tokens + k, 1, NULL, &error), TERSE_OK);
            }
        }
        terse_session_free(session);
        terse_session_free(other);
    }
}

/* A cancellation while nothing is in progress ends the next call. */
static void test_cancelled_beforehand(void **state) {
    (void)state;
    struct terse_session *session = open_session("f16", TERSE_PREFILL_EXACT);
    struct terse_error error;
    terse_session_cancel(session);
    expect(terse_session_prefill(session, tokens, 20, NULL, &error), TERSE_E_INTERRUPTED, &error, "cancelled");
    assert_int_equal(terse_session_prefill(session, tokens, 20, NULL, &error), TERSE_OK);
    terse_session_cancel(session);
    expect(terse_session_decode(session, tokens, 1, NULL, &error), TERSE_E_INTERRUPTED, &error, "cancelled");
    assert_int_equal(terse_session_length(session), 20);
    assert_int_equal(terse_session_decode(session, tokens, 1, NULL, &error), TERSE_OK);
    terse_session_free(session);
}

static void test_same_seed_same_tokens(void **state) {
    (void)state;
    int32_t chosen[2][40];
    for (int round = 0; round < 2; round++) {
        struct terse_session *session = open_session("f16", TERSE_PREFILL_EXACT);
        struct terse_error error;
        struct terse_sampling sampling = terse_sampling_defaults();
        sampling.seed = 42;
        assert_int_equal(terse_session_set_sampling(session, &sampling, &error), TERSE_OK);
        assert_int_equal(terse_session_prefill(session, tokens, 20, NULL, &error), TERSE_OK);
        for (int i = 0; i < 40; i++) {
            assert_int_equal(terse_session_sample(session, &chosen[round][i], &error), TERSE_OK);
            assert_int_equal(terse_session_decode(session, &chosen[round][i], 1, NULL, &error), TERSE_OK);
        }
        terse_session_free(session);
    }
    assert_memory_equal(chosen[0], chosen[1], sizeof chosen[0]);
}

/* A random model writes what the schema asks for, whatever the seed, and then ends. */
static void test_json_text(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"colour\":{\"enum\":[\"red\",\"green\"]},\"n\":{\"type\":"
                                 "\"boolean\"}},\"required\":[\"colour\",\"n\"],\"additionalProperties\":false}";
    struct terse_session *session = open_session("f16", TERSE_PREFILL_EXACT);
    struct terse_error error;
    assert_int_equal(terse_session_prefill(session, tokens, 20, NULL, &error), TERSE_OK);
    expect(terse_session_require_json(session, "{\"minimum\":1}", &error), TERSE_E_ARGUMENT, &error, "minimum");
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct terse_sampling sampling = terse_sampling_defaults();
        struct terse_detokenizer *detokenizer;
        char text[1024] = "";
        int32_t token;
        size_t n;
        sampling.seed = seed;
        sampling.temperature = 1.5f;
        assert_int_equal(terse_session_set_sampling(session, &sampling, &error), TERSE_OK);
        assert_int_equal(terse_detokenizer_new(model, false, &detokenizer, &error), TERSE_OK);
        assert_int_equal(terse_session_require_json(session, schema, &error), TERSE_OK);
        while (assert_int_equal(terse_session_sample(session, &token, &error), TERSE_OK), !terse_token_ends(model, token)) {
            assert_int_equal(terse_session_decode(session, &token, 1, NULL, &error), TERSE_OK);
            const char *piece = terse_detokenizer_push(detokenizer, token, &n);
            assert_true(strlen(text) + n < sizeof text);
            strncat(text, piece, n);
        }
        cJSON *value = cJSON_ParseWithOpts(text, NULL, true);
        if (!value) fail_msg("not JSON: %s", text);
        const char *colour = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(value, "colour"));
        assert_true(colour && (strcmp(colour, "red") == 0 || strcmp(colour, "green") == 0));
        assert_true(cJSON_IsBool(cJSON_GetObjectItemCaseSensitive(value, "n")));
        assert_int_equal(cJSON_GetArraySize(value), 2);
        cJSON_Delete(value);
        terse_detokenizer_free(detokenizer);
    }
    assert_int_equal(terse_session_require_json(session, schema, &error), TERSE_OK);
    assert_int_equal(terse_session_decode(session, tokens, 3, NULL, &error), TERSE_OK); /* no JSON */
    int32_t token;
    expect(terse_session_sample(session, &token, &error), TERSE_E_ARGUMENT, &error, "not JSON");
    terse_session_allow_any_text(session);
    assert_int_equal(terse_session_sample(session, &token, &error), TERSE_OK);
    struct terse_logprob top[2];
    float logprob;
    assert_int_equal(terse_session_logprobs(session, 0, &logprob, top, 2, &error), TERSE_OK);
    assert_true(top[0].logprob >= top[1].logprob && top[1].logprob >= logprob && logprob < 0);
    expect(terse_session_logprobs(session, (int32_t)info.vocabulary, NULL, NULL, 0, &error), TERSE_E_ARGUMENT, &error,
           "vocabulary");
    terse_session_free(session);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_equal_prefill),
        cmocka_unit_test(test_sink_first),
        cmocka_unit_test(test_reset_forgets),
        cmocka_unit_test(test_memory_is_as_predicted),
        cmocka_unit_test_setup_teardown(test_streaming_is_endless, take_small_model, leave_small_model),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_limits_of_streaming),
        cmocka_unit_test(test_fill_random),
        cmocka_unit_test(test_random_codebook),
        cmocka_unit_test_setup_teardown(test_an_interrupted_turn_leaves_the_session_as_it_was, take_small_model, leave_small_model),
        cmocka_unit_test(test_cancelled_beforehand),
        cmocka_unit_test(test_same_seed_same_tokens),
        cmocka_unit_test(test_json_text),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
