/* Prompts under way: read piece by piece while others decode, they end as terse_session_prefill would have, whichever others are in the steps; what
 * fails or is dropped leaves its session as it was, and the others' steps are taken. This program brings its own base/memory, which refuses. */
#include "support/counting_memory.h"
#include "support/fixture_model.h"
#include "support/session_steps.h"
#include "support/temporary.h"
#include "terse.h"
#include "terse_calibrate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

enum { TOKENS = 900, FIRST = 140, PROMPT = 700, CONTEXT = 2000, STEPS = 12 };

static struct terse_model *model;
static struct terse_model_info info;
static struct terse_engine *engine; /* of steps that go on with a prompt by one piece */
static struct terse_codebook *codebook;
static int32_t tokens[TOKENS];
static char folder[TEMPORARY_PATH];

static const char *const methods[] = {"f16",    "q4_0",       "terse-2",     "antkv-1",  "streaming-64",
                                      "mat-64", "snapkv-128", "selfindex-2", "quest-128"};
#define METHODS (sizeof methods / sizeof methods[0])

static int load_model(void **state) {
    (void)state;
    struct terse_error error;
    struct terse_engine_options options = terse_engine_options_defaults();
    model = fixture_model("qwen3");
    options.threads = 2;
    options.prompt_ms = 0;
    if (terse_engine_new(model, &options, &engine, &error)) return -1;
    if (terse_codebook_random(model, "antkv-1", &codebook, &error)) return -1;
    terse_model_describe(model, &info);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 37 + i * i % 13) % (int32_t)info.vocabulary;
    temporary_template("prompt", folder);
    return mkdtemp(folder) ? 0 : -1;
}

static int free_model(void **state) {
    (void)state;
    terse_codebook_free(codebook);
    terse_engine_free(engine);
    terse_model_free(model);
    return rmdir(folder);
}

static struct terse_session_options options_of(const char *method) {
    struct terse_session_options options = short_session_options(method, TERSE_TAIL_DEFAULT);
    options.context = CONTEXT;
    return options;
}

static struct terse_session *open_in(struct terse_engine *of, const char *method, enum terse_prefill prefill) {
    struct terse_session_options options = options_of(method);
    if (strncmp(method, "antkv", 5) == 0) options.cache.codebook = codebook;
    options.prefill = prefill;
    options.batch = 200;
    return must_open(of, &options);
}

static struct terse_session *open(const char *method, enum terse_prefill prefill) { return open_in(engine, method, prefill); }

static void must_begin(struct terse_session *session, const int32_t *text, size_t n) {
    struct terse_error error;
    if (terse_session_begin_prompt(session, text, n, NULL, &error)) fail_msg("%s", error.message);
}

static bool under_way(const struct terse_session *session) {
    uint64_t done, total;
    terse_session_prompt(session, &done, &total);
    assert_true(total ? done < total : done == 0);
    return total > 0;
}

static struct terse_step_item going_on(struct terse_session *session) {
    return (struct terse_step_item){.session = session, .status = TERSE_E_IO};
}

/* Reads the session's prompt to its end, without other sessions in the steps. Returns how many steps it took. */
static size_t must_finish(struct terse_session *session) {
    size_t steps = 0;
    for (; under_way(session); steps++) {
        struct terse_step_item item = going_on(session);
        struct terse_error error;
        if (terse_engine_step(engine, &item, 1, &error) || item.status) fail_msg("%s", error.message);
    }
    return steps;
}

static uint8_t *saved(const struct terse_session *session, size_t *bytes) {
    char path[TEMPORARY_PATH + 8];
    struct terse_error error;
    snprintf(path, sizeof path, "%s/state", folder);
    if (terse_session_save(session, path, &error)) fail_msg("%s", error.message);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*bytes);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    unlink(path);
    return data;
}

static void go_on_alike(struct terse_session *a, struct terse_session *b) {
    for (size_t i = 0; i < STEPS; i++) {
        check_same_logits(a, b);
        must_decode(a, tokens + 5 * i, 1);
        must_decode(b, tokens + 5 * i, 1);
    }
    check_same_logits(a, b);
}

