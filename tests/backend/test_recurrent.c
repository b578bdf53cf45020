/* Sessions of models with recurrent layers, whose states go with the cache: cut, forked, begun where others have been, saved and
 * stopped, they go on as sessions that have read the same tokens alone. */
#include "backend/backend.h"
#include "engine/session.h"
#include "engine/session_file.h"
#include "support/fixture_model.h"
#include "support/session_steps.h"
#include "support/session_ways.h"
#include "support/temporary.h"
#include "terse_calibrate.h"
#include "train/backward.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TOKENS = 780, PROMPT = 700, STEPS = 8 };

/* The largest difference of logits over the largest of them, where tokens were read again: those before them are then read from the
 * cache, in half precision as in test_reference_models.c, in 8 bits, or in few bits or chosen. Methods that cannot go back read all again. */
#define HALF 6e-3
#define BITS_8 0.03
#define CODES 0.6

static struct terse_model *model;
static struct terse_engine *engine;
static struct terse_model_info info;
static int32_t tokens[TOKENS];

static const char *const methods[] = {"f16",     "q8_0",       "q4_0",     "kivi-2",      "terse-2",     "streaming-64",
                                      "mat-128", "snapkv-128", "quest-64", "selfindex-2", "selfindex-16"};
#define METHODS (sizeof methods / sizeof methods[0])

static int make_engine(void **state) {
    (void)state;
    must_start_fixture("qwen3next", 1, &model, &engine, &info); /* so small a model is no work to share */
    write_text(tokens, TOKENS, info.vocabulary);
    return 0;
}

static int free_engine(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}

static double bound_of(const char *method) {
    if (strcmp(method, "f16") == 0 || strncmp(method, "streaming", 9) == 0 || strncmp(method, "mat", 3) == 0) return HALF;
    return strcmp(method, "q8_0") == 0 ? BITS_8 : CODES;
}

static struct terse_session *new_session(const char *method) {
    const struct terse_session_options options = short_session_options(method, 32);
    return must_open(engine, &options);
}

static double apart(const struct terse_session *one, const struct terse_session *other) {
    return logits_apart(terse_session_logits(one), terse_session_logits(other), info.vocabulary);
}

/* ---- Which states are held */

static void states_are_few_and_never_far(void **state) {
    (void)state;
    for (uint64_t length = 1; length < 300000; length += length < 5000 ? 1 : 977) assert_in_range(recurrent_count(4, length), 1, 9);
    assert_int_equal(recurrent_count(0, UINT64_MAX), 9);
    assert_int_equal(recurrent_count(0, 0), 0);
    assert_int_equal(recurrent_count(0, 63), 1);
    assert_int_equal(recurrent_count(0, 64), 2);
    assert_int_equal(recurrent_count(4, 67), 1);
    struct terse_session *session = new_session("f16");
    for (size_t length = 1; length <= TOKENS; length++) {
        must_decode(session, tokens + length - 1, 1);
        for (size_t back = 1; back < length; back += 7) {
            const uint64_t n = length - back, found = parts_restorable(session->cache, n);
            assert_true(found <= n && n - found <= 16 * back + 128);
        }
    }
    terse_session_free(session);
}

static void memory_is_foretold_and_given_back(void **state) {
    (void)state;
    const uint64_t before = terse_engine_kv_bytes(engine);
    for (size_t m = 0; m < METHODS; m++) {
        for (size_t n = 1; n <= PROMPT; n += n < 64 ? 21 : 64) {
            const struct terse_session_options options = short_session_options(methods[m], 32);
            struct terse_session *session = must_open(engine, &options), *copy;
            struct terse_cache_report foretold;
            must_prefill(session, tokens, n);
            const struct terse_cache_report report = report_of(session);
            assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, n, &foretold, NULL), TERSE_OK);
            assert_int_equal(report.resident, report.codes + report.exact + report.window + report.tables + report.recurrent);
            assert_int_equal(report.recurrent, foretold.recurrent);
            assert_int_equal(report.resident, foretold.resident);
            assert_true(report.recurrent > 0);
            copy = must_fork(session);
            assert_int_equal(report_of(copy).recurrent, report.recurrent);
            terse_session_free(session);
            must_decode(copy, tokens + n, 1);
            terse_session_free(copy);
        }
        assert_int_equal(terse_engine_kv_bytes(engine), before);
    }
}

