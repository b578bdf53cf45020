/* Steps of many sessions: each gets bit for bit what it gets alone, whichever others are in the step; a failure leaves all as they were,
 * whatever it is and whomever it is of. This program brings its own base/memory, which refuses. */
#include "support/counting_memory.h"
#include "terse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SESSIONS = 8, PROMPT = 400, STEPS = 150, VOCABULARY_MOST = 8192, LONG = 56 };

static struct terse_model *model;
static struct terse_model_info info;
static struct terse_engine *engine;
static int32_t tokens[PROMPT];

/* The sessions of a batch: their methods, and how many tokens each of them reads first. */
static const struct {
    const char *method;
    size_t prompt;
} kinds[SESSIONS] = {{"f16", 130},   {"terse-2", 333}, {"streaming-64", 90}, {"q4_0", 64},
                     {"mat-64", 70}, {"kivi-2", 200},  {"quest-32", 256},    {"f16", 1}};

static int load_model(void **state) {
    (void)state;
    struct terse_error error;
    struct terse_engine_options options = terse_engine_options_defaults();
    if (terse_model_load(PROJECT_DIR "/models/lab-27m-q8_0.gguf", &model, &error)) return -1;
    options.threads = 2;
    if (terse_engine_new(model, &options, &engine, &error)) return -1;
    terse_model_describe(model, &info);
    for (int i = 0; i < PROMPT; i++) tokens[i] = 300 + (i * 37) % 4000;
    return 0;
}

static int free_model(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}

static struct terse_session *new_session(struct terse_engine *of, size_t kind) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    options.cache.method = kinds[kind].method;
    if (terse_session_new(of, &options, &session, &error)) fail_msg("%s", error.message);
    if (terse_session_prefill(session, tokens, kinds[kind].prompt, NULL, &error)) fail_msg("%s", error.message);
    return session;
}

static void new_sessions(struct terse_session *sessions[SESSIONS]) {
    for (size_t i = 0; i < SESSIONS; i++) sessions[i] = new_session(engine, i);
}

static void free_sessions(struct terse_session *sessions[SESSIONS]) {
    for (size_t i = 0; i < SESSIONS; i++) terse_session_free(sessions[i]);
}

/* Session i reads mostly one token in a step, sometimes a few, rarely more than are multiplied one by one. */
static size_t count_at(size_t step, size_t i) { return (step + i) % 50 == 7 ? LONG : (step + 3 * i) % 11 == 4 ? 3 : 1; }
static const int32_t *tokens_at(size_t step, size_t i) { return tokens + (step * 7 + i * 31) % (PROMPT - LONG); }
/* Some sessions rest in some steps. */
static bool takes_part(size_t step, size_t i) { return (step + i) % 13 != 5; }

static void same_logits(const struct terse_session *a, const struct terse_session *b, size_t step, size_t i) {
    if (memcmp(terse_session_logits(a), terse_session_logits(b), info.vocabulary * sizeof(float)) != 0)
        fail_msg("step %zu: logits of session %zu, %s, are not those of it alone", step, i, kinds[i].method);
}

/* Rows of logits that a sink got, summed up. */
struct heard {
    size_t rows;
    float sum;
};
static void hear(void *user, size_t row, const float *logits) {
    struct heard *h = user;
    h->rows += row + 1;
    for (uint32_t i = 0; i < info.vocabulary; i++) h->sum += logits[i] * (float)(i % 7 + 1);
}