/* Tokens, cache and logits, bit for bit, and what follows. */
static void same_sessions(struct terse_session *a, struct terse_session *b) {
    size_t bytes, others;
    uint8_t *state = saved(a, &bytes), *other = saved(b, &others);
    assert_int_equal(bytes, others);
    assert_memory_equal(state, other, bytes);
    free(state);
    free(other);
    go_on_alike(a, b);
}

/* ---- Prompts that are finished, cancelled, reset */

/* A prompt and a later turn of one session in steps in which two others decode, one of them more tokens than are multiplied row by row. */
static void prompts_beside_decoding(const char *method, enum terse_prefill prefill) {
    struct terse_session *session = open(method, prefill), *alone = open(method, prefill);
    struct terse_session *others[2], *others_alone[2];
    struct terse_error error;
    for (size_t i = 0; i < 2; i++) {
        others[i] = open(i ? "f16" : "q4_0", TERSE_PREFILL_EXACT);
        others_alone[i] = open(i ? "f16" : "q4_0", TERSE_PREFILL_EXACT);
        must_prefill(others[i], tokens + i, 90);
        must_prefill(others_alone[i], tokens + i, 90);
    }
    for (size_t turn = 0; turn < 2; turn++) {
        const int32_t *text = tokens + (turn ? FIRST : 0);
        size_t n = turn ? PROMPT : FIRST, steps = 0;
        uint64_t length = terse_session_length(session), before = 0, done, total;
        const float *logits = terse_session_logits(session);
        must_begin(session, text, n);
        for (; under_way(session); steps++) {
            struct terse_step_item items[] = {{others[0], tokens + steps, 1, NULL, TERSE_E_IO},
                                              going_on(session),
                                              {others[1], tokens + steps, steps % 5 == 3 ? 60 : 1, NULL, TERSE_E_IO}};
            assert_int_equal(terse_session_length(session), length);
            assert_ptr_equal(terse_session_logits(session), logits);
            if (terse_engine_step(engine, items, 3, &error)) fail_msg("%s", error.message);
            for (size_t i = 0; i < 3; i++) assert_int_equal(items[i].status, TERSE_OK);
            terse_session_prompt(session, &done, &total);
            if (total) assert_int_equal(total, n * info.layers);
            assert_true(!total || done >= before);
            before = done;
            for (size_t i = 0; i < 2; i++) {
                assert_int_equal(terse_session_decode(others_alone[i], items[2 * i].tokens, items[2 * i].n, NULL, NULL), TERSE_OK);
                check_same_logits(others[i], others_alone[i]);
            }
        }
        assert_true(steps > info.layers);
        must_prefill(alone, text, n);
        check_same_logits(session, alone);
    }
    same_sessions(session, alone);
    terse_session_free(session);
    terse_session_free(alone);
    for (size_t i = 0; i < 2; i++) {
        terse_session_free(others[i]);
        terse_session_free(others_alone[i]);
    }
}

static void a_prompt_beside_decoding_equals_prefill(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) prompts_beside_decoding(methods[m], TERSE_PREFILL_EXACT);
    prompts_beside_decoding("terse-2", TERSE_PREFILL_COMPRESSED);
    prompts_beside_decoding("mat-64", TERSE_PREFILL_COMPRESSED);
    prompts_beside_decoding("q4_0", TERSE_PREFILL_PAPER);
}

struct logged {
    float *rows; /* [PROMPT][vocabulary] */
    size_t next; /* row */
};

static void log_row(void *user, size_t i, const float *logits) {
    struct logged *log = user;
    assert_int_equal(i, log->next++);
    memcpy(log->rows + i * info.vocabulary, logits, info.vocabulary * sizeof *logits);
}