static void a_budget_counts_states(void **state) {
    (void)state;
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_session_options of_session = short_session_options("f16", 32);
    struct terse_engine *small;
    struct terse_cache_report report;
    struct terse_error error;
    assert_int_equal(terse_cache_bytes(model, NULL, &of_session.cache, PROMPT, &report, NULL), TERSE_OK);
    options.kv_budget = report.resident - report.recurrent / 2;
    assert_int_equal(terse_engine_new(model, &options, &small, NULL), TERSE_OK);
    struct terse_session *session = must_open(small, &of_session);
    assert_int_equal(terse_session_prefill(session, tokens, PROMPT, NULL, &error), TERSE_E_MEMORY);
    assert_non_null(strstr(error.message, "budget"));
    assert_int_equal(terse_session_length(session), 0);
    must_prefill(session, tokens, 60);
    terse_session_free(session);
    assert_int_equal(terse_engine_kv_bytes(small), 0);
    terse_engine_free(small);
}

/* ---- Ways to read */

static void prompts_in_parts_are_as_tokens_one_by_one(void **state) {
    (void)state;
    static const size_t parts[] = {1, 23, 64, 100, PROMPT};
    struct terse_session *one = new_session("f16");
    must_prefill(one, tokens, PROMPT);
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        struct terse_session *other = new_session("f16");
        int32_t by_one[STEPS], by_other[STEPS];
        for (size_t i = 0, n; i < PROMPT; i += n) {
            n = PROMPT - i < parts[p] ? PROMPT - i : parts[p];
            if (n == 1)
                must_decode(other, tokens + i, 1);
            else
                must_prefill(other, tokens + i, n);
        }
        assert_true(apart(one, other) <= HALF);
        struct terse_session *copy = must_fork(one);
        must_generate(copy, STEPS, by_one);
        must_generate(other, STEPS, by_other);
        assert_memory_equal(by_one, by_other, sizeof by_one);
        terse_session_free(copy);
        terse_session_free(other);
    }
    terse_session_free(one);
}

static void threads_change_nothing(void **state) {
    (void)state;
    const struct terse_session_options options = short_session_options("f16", 32);
    struct terse_engine *three = must_start(&backend_cpu, model, 3);
    struct terse_session *one = must_open(engine, &options), *other = must_open(three, &options);
    must_prefill(one, tokens, PROMPT);
    must_prefill(other, tokens, PROMPT);
    must_decode(one, tokens, 3);
    must_decode(other, tokens, 3);
    check_same_logits(one, other);
    terse_session_free(one);
    terse_session_free(other);
    terse_engine_free(three);
}

static void a_batch_is_as_its_sessions_alone(void **state) {
    (void)state;
    check_batch(engine, methods, tokens);
}

/* ---- Going back */

/* Compares with a session that has read nothing but n tokens, of which the first PROMPT are a prompt. */
static void compare_with_fresh(const char *method, struct terse_session *session, size_t n) {
    struct terse_session *fresh = new_session(method);
    int32_t one[STEPS], other[STEPS];
    must_prefill(fresh, tokens, n < PROMPT ? n : PROMPT);
    if (n > PROMPT) must_decode(fresh, tokens + PROMPT, n - PROMPT);
    must_decode(fresh, tokens + 5, 1);
    must_decode(session, tokens + 5, 1);
    const double difference = apart(session, fresh), bound = bound_of(method);
    if (!(difference <= bound)) fail_msg("%s, cut at %zu: logits are %g of the largest apart", method, n, difference);
    print_message("%s, cut at %zu: %.1e\n", method, n, difference);
    must_generate(fresh, STEPS, one);
    must_generate(session, STEPS, other);
    if (bound <= HALF) assert_memory_equal(one, other, sizeof one);
    terse_session_free(fresh);
}