static void a_batch_gives_what_each_gives_alone(void **state) {
    (void)state;
    struct terse_session *together[SESSIONS], *alone[SESSIONS];
    struct terse_error error;
    new_sessions(together);
    new_sessions(alone);
    for (size_t step = 0; step < STEPS; step++) {
        struct terse_step_item items[SESSIONS];
        struct heard heard[2][SESSIONS] = {0};
        struct terse_logits_sink sinks[2][SESSIONS];
        size_t n = 0;
        for (size_t k = SESSIONS; k-- > 0;) {
            size_t i = (k + step) % SESSIONS; /* in any order */
            if (!takes_part(step, i)) continue;
            for (size_t side = 0; side < 2; side++) sinks[side][i] = (struct terse_logits_sink){hear, &heard[side][i], step % 3};
            const struct terse_logits_sink *sink = i % 2 ? &sinks[0][i] : NULL;
            items[n++] = (struct terse_step_item){together[i], tokens_at(step, i), count_at(step, i), sink, TERSE_E_IO};
        }
        if (terse_engine_step(engine, items, n, &error)) fail_msg("%s", error.message);
        for (size_t i = 0; i < n; i++) assert_int_equal(items[i].status, TERSE_OK);
        for (size_t i = 0; i < SESSIONS; i++) {
            if (!takes_part(step, i)) continue;
            const struct terse_logits_sink *sink = i % 2 ? &sinks[1][i] : NULL;
            assert_int_equal(terse_session_decode(alone[i], tokens_at(step, i), count_at(step, i), sink, &error), TERSE_OK);
            same_logits(together[i], alone[i], step, i);
            assert_int_equal(heard[0][i].rows, heard[1][i].rows);
            assert_memory_equal(&heard[0][i].sum, &heard[1][i].sum, sizeof(float));
            assert_int_equal(terse_session_length(together[i]), terse_session_length(alone[i]));
        }
    }
    free_sessions(together);
    free_sessions(alone);
}

/* ---- Failures */

struct before {
    uint64_t length[SESSIONS];
    float logits[SESSIONS][VOCABULARY_MOST];
};

static void remember(struct terse_session *const sessions[SESSIONS], struct before *b) {
    assert_true(info.vocabulary <= VOCABULARY_MOST);
    for (size_t i = 0; i < SESSIONS; i++) {
        b->length[i] = terse_session_length(sessions[i]);
        memcpy(b->logits[i], terse_session_logits(sessions[i]), info.vocabulary * sizeof(float));
    }
}

static void unchanged(struct terse_session *const sessions[SESSIONS], const struct before *b) {
    for (size_t i = 0; i < SESSIONS; i++) {
        assert_int_equal(terse_session_length(sessions[i]), b->length[i]);
        assert_memory_equal(terse_session_logits(sessions[i]), b->logits[i], info.vocabulary * sizeof(float));
    }
}

static void fill_items(struct terse_session *const sessions[SESSIONS], struct terse_step_item items[SESSIONS], size_t step) {
    for (size_t i = 0; i < SESSIONS; i++) items[i] = (struct terse_step_item){sessions[i], tokens_at(step, i), 1, NULL, TERSE_E_IO};
}

/* The step fails for item `at`, and says so of no other. */
static void fails(struct terse_step_item *items, size_t at, enum terse_status wanted, const char *word) {
    struct terse_error error;
    char item[32];
    assert_int_equal(terse_engine_step(engine, items, SESSIONS, &error), wanted);
    assert_int_equal(error.code, wanted);
    snprintf(item, sizeof item, "item %zu of %d", at + 1, SESSIONS);
    if (!strstr(error.message, word) || !strstr(error.message, item)) fail_msg("\"%s\"", error.message);
    for (size_t i = 0; i < SESSIONS; i++) assert_int_equal(items[i].status, i == at ? wanted : TERSE_OK);
}

static void one_bad_item_leaves_all_as_they_were(void **state) {
    (void)state;
    static struct before before;
    struct terse_session *sessions[SESSIONS], *alone[SESSIONS], *foreign;
    struct terse_step_item items[SESSIONS];
    struct terse_engine *other;
    struct terse_error error;
    new_sessions(sessions);
    new_sessions(alone);
    remember(sessions, &before);
    assert_int_equal(terse_engine_new(model, NULL, &other, &error), TERSE_OK);
    foreign = new_session(other, 0);
    const int32_t bad[] = {1, (int32_t)info.vocabulary, -1};
    for (size_t at = 0; at < SESSIONS; at += SESSIONS - 1) {
        fill_items(sessions, items, 0);
        items[at].tokens = bad;
        items[at].n = 2;
        fails(items, at, TERSE_E_ARGUMENT, "vocabulary");
        items[at].n = 0;
        fails(items, at, TERSE_E_ARGUMENT, "no tokens");
        items[at].n = 1;
        items[at].session = NULL;
        fails(items, at, TERSE_E_ARGUMENT, "no session");
        items[at].session = foreign;
        fails(items, at, TERSE_E_ARGUMENT, "another engine");
        unchanged(sessions, &before);
    }
    fill_items(sessions, items, 0);
    items[6].session = sessions[2];
    fails(items, 6, TERSE_E_ARGUMENT, "item before");
    fill_items(sessions, items, 0);
    items[3].n = info.context;
    items[3].tokens = calloc(info.context, sizeof *tokens);
    fails(items, 3, TERSE_E_CONTEXT, "context");
    free((void *)(uintptr_t)items[3].tokens);
    assert_int_equal(terse_engine_step(engine, items, 0, &error), TERSE_E_ARGUMENT);
    unchanged(sessions, &before);
    fill_items(sessions, items, 0);
    assert_int_equal(terse_engine_step(engine, items, SESSIONS, &error), TERSE_OK);
    for (size_t i = 0; i < SESSIONS; i++) {
        assert_int_equal(terse_session_decode(alone[i], tokens_at(0, i), 1, NULL, &error), TERSE_OK);
        same_logits(sessions[i], alone[i], 0, i);
    }
    terse_session_free(foreign);
    terse_engine_free(other);
    free_sessions(sessions);
    free_sessions(alone);
}