/* A prompt under way hands over the rows that a prefill does, though the sink that it was given is gone by then. */
static void a_prompt_under_way_gives_its_rows(void **state) {
    (void)state;
    const enum terse_prefill modes[] = {TERSE_PREFILL_EXACT, TERSE_PREFILL_COMPRESSED, TERSE_PREFILL_PAPER};
    for (size_t mode = 0; mode < 3; mode++) {
        struct terse_session *session = open("q4_0", modes[mode]), *alone = open("q4_0", modes[mode]);
        size_t first = mode * 7, bytes = PROMPT * info.vocabulary * sizeof(float);
        struct logged one = {calloc(1, bytes), first}, two = {calloc(1, bytes), first};
        struct terse_logits_sink sink = {log_row, &one, first};
        assert_true(one.rows && two.rows);
        assert_int_equal(terse_session_begin_prompt(session, tokens, PROMPT, &sink, NULL), TERSE_OK);
        sink = (struct terse_logits_sink){log_row, &two, first};
        size_t steps = 0;
        for (; under_way(session); steps++)
            assert_int_equal(terse_engine_step(engine, &(struct terse_step_item){.session = session}, 1, NULL), TERSE_OK);
        assert_true(steps > info.layers);
        assert_int_equal(terse_session_prefill(alone, tokens, PROMPT, &sink, NULL), TERSE_OK);
        assert_int_equal(one.next, PROMPT);
        assert_int_equal(two.next, PROMPT);
        assert_memory_equal(one.rows, two.rows, bytes);
        check_same_logits(session, alone);
        terse_session_free(session);
        terse_session_free(alone);
        free(one.rows);
        free(two.rows);
    }
}

/* Prompts of all methods go on by turns: pieces of their layers mix in any order. */
static void prompts_take_turns(void **state) {
    (void)state;
    struct terse_session *sessions[METHODS];
    struct terse_step_item items[METHODS];
    uint64_t done[METHODS] = {0}, total;
    struct terse_error error;
    size_t left = METHODS, before = live_bytes;
    for (size_t m = 0; m < METHODS; m++) {
        sessions[m] = open(methods[m], TERSE_PREFILL_EXACT);
        must_begin(sessions[m], tokens + m, PROMPT - 60 * m);
    }
    while (left) {
        size_t n = 0, moved = 0;
        for (size_t m = 0; m < METHODS; m++)
            if (under_way(sessions[m])) items[n++] = going_on(sessions[m]);
        left = n;
        if (n && terse_engine_step(engine, items, n, &error)) fail_msg("%s", error.message);
        for (size_t m = 0; m < METHODS; m++) {
            uint64_t now;
            terse_session_prompt(sessions[m], &now, &total);
            moved += now != done[m];
            done[m] = now;
        }
        assert_true(moved <= 1); /* one piece a step */
    }
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_session *alone = open(methods[m], TERSE_PREFILL_EXACT);
        must_prefill(alone, tokens + m, PROMPT - 60 * m);
        same_sessions(sessions[m], alone);
        terse_session_free(alone);
    }
    for (size_t m = 0; m < METHODS; m++) terse_session_free(sessions[m]);
    assert_true(live_bytes < before + (16 << 20)); /* the executor may keep some */
}

/* A larger model, of which a layer takes several pieces; others, and not as many, with two threads. */
static void pieces_of_layers_mix(void **state) {
    (void)state;
    static const char *const kinds[] = {"f16", "terse-2", "mat-64", "snapkv-128"};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_session *sessions[KINDS];
    struct terse_step_item items[KINDS];
    struct terse_model *lab;
    struct terse_engine *other, *two_threads;
    struct terse_model_info about;
    struct terse_error error;
    size_t steps = 0;
    if (terse_model_load(PROJECT_DIR "/models/lab-27m-q8_0.gguf", &lab, &error)) fail_msg("%s", error.message);
    options.threads = 1;
    options.prompt_ms = 0;
    assert_int_equal(terse_engine_new(lab, &options, &other, NULL), TERSE_OK);
    options.threads = 2;
    assert_int_equal(terse_engine_new(lab, &options, &two_threads, NULL), TERSE_OK);
    terse_model_describe(lab, &about);
    for (size_t i = 0; i < KINDS; i++) {
        sessions[i] = open_in(other, kinds[i], TERSE_PREFILL_EXACT);
        must_begin(sessions[i], tokens + i, PROMPT - 150 * i);
    }
    for (size_t n = 1; n; steps++) {
        n = 0;
        for (size_t i = 0; i < KINDS; i++)
            if (under_way(sessions[i])) items[n++] = going_on(sessions[i]);
        if (n && terse_engine_step(other, items, n, &error)) fail_msg("%s", error.message);
    }
    assert_true(steps > 2 * KINDS * about.layers);
    for (size_t i = 0; i < KINDS; i++) {
        struct terse_session *alone = open_in(two_threads, kinds[i], TERSE_PREFILL_EXACT);
        must_prefill(alone, tokens + i, PROMPT - 150 * i);
        assert_memory_equal(terse_session_logits(sessions[i]), terse_session_logits(alone), about.vocabulary * sizeof(float));
        for (size_t k = 0; k < STEPS; k++) {
            must_decode(sessions[i], tokens + k, 1);
            must_decode(alone, tokens + k, 1);
            assert_memory_equal(terse_session_logits(sessions[i]), terse_session_logits(alone), about.vocabulary * sizeof(float));
        }
        terse_session_free(alone);
    }
    for (size_t i = 0; i < KINDS; i++) terse_session_free(sessions[i]);
    terse_engine_free(other);
    terse_engine_free(two_threads);
    terse_model_free(lab);
}