static void a_session_goes_back_to_any_length(void **state) {
    (void)state;
    static const size_t cuts[] = {1, 63, 65, 68, 200, 448, 640, 699, PROMPT, PROMPT + 1, 768, TOKENS - 1};
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_session *whole = new_session(methods[m]);
        must_prefill(whole, tokens, PROMPT);
        must_decode(whole, tokens + PROMPT, TOKENS - PROMPT);
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            struct terse_session *session = must_fork(whole);
            must_truncate(session, cuts[c]);
            assert_int_equal(terse_session_length(session), cuts[c]);
            assert_null(terse_session_logits(session));
            compare_with_fresh(methods[m], session, cuts[c]);
            terse_session_free(session);
        }
        terse_session_free(whole);
    }
}

/* What was cut and is read anew keeps its states again: cutting on and on ends at the same. */
static void a_session_goes_back_and_on_and_back(void **state) {
    (void)state;
    struct terse_session *session = new_session("f16");
    must_prefill(session, tokens, PROMPT);
    for (size_t i = 0; i < 12; i++) {
        const size_t n = 100 + (i * 271) % 500;
        must_truncate(session, n);
        must_prefill(session, tokens + n, PROMPT - n);
    }
    must_truncate(session, 333);
    compare_with_fresh("f16", session, 333);
    terse_session_free(session);
}

static void random_tokens_are_not_read_again(void **state) {
    (void)state;
    struct terse_session *session = new_session("f16");
    struct terse_error error;
    assert_int_equal(terse_session_fill_random(session, 300, 1, &error), TERSE_OK);
    assert_int_equal(terse_session_truncate(session, 299, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "random"));
    assert_int_equal(terse_session_length(session), 300);
    must_truncate(session, 256);
    must_decode(session, tokens, 1);
    terse_session_free(session);
}

static void a_prompt_that_is_stopped_leaves_the_session(void **state) {
    (void)state;
    for (size_t first = 0; first <= 130; first += 65) check_stopped_prompt(engine, tokens, first, 600);
}

/* ---- Forks, prefixes, saved states */

static void a_fork_and_its_origin_go_their_own_ways(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) check_fork(engine, methods[m], tokens);
}