static void cancel(void *user, size_t row, const float *logits) {
    (void)row, (void)logits;
    terse_session_cancel(user);
}

/* Rows of the first long part come when others still wait for their turn. */
static void a_cancelled_item_leaves_all_as_they_were(void **state) {
    (void)state;
    static struct before before;
    struct terse_session *sessions[SESSIONS], *alone[SESSIONS];
    struct terse_step_item items[SESSIONS];
    struct terse_error error;
    new_sessions(sessions);
    new_sessions(alone);
    remember(sessions, &before);
    fill_items(sessions, items, 0);
    struct terse_logits_sink sink = {cancel, sessions[5], 0};
    items[1].n = items[4].n = items[5].n = LONG;
    items[1].sink = &sink;
    fails(items, 5, TERSE_E_INTERRUPTED, "cancelled");
    unchanged(sessions, &before);
    terse_session_cancel(sessions[2]);
    fill_items(sessions, items, 0);
    fails(items, 2, TERSE_E_INTERRUPTED, "cancelled");
    unchanged(sessions, &before);
    for (size_t step = 0; step < 3; step++) {
        fill_items(sessions, items, step);
        assert_int_equal(terse_engine_step(engine, items, SESSIONS, &error), TERSE_OK);
        for (size_t i = 0; i < SESSIONS; i++) {
            assert_int_equal(terse_session_decode(alone[i], tokens_at(step, i), 1, NULL, &error), TERSE_OK);
            same_logits(sessions[i], alone[i], step, i);
        }
    }
    free_sessions(sessions);
    free_sessions(alone);
}

static void every_refused_allocation_leaves_all_as_they_were(void **state) {
    (void)state;
    static struct before before;
    struct terse_session *sessions[SESSIONS], *alone[SESSIONS];
    struct terse_step_item items[SESSIONS];
    struct terse_error error;
    size_t refused = 0;
    new_sessions(sessions);
    new_sessions(alone);
    for (size_t step = 0; step < 3; step++) {
        remember(sessions, &before);
        fill_items(sessions, items, step);
        for (size_t i = 0; i < SESSIONS; i++) items[i].n = step == 1 ? LONG : 1; /* a batch that is larger than those before */
        for (size_t more = 0;; more++, refused++) {
            allocations = 0;
            allowed = more;
            enum terse_status status = terse_engine_step(engine, items, SESSIONS, &error);
            allowed = SIZE_MAX;
            if (!status) break;
            assert_int_equal(status, TERSE_E_MEMORY);
            unchanged(sessions, &before);
        }
        for (size_t i = 0; i < SESSIONS; i++) {
            assert_int_equal(terse_session_decode(alone[i], tokens_at(step, i), items[i].n, NULL, &error), TERSE_OK);
            same_logits(sessions[i], alone[i], step, i);
        }
    }
    assert_true(refused > 10);
    free_sessions(sessions);
    free_sessions(alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_batch_gives_what_each_gives_alone),
                                       cmocka_unit_test(one_bad_item_leaves_all_as_they_were),
                                       cmocka_unit_test(a_cancelled_item_leaves_all_as_they_were),
                                       cmocka_unit_test(every_refused_allocation_leaves_all_as_they_were)};
    return cmocka_run_group_tests(tests, load_model, free_model);
}