/* By default a step goes on for some time: this short prompt is finished in one, or in a few on a slow machine. */
static void steps_go_on_for_a_while(void **state) {
    (void)state;
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *other;
    size_t steps = 0, pieces;
    assert_true(options.prompt_ms > 0);
    options.threads = 2;
    options.prompt_ms = 60000;
    assert_int_equal(terse_engine_new(model, &options, &other, NULL), TERSE_OK);
    struct terse_session *session = open("q4_0", TERSE_PREFILL_EXACT), *long_steps = open_in(other, "q4_0", TERSE_PREFILL_EXACT);
    must_begin(session, tokens, 300);
    must_begin(long_steps, tokens, 300);
    pieces = must_finish(session);
    for (; under_way(long_steps); steps++) {
        struct terse_step_item item = going_on(long_steps);
        assert_int_equal(terse_engine_step(other, &item, 1, NULL), TERSE_OK);
    }
    assert_true(pieces > info.layers);
    assert_true(steps < pieces);
    same_sessions(session, long_steps);
    terse_session_free(session);
    terse_session_free(long_steps);
    terse_engine_free(other);
}

static void a_session_of_a_prefix_goes_on(void **state) {
    (void)state;
    struct terse_session_options options = options_of("q4_0");
    struct terse_session *first = open("q4_0", TERSE_PREFILL_EXACT), *sessions[2];
    struct terse_error error;
    size_t held;
    must_prefill(first, tokens, PROMPT);
    if (terse_engine_keep_prefix(engine, first, &error)) fail_msg("%s", error.message);
    terse_session_free(first);
    for (size_t i = 0; i < 2; i++) {
        int32_t text[TOKENS];
        memcpy(text, tokens, sizeof text);
        for (size_t t = 600; t < TOKENS; t++) text[t] = 7;
        if (terse_session_new_with_prefix(engine, &options, text, TOKENS, &sessions[i], &held, &error))
            fail_msg("%s", error.message);
        assert_true(held > 400);
        if (i) {
            must_prefill(sessions[i], text + held, TOKENS - held);
        } else {
            must_begin(sessions[i], text + held, TOKENS - held);
            assert_int_equal(terse_session_length(sessions[i]), held);
            terse_engine_drop_prefixes(engine); /* its pages stay */
            must_finish(sessions[i]);
            assert_int_equal(terse_session_length(sessions[i]), TOKENS);
            first = open("q4_0", TERSE_PREFILL_EXACT);
            must_prefill(first, tokens, PROMPT);
            assert_int_equal(terse_engine_keep_prefix(engine, first, NULL), TERSE_OK);
            terse_session_free(first);
        }
    }
    same_sessions(sessions[0], sessions[1]);
    terse_engine_drop_prefixes(engine);
    terse_session_free(sessions[0]);
    terse_session_free(sessions[1]);
}

/* ---- What is refused meanwhile */

static void expect(enum terse_status status, enum terse_status wanted, const struct terse_error *error, const char *word) {
    assert_int_equal(status, wanted);
    assert_int_equal(error->code, wanted);
    assert_null(strchr(error->message, '\n'));
    if (!strstr(error->message, word)) fail_msg("\"%s\" does not mention %s", error->message, word);
}