/* A prompt shares what it has in common with another up to a state that is held; all of a whole sequence. */
static void a_prompt_begins_at_a_state_of_another(void **state) {
    (void)state;
    static const struct {
        const char *method;
        size_t alike, kept, n, held;
    } cases[] = {{"f16", 660, 700, 720, 640},  {"f16", 500, 700, 720, 0},      {"f16", 600, 700, 720, 512},
                 {"f16", 700, 700, 720, 700},  {"f16", 100, 110, 720, 64},     {"q8_0", 660, 700, 720, 644},
                 {"q8_0", 600, 700, 720, 516}, {"kivi-2", 660, 700, 720, 644}, {"mat-128", 660, 700, 720, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct alike_sessions alike =
            must_begin_alike(engine, cases[c].method, tokens, cases[c].kept, cases[c].alike, cases[c].n, info.vocabulary);
        int32_t one[STEPS], other[STEPS];
        if (alike.held != cases[c].held)
            fail_msg("%s: of %zu tokens that are alike %zu are held, not %zu", cases[c].method, cases[c].alike, alike.held,
                     cases[c].held);
        print_message("%s: %.1e\n", cases[c].method, apart(alike.session, alike.fresh));
        assert_true(apart(alike.session, alike.fresh) <= bound_of(cases[c].method));
        must_generate(alike.session, STEPS, one);
        must_generate(alike.fresh, STEPS, other);
        if (bound_of(cases[c].method) <= HALF) assert_memory_equal(one, other, sizeof one);
        alike_free(&alike);
    }
}

static void a_saved_session_goes_on(void **state) {
    (void)state;
    char path[TEMPORARY_PATH];
    temporary_template("recurrent", path);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (size_t m = 0; m < METHODS; m++) {
        const struct terse_session_options options = short_session_options(methods[m], 32);
        struct terse_session *session = new_session(methods[m]), *loaded, *copy, *other;
        must_prefill(session, tokens, PROMPT);
        must_decode(session, tokens + PROMPT, 10);
        must_save(session, path);
        loaded = must_load(engine, &options, path);
        check_same_logits(loaded, session);
        assert_int_equal(report_of(loaded).recurrent, report_of(session).recurrent);
        copy = must_fork(loaded);
        other = must_fork(session);
        must_truncate(copy, 650);
        must_truncate(other, 650);
        must_decode(copy, tokens, 3);
        must_decode(other, tokens, 3);
        check_same_logits(copy, other);
        must_decode(loaded, tokens, 70);
        must_decode(session, tokens, 70);
        check_same_logits(loaded, session);
        terse_session_free(copy);
        terse_session_free(other);
        terse_session_free(loaded);
        terse_session_free(session);
    }
    unlink(path);
}

/* Loads file[size] with a number of the cache's section changed, `at` bytes behind its beginning. */
static enum terse_status load_changed(const uint8_t *file, size_t size, size_t at, uint64_t value, struct terse_error *error) {
    const struct terse_session_options options = short_session_options("f16", 32);
    struct terse_session *session;
    struct state_file *state;
    uint64_t offset;
    uint8_t *changed = aligned_alloc(STATE_PAGES_ALIGN, (size + STATE_PAGES_ALIGN - 1) / STATE_PAGES_ALIGN * STATE_PAGES_ALIGN);
    assert_non_null(changed);
    memcpy(changed, file, size);
    memcpy(&offset, file + 64 + 32 * STATE_CACHE + 8, sizeof offset);
    memcpy(changed + offset + at, &value, sizeof value);
    assert_true(state_file_reseal(changed, size));
    assert_int_equal(state_file_open_memory(changed, size, "state", &state, error), TERSE_OK);
    enum terse_status status = session_load(engine, &options, state, &session, error);
    terse_session_free(session);
    state_file_close(state);
    free(changed);
    return status;
}

static void states_of_other_tokens_are_refused(void **state) {
    (void)state;
    const size_t each = sizeof(uint64_t) + (size_t)model->recurrent * model_recurrent_floats(model) * sizeof(float);
    char path[TEMPORARY_PATH];
    struct terse_error error;
    temporary_template("recurrent", path);
    const int number = mkstemp(path);
    assert_true(number >= 0);
    struct terse_session *session = new_session("f16");
    must_prefill(session, tokens, 200);
    must_save(session, path);
    terse_session_free(session);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    const size_t size = (size_t)ftell(file);
    uint8_t *data = malloc(size);
    assert_non_null(data);
    rewind(file);
    assert_int_equal(fread(data, 1, size, file), size);
    fclose(file);
    close(number);
    unlink(path);
    assert_int_equal(load_changed(data, size, 64, 200, &error), TERSE_OK); /* as it was */
    static const struct {
        size_t state;
        uint64_t tokens;
    } wrong[] = {{0, 199}, {1, 200}, {1, 191}, {1, 256}, {2, 192}, {2, 0}, {2, UINT64_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(load_changed(data, size, 64 + wrong[i].state * each, wrong[i].tokens, &error), TERSE_E_FORMAT);
        assert_non_null(strstr(error.message, "recurrent"));
    }
    free(data);
}

/* A cache that fits transforms waits for 2,052 tokens; the layers with attention alone share its bits. With fewer bits the model, whose weights
 * are random, goes other ways where a cut sequence is read on: terse-4 is 0.03 to 0.5 of the largest logit apart then. */
static void layers_with_attention_are_fitted(void **state) {
    (void)state;
    enum { LONG = 2300, CUT = 2200 };
    static int32_t text[LONG + 1];
    struct terse_session_options options = short_session_options("terse-6", 32), exact = short_session_options("f16", 32);
    struct terse_cache_report foretold;
    char path[TEMPORARY_PATH];
    for (size_t i = 0; i <= LONG; i++) text[i] = tokens[(i * 7 + i / 30) % TOKENS];
    options.context = exact.context = LONG + 100;
    struct terse_session *session = must_open(engine, &options), *whole = must_open(engine, &exact), *other;
    must_prefill(session, text, LONG);
    must_prefill(whole, text, LONG);
    const struct terse_cache_report report = report_of(session);
    assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, LONG, &foretold, NULL), TERSE_OK);
    assert_int_equal(report.resident, foretold.resident);
    const double values = 2.0 * (info.layers - info.recurrent_layers) * info.kv_heads * info.head_dim;
    const double bits = 8.0 * (double)report.codes / (values * LONG);
    if (!(bits > 5.5 && bits < 6.5)) fail_msg("%g bits", bits);
    must_decode(session, text + LONG, 1);
    must_decode(whole, text + LONG, 1);
    print_message("terse-6 from f16: %.1e\n", apart(session, whole));
    assert_true(apart(session, whole) <= 0.1);
    must_truncate(session, CUT);
    must_truncate(whole, CUT);
    must_decode(session, text, 1);
    must_decode(whole, text, 1);
    print_message("after the cut: %.1e\n", apart(session, whole));
    assert_true(apart(session, whole) <= 0.1);
    temporary_template("recurrent", path);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    must_save(session, path);
    other = must_load(engine, &options, path);
    must_decode(session, text, 3);
    must_decode(other, text, 3);
    check_same_logits(session, other);
    unlink(path);
    terse_session_free(session);
    terse_session_free(whole);
    terse_session_free(other);
}