static void other_calls_are_refused(void **state) {
    (void)state;
    struct terse_session *session = open("q4_0", TERSE_PREFILL_EXACT), *alone = open("q4_0", TERSE_PREFILL_EXACT), *copy;
    struct terse_step_item item = going_on(session);
    struct terse_error error;
    const int32_t wrong[] = {1, -1};
    expect(terse_session_begin_prompt(session, wrong, 2, NULL, &error), TERSE_E_ARGUMENT, &error, "vocabulary");
    expect(terse_session_begin_prompt(session, tokens, 0, NULL, &error), TERSE_E_ARGUMENT, &error, "no tokens");
    int32_t *many = calloc(CONTEXT + 1, sizeof *many);
    expect(terse_session_begin_prompt(session, many, CONTEXT + 1, NULL, &error), TERSE_E_CONTEXT, &error, "-c");
    free(many);
    assert_false(under_way(session));
    expect(terse_engine_step(engine, &item, 1, &error), TERSE_E_ARGUMENT, &error, "begin_prompt");
    assert_int_equal(item.status, TERSE_E_ARGUMENT);
    must_prefill(session, tokens, FIRST);
    must_prefill(alone, tokens, FIRST);
    must_begin(session, tokens, PROMPT);
    for (size_t i = 0; i < 5; i++) {
        expect(terse_session_begin_prompt(session, tokens, 9, NULL, &error), TERSE_E_ARGUMENT, &error, "under way");
        expect(terse_session_prefill(session, tokens, 9, NULL, &error), TERSE_E_ARGUMENT, &error, "under way");
        expect(terse_session_decode(session, tokens, 1, NULL, &error), TERSE_E_ARGUMENT, &error, "under way");
        expect(terse_session_decode(session, tokens, 0, NULL, &error), TERSE_E_ARGUMENT, &error, "under way");
        expect(terse_session_truncate(session, 10, &error), TERSE_E_ARGUMENT, &error, "under way");
        expect(terse_session_fork(session, &copy, &error), TERSE_E_ARGUMENT, &error, "under way");
        assert_null(copy);
        expect(terse_session_save(session, "/nowhere/at/all", &error), TERSE_E_ARGUMENT, &error, "under way");
        expect(terse_engine_keep_prefix(engine, session, &error), TERSE_E_ARGUMENT, &error, "under way");
        expect(terse_session_fill_random(session, 9, 1, &error), TERSE_E_ARGUMENT, &error, "under way");
        struct terse_step_item items[] = {
            going_on(session), {alone, tokens, 1, NULL, TERSE_E_IO}, {session, tokens, 1, NULL, TERSE_E_IO}};
        expect(terse_engine_step(engine, items, 3, &error), TERSE_E_ARGUMENT, &error, "item 3 of 3");
        items[2].session = alone;
        expect(terse_engine_step(engine, items, 3, &error), TERSE_E_ARGUMENT, &error, "item before");
        items[1].n = 0;
        expect(terse_engine_step(engine, items, 2, &error), TERSE_E_ARGUMENT, &error, "item 2 of 2");
        item = going_on(session);
        assert_int_equal(terse_engine_step(engine, &item, 1, NULL), TERSE_OK);
    }
    must_finish(session);
    must_prefill(alone, tokens, PROMPT);
    same_sessions(session, alone);
    terse_session_free(session);
    terse_session_free(alone);
}

/* ---- Prompts that end before their time */

/* Steps of a prompt beside one who decodes. */
static void begin_some(struct terse_session *session, struct terse_session *other, struct terse_session *other_alone) {
    must_begin(session, tokens + 3, PROMPT);
    for (size_t i = 0; i < 2; i++) {
        struct terse_step_item items[] = {going_on(session), {other, tokens + i, 1, NULL, TERSE_E_IO}};
        assert_int_equal(terse_engine_step(engine, items, 2, NULL), TERSE_OK);
        must_decode(other_alone, tokens + i, 1);
    }
    assert_true(under_way(session));
}

/* A failing prompt ends, and not the step: its session is as it was, the others have read. */
static void a_cancelled_prompt_leaves_its_session_as_it_was(void **state) {
    (void)state;
    struct terse_session *other = open("q4_0", TERSE_PREFILL_EXACT), *other_alone = open("q4_0", TERSE_PREFILL_EXACT);
    must_prefill(other, tokens, 90);
    must_prefill(other_alone, tokens, 90);
    for (size_t m = 0; m < METHODS; m++)
        for (size_t turn = 0; turn < 2; turn++) {
            struct terse_session *session = open(methods[m], TERSE_PREFILL_EXACT), *alone = open(methods[m], TERSE_PREFILL_EXACT);
            struct terse_error error;
            if (turn) must_prefill(session, tokens, FIRST);
            if (turn) must_prefill(alone, tokens, FIRST);
            begin_some(session, other, other_alone);
            terse_session_cancel(session);
            assert_true(under_way(session));
            struct terse_step_item items[] = {{other, tokens, 1, NULL, TERSE_E_IO}, going_on(session)};
            memset(&error, 0, sizeof error);
            assert_int_equal(terse_engine_step(engine, items, 2, &error), TERSE_OK);
            assert_int_equal(items[0].status, TERSE_OK);
            assert_int_equal(items[1].status, TERSE_E_INTERRUPTED);
            expect(error.code, TERSE_E_INTERRUPTED, &error, "item 2 of 2: cancelled");
            must_decode(other_alone, tokens, 1);
            check_same_logits(other, other_alone);
            assert_false(under_way(session));
            assert_int_equal(terse_session_length(session), turn ? FIRST : 0);
            if (turn) check_same_logits(session, alone);
            if (!turn) assert_null(terse_session_logits(session));
            must_prefill(session, tokens + 9, FIRST);
            must_prefill(alone, tokens + 9, FIRST);
            go_on_alike(session, alone);
            terse_session_free(session);
            terse_session_free(alone);
        }
    terse_session_free(other);
    terse_session_free(other_alone);
}

static void a_prompt_is_dropped_with_its_session_or_its_text(void **state) {
    (void)state;
    struct terse_session *other = open("q4_0", TERSE_PREFILL_EXACT), *other_alone = open("q4_0", TERSE_PREFILL_EXACT);
    must_prefill(other, tokens, 90);
    must_prefill(other_alone, tokens, 90);
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_session *session = open(methods[m], TERSE_PREFILL_EXACT), *alone = open(methods[m], TERSE_PREFILL_EXACT);
        must_prefill(alone, tokens + 9, PROMPT);
        must_prefill(session, tokens, FIRST);
        begin_some(session, other, other_alone);
        terse_session_cancel(session);
        terse_session_reset(session);
        assert_false(under_way(session));
        assert_int_equal(terse_session_length(session), 0);
        assert_null(terse_session_logits(session));
        must_begin(session, tokens + 9, PROMPT);
        must_finish(session);
        go_on_alike(session, alone);
        begin_some(session, other, other_alone);
        uint64_t with = terse_engine_kv_bytes(engine);
        terse_session_free(session);
        assert_true(terse_engine_kv_bytes(engine) < with);
        check_same_logits(other, other_alone);
        terse_session_free(alone);
    }
    terse_session_free(other);
    terse_session_free(other_alone);
    assert_int_equal(terse_engine_kv_bytes(engine), 0);
}

static void a_prompt_that_does_not_fit_the_budget_is_refused(void **state) {
    (void)state;
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_engine *other;
    struct terse_cache_report report;
    struct terse_cache_options cache = terse_cache_options_defaults();
    struct terse_error error;
    cache.method = "q4_0";
    assert_int_equal(terse_cache_bytes(model, NULL, &cache, PROMPT, &report, NULL), TERSE_OK);
    options.threads = 2;
    options.prompt_ms = 0;
    options.kv_budget = report.resident * 3 / 2;
    assert_int_equal(terse_engine_new(model, &options, &other, NULL), TERSE_OK);
    struct terse_session *one = open_in(other, "q4_0", TERSE_PREFILL_EXACT), *two = open_in(other, "q4_0", TERSE_PREFILL_EXACT);
    must_begin(one, tokens, PROMPT);
    expect(terse_session_begin_prompt(two, tokens, PROMPT, NULL, &error), TERSE_E_MEMORY, &error, "--kv-budget");
    assert_false(under_way(two));
    assert_true(terse_engine_kv_bytes(other) <= options.kv_budget);
    terse_session_reset(one);
    terse_session_free(one);
    must_begin(two, tokens, PROMPT);
    terse_session_free(two);
    assert_int_equal(terse_engine_kv_bytes(other), 0);
    terse_engine_free(other);
}