/* ---- Learning */

/* Codebooks and profiles that are learned without gradients serve prompts from the first tokens on. */
static void what_is_learned_serves(void **state) {
    (void)state;
    static const struct {
        const char *method;
        double bound;
    } learned[] = {{"terse-4", 0.15}, {"cq-4", 0.3}};
    struct terse_session *whole = new_session("f16");
    must_prefill(whole, tokens, 300);
    must_decode(whole, tokens + 300, 5);
    for (size_t i = 0; i < sizeof learned / sizeof learned[0]; i++) {
        struct terse_calibration options = terse_calibration_defaults();
        struct terse_session_options with = short_session_options(learned[i].method, 32);
        struct terse_codebook *codebook;
        struct terse_error error;
        options.method = learned[i].method;
        options.window = 128;
        options.windows = 6;
        if (terse_calibrate(model, &options, tokens, TOKENS, &codebook, &error)) fail_msg("%s", error.message);
        with.cache.codebook = codebook;
        struct terse_session *session = must_open(engine, &with);
        must_prefill(session, tokens, 300);
        assert_true(report_of(session).codes > 0);
        must_decode(session, tokens + 300, 5);
        print_message("%s, learned: %.1e\n", learned[i].method, apart(session, whole));
        assert_true(apart(session, whole) <= learned[i].bound);
        terse_session_free(session);
        terse_codebook_free(codebook);
    }
    terse_session_free(whole);
}

struct seen {
    uint32_t layers;
    double square; /* of all keys and values */
};

static void see(void *user, uint32_t layer, const struct captured *rows) {
    struct seen *seen = user;
    assert_int_equal(layer, seen->layers++);
    for (size_t i = 0; i < rows->n * model_kv_width(model); i++)
        seen->square += (double)rows->k[i] * (double)rows->k[i] + (double)rows->v[i] * (double)rows->v[i];
}