/* Every allocation of beginning a prompt and of its steps is refused once: the prompt has not begun, or has not failed and goes on, or, where
 * a step of it has to reserve, is gone and its session is as it was. */
static void every_refused_allocation_is_survived(void **state) {
    (void)state;
    size_t refused[2] = {0};
    for (size_t m = 0; m < METHODS + 1; m++) {
        enum terse_prefill prefill = m == METHODS ? TERSE_PREFILL_COMPRESSED : TERSE_PREFILL_EXACT;
        const char *method = m == METHODS ? "terse-2" : methods[m];
        struct terse_session *session = open(method, prefill), *alone = open(method, prefill);
        struct terse_session *other = open("f16", TERSE_PREFILL_EXACT), *other_alone = open("f16", TERSE_PREFILL_EXACT);
        struct terse_error error;
        must_prefill(session, tokens, FIRST);
        must_prefill(alone, tokens, FIRST);
        must_prefill(other, tokens, FIRST);
        must_prefill(other_alone, tokens, FIRST);
        size_t before = 0;
        for (size_t more = 0;; more++, refused[0]++) {
            allocations = 0;
            allowed = more;
            enum terse_status status = terse_session_begin_prompt(session, tokens, PROMPT, NULL, &error);
            allowed = SIZE_MAX;
            if (!status) break;
            assert_int_equal(status, TERSE_E_MEMORY);
            assert_false(under_way(session));
            check_same_logits(session, alone);
            if (more) assert_true(live_bytes <= before + (1 << 20)); /* buffers that grow stay */
            before = live_bytes;
        }
        for (size_t more = 0, step = 0; under_way(session);) {
            struct terse_step_item items[] = {going_on(session), {other, tokens + step, 1, NULL, TERSE_E_IO}};
            allocations = 0;
            allowed = more;
            enum terse_status status = terse_engine_step(engine, items, 2, &error);
            allowed = SIZE_MAX;
            if (status) { /* of the decoding: the prompt has not moved */
                assert_int_equal(status, TERSE_E_MEMORY);
                assert_true(under_way(session));
                check_same_logits(other, other_alone);
                more++;
                refused[1]++;
                continue;
            }
            must_decode(other_alone, tokens + step++, 1);
            check_same_logits(other, other_alone);
            if (items[0].status) {
                assert_int_equal(items[0].status, TERSE_E_MEMORY);
                assert_int_equal(prefill, TERSE_PREFILL_COMPRESSED);
                assert_false(under_way(session));
                check_same_logits(session, alone);
                must_begin(session, tokens, PROMPT);
                more++;
                refused[1]++;
            } else {
                more = 0;
                if (prefill == TERSE_PREFILL_COMPRESSED && step > 40) must_finish(session);
            }
        }
        must_prefill(alone, tokens, PROMPT);
        go_on_alike(session, alone);
        terse_session_free(session);
        terse_session_free(alone);
        terse_session_free(other);
        terse_session_free(other_alone);
    }
    print_message("%zu allocations refused of beginnings, %zu of steps\n", refused[0], refused[1]);
    assert_true(refused[0] > 30 && refused[1] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_prompt_beside_decoding_equals_prefill),
                                       cmocka_unit_test(a_prompt_under_way_gives_its_rows),
                                       cmocka_unit_test(prompts_take_turns),
                                       cmocka_unit_test(pieces_of_layers_mix),
                                       cmocka_unit_test(steps_go_on_for_a_while),
                                       cmocka_unit_test(a_session_of_a_prefix_goes_on),
                                       cmocka_unit_test(other_calls_are_refused),
                                       cmocka_unit_test(a_cancelled_prompt_leaves_its_session_as_it_was),
                                       cmocka_unit_test(a_prompt_is_dropped_with_its_session_or_its_text),
                                       cmocka_unit_test(a_prompt_that_does_not_fit_the_budget_is_refused),
                                       cmocka_unit_test(every_refused_allocation_is_survived)};
    return cmocka_run_group_tests(tests, load_model, free_model);
}