static enum terse_status (*append)(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
static struct seen of_caches;

static enum terse_status see_and_append(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    see(&of_caches, rows->layer, &(struct captured){.n = rows->count, .k = rows->k, .v = rows->v});
    return append(batch, rows, error);
}

static void what_learns_sees_what_caches_see(void **state) {
    (void)state;
    enum { WINDOW = 600 }; /* more than a panel of either */
    struct backward *backward;
    struct seen learning = {0};
    struct kv_ops ops = *backend_cpu.kv;
    struct backend watched = backend_cpu;
    append = ops.append;
    ops.append = see_and_append;
    watched.kv = &ops;
    of_caches = (struct seen){0};
    struct terse_engine *other = must_start(&watched, model, 1);
    const struct terse_session_options options = short_session_options("f16", 32);
    struct terse_session *session = must_open(other, &options);
    must_prefill(session, tokens, WINDOW);
    assert_int_equal(backward_new(NULL, model, WINDOW, false, NULL, &backward, NULL), TERSE_OK);
    assert_int_equal(backward_run(backward, tokens, WINDOW, &(struct backward_sink){see, &learning}, NULL, NULL, NULL), TERSE_OK);
    assert_int_equal(learning.layers, model_kv_layers(model));
    assert_int_equal(of_caches.layers, model_kv_layers(model));
    assert_true(fabs(learning.square / of_caches.square - 1) < 1e-5);
    backward_free(backward);
    terse_session_free(session);
    terse_engine_free(other);
}

/* ---- What is refused */

static void learning_by_gradients_is_refused_by_name(void **state) {
    (void)state;
    struct terse_calibration options = terse_calibration_defaults();
    struct terse_codebook *codebook;
    struct terse_error error;
    options.method = "antkv-1";
    options.window = 128;
    assert_int_equal(terse_calibrate(model, &options, tokens, TOKENS, &codebook, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "qwen3next"));
}

static void files_of_other_shapes_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *key;
        uint32_t value;
        enum terse_status status;
        const char *says;
    } wrong[] = {{"qwen3next", "qwen3next.full_attention_interval", 6, TERSE_E_FORMAT, "outside 1 to 5"},
                 {"qwen3next", "qwen3next.full_attention_interval", 3, TERSE_E_FORMAT, "is missing"},
                 {"qwen3next", "qwen3next.ssm.conv_kernel", 0, TERSE_E_FORMAT, "conv_kernel"},
                 {"qwen3next", "qwen3next.ssm.conv_kernel", 5, TERSE_E_FORMAT, "ssm_conv1d"},
                 {"qwen3next", "qwen3next.ssm.state_size", 5000, TERSE_E_FORMAT, "state_size"},
                 {"qwen3next", "qwen3next.ssm.state_size", 32, TERSE_E_UNSUPPORTED, "equally wide"},
                 {"qwen3next", "qwen3next.ssm.inner_size", 32, TERSE_E_UNSUPPORTED, "equally wide"},
                 {"qwen3next", "qwen3next.ssm.group_count", 3, TERSE_E_FORMAT, "share 3 key heads"},
                 {"qwen3next", "qwen3next.ssm.group_count", 4, TERSE_E_FORMAT, "attn_qkv"},
                 {"qwen35", "qwen35.nextn_predict_layers", 5, TERSE_E_FORMAT, "5 of 5 layers"},
                 {"qwen35", "qwen35.nextn_predict_layers", 0, TERSE_E_FORMAT, "blk.4"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        size_t size;
        uint8_t *file = fixture_bytes(wrong[i].model, &size);
        struct terse_model *loaded;
        struct terse_error error;
        fixture_set_u32(file, size, wrong[i].key, wrong[i].value);
        assert_int_equal(terse_model_load_memory(file, size, wrong[i].model, &loaded, &error), wrong[i].status);
        if (!strstr(error.message, wrong[i].says)) fail_msg("'%s' does not say '%s'", error.message, wrong[i].says);
        free(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_few_and_never_far),
        cmocka_unit_test(memory_is_foretold_and_given_back),
        cmocka_unit_test(a_budget_counts_states),
        cmocka_unit_test(prompts_in_parts_are_as_tokens_one_by_one),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(a_batch_is_as_its_sessions_alone),
        cmocka_unit_test(a_session_goes_back_to_any_length),
        cmocka_unit_test(a_session_goes_back_and_on_and_back),
        cmocka_unit_test(random_tokens_are_not_read_again),
        cmocka_unit_test(a_prompt_that_is_stopped_leaves_the_session),
        cmocka_unit_test(a_fork_and_its_origin_go_their_own_ways),
        cmocka_unit_test(a_prompt_begins_at_a_state_of_another),
        cmocka_unit_test(a_saved_session_goes_on),
        cmocka_unit_test(states_of_other_tokens_are_refused),
        cmocka_unit_test(layers_with_attention_are_fitted),
        cmocka_unit_test(what_is_learned_serves),
        cmocka_unit_test(what_learns_sees_what_caches_see),
        cmocka_unit_test(learning_by_gradients_is_refused_by_name),
        cmocka_unit_test(files_of_other_shapes_are_refused),
    };
    return cmocka_run_group_tests_name("recurrent layers", tests, make_engine, free_engine);
}
