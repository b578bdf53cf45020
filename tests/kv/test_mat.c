/* MAT's cache against its definition: a list of kept tokens for every layer and KV head, from which the token with the highest logit
 * to token 0 is evicted whenever there is one too many, and dense attention in double precision over the list at positions 0, 1, ... */
#include "base/half.h"
#include "kv/parts.h"
#include "support/backend_under_test.h"
#include "support/one_cache.h"
#include "support/oracle_copies.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 3, Q_HEADS = 4, HEADS = 2, G = Q_HEADS / HEADS, HD = 64, MOST = 1200, KV = HEADS * HD, QS = Q_HEADS * HD };

static float frequency[HD / 2];
static struct rope rope = {ROPE_HALF_SPLIT, HD, HD, frequency, 1};
static const struct cache_shape shape = {LAYERS, Q_HEADS, HEADS, HD, 0.25f, &rope, .slopes = NULL};

/* Keys, values and queries of a sequence; all channels of a value are the token's number. */
struct sequence {
    float k[LAYERS][MOST][KV], v[LAYERS][MOST][KV], q[LAYERS][MOST][QS];
};

static struct sequence *sequence_new(uint64_t seed) {
    struct sequence *s = malloc(sizeof *s);
    float *numbers = &s->k[0][0][0];
    for (size_t i = 0; i < sizeof *s / sizeof *numbers; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        numbers[i] = (float)((double)(seed >> 11) * 0x1p-52 - 1) * 1.7f;
    }
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t t = 0; t < MOST; t++)
            for (size_t c = 0; c < KV; c++) s->v[l][t][c] = (float)(t + 1);
    /* Logits to token 0 decide, so they must not change when its key goes through halves. */
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t c = 0; c < KV; c++) s->k[l][0][c] = half_to_float(half_from_float(s->k[l][0][c]));
    return s;
}

static struct method resolve(const char *name, const char *codec, uint32_t anchors, uint32_t shallow) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    options.method = name;
    options.key_type = options.value_type = codec;
    options.mat_anchors = anchors;
    options.mat_shallow = shallow;
    struct terse_error error;
    if (method_resolve(&options, HD, &method, &error)) fail_msg("%s", error.message);
    return method;
}

static struct cache *new_cache(const struct method *method) {
    struct cache *cache;
    struct terse_error error;
    if (parts_create(backend_under_test()->kv->storage, &shape, method, 2, &cache, &error)) fail_msg("%s", error.message);
    return cache;
}

/* Reads tokens [first, first + n); out[LAYERS][n][QS] or NULL. Of a prefill half of the queries are only observed, as in a model's
 * last layer. */
static void read_with(const struct kv_ops *kv, struct cache *cache, const struct sequence *s, enum cache_step_kind kind,
                      size_t first, size_t n, float *out) {
    static float k[MOST][KV], q[MOST][QS], attended[MOST][QS];
    struct terse_error error;
    if (one_begin(kv, cache, kind, n, &error)) fail_msg("%s", error.message);
    for (uint32_t l = 0; l < LAYERS; l++) {
        memcpy(k, s->k[l][first], n * sizeof *k);
        memcpy(q, s->q[l][first], n * sizeof *q);
        if (one_append(kv, cache, l, k[0], s->v[l][first], &error)) fail_msg("%s", error.message);
        size_t needed = kind == CACHE_STEP_PREFILL && !out ? n / 2 : 0, observed = one_queries_to_observe(kv, cache, needed);
        assert_int_equal(observed, cache_base_of(cache)->method.policy->pick_victim ? needed : 0);
        if (observed) assert_int_equal(one_observe(kv, cache, l, q[0], 0, observed, NULL), TERSE_OK);
        assert_int_equal(one_attend(kv, cache, l, q[needed], needed, n - needed, attended[0], NULL), TERSE_OK);
        if (out) memcpy(out + l * n * QS, attended, n * sizeof *attended);
        assert_int_equal(one_seal(kv, cache, l, NULL), TERSE_OK);
    }
    if (kv->commit(cache, &error)) fail_msg("%s", error.message);
}

static void read_tokens(struct cache *cache, const struct sequence *s, enum cache_step_kind kind, size_t first, size_t n,
                        float *out) {
    read_with(backend_under_test()->kv, cache, s, kind, first, n, out);
}

/* ---- The definition */

struct kept {
    size_t n, token[MOST];
    double logit[MOST]; /* to token 0 */
};

static struct kept kept[LAYERS][HEADS];

static void rotated(const float *x, double position, double *out) {
    for (size_t i = 0; i < HD / 2; i++) {
        double angle = rope.n_rot ? position * (double)frequency[i] : 0, re = (double)x[i], im = (double)x[i + HD / 2];
        out[i] = re * cos(angle) - im * sin(angle);
        out[i + HD / 2] = re * sin(angle) + im * cos(angle);
    }
}

static double product(const float *q, double q_position, const float *k, double k_position) {
    double a[HD], b[HD], sum = 0;
    rotated(q, q_position, a);
    rotated(k, k_position, b);
    for (size_t c = 0; c < HD; c++) sum += a[c] * b[c];
    return sum * (double)shape.scale;
}

static void append(const struct sequence *s, uint32_t l, uint32_t head, size_t token) {
    struct kept *list = &kept[l][head];
    double logit = 0;
    for (size_t g = 0; g < G; g++)
        logit += product(s->q[l][token] + (head * G + g) * HD, (double)list->n, s->k[l][0] + head * HD, 0) / G;
    list->token[list->n] = token;
    list->logit[list->n++] = logit;
}

static void evict(struct kept *list, const struct policy_parameters *p, uint32_t l) {
    if (list->n <= p->budget) return;
    size_t gone = 1;
    if (l < p->shallow)
        gone = p->exact < SINKS ? p->exact : SINKS;
    else
        for (size_t i = 1; i <= p->exact; i++)
            if (list->logit[i] > list->logit[gone]) gone = i;
    list->n--;
    memmove(list->token + gone, list->token + gone + 1, (list->n - gone) * sizeof *list->token);
    memmove(list->logit + gone, list->logit + gone + 1, (list->n - gone) * sizeof *list->logit);
}

static void define_token(const struct sequence *s, const struct policy_parameters *p, size_t token) {
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t head = 0; head < HEADS; head++) {
            append(s, l, head, token);
            evict(&kept[l][head], p, l);
        }
}

/* Attention of the step's one token, which is in the list as the last, over the whole list. */
static void dense(const struct sequence *s, uint32_t l, uint32_t head, size_t g, size_t token, double *out) {
    const struct kept *list = &kept[l][head];
    double logits[MOST], max = -INFINITY, sum = 0;
    for (size_t i = 0; i <= list->n; i++) {
        size_t t = i < list->n ? list->token[i] : token;
        logits[i] = product(s->q[l][token] + (head * G + g) * HD, (double)list->n, s->k[l][t] + head * HD, (double)i);
        max = fmax(max, logits[i]);
    }
    *out = 0;
    for (size_t i = 0; i <= list->n; i++) {
        double weight = exp(logits[i] - max);
        sum += weight;
        *out += weight * (double)((i < list->n ? list->token[i] : token) + 1);
    }
    *out /= sum;
}

struct taken {
    uint16_t *at;
};

static void take(void *user, const void *data, size_t bytes) {
    struct taken *taken = user;
    memcpy(taken->at, data, bytes);
    taken->at += bytes / sizeof *taken->at;
}

/* The exact tokens are the first of the kept tokens, found by their values. */
static void check_rows(const struct cache *cache) {
    const struct cache_base *base = cache_base_of(cache);
    size_t exact = base->extent.exact, most = base->method.parameters.exact;
    uint16_t *rows = malloc(cache_piece_bytes(cache, CACHE_EXACT) + 1);
    struct taken taken = {rows};
    assert_int_equal(base->storage->export_piece(cache, CACHE_EXACT, &(struct cache_sink){take, &taken}), 0);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t head = 0; head < HEADS; head++) {
            const uint16_t *values = rows + ((l * HEADS + head) * 2 + 1) * most * HD;
            assert_true(kept[l][head].n >= exact && kept[l][head].token[0] == 0);
            for (size_t i = 0; i < exact; i++)
                for (size_t c = 0; c < HD; c++)
                    assert_int_equal((int)lrintf(half_to_float(values[i * HD + c])), kept[l][head].token[i] + 1);
        }
    free(rows);
}

static void tokens_one_by_one_are_those_of_the_definition(void **state) {
    (void)state;
    static const struct {
        const char *name, *codec;
        uint32_t anchors, shallow, tail;
    } methods[] = {{"mat-40", NULL, 10, 1, 0},     {"mat-100", "q8_0", 20, 1, 16}, {"mat-200", NULL, 64, 2, 0},
                   {"mat-100", NULL, 1, 0, 0},     {"mat-90", NULL, 80, 0, 0},     {"mat-140", "q8_0", 3, 1, 0},
                   {"mat-250", "q8_0", 30, 0, 40}, {"mat-77", NULL, 0, 2, 0}};
    const size_t tokens = backend_under_test()->emulated ? 190 : 700;
    for (size_t m = 0; m < cases(sizeof methods / sizeof methods[0], 2); m++) {
        struct method method = resolve(methods[m].name, methods[m].codec, methods[m].anchors, methods[m].shallow);
        method.tail_tokens = methods[m].tail;
        struct sequence *s = sequence_new(m);
        struct cache *cache = new_cache(&method);
        memset(kept, 0, sizeof kept);
        double worst = 0;
        for (size_t t = 0; t < tokens; t++) {
            float out[LAYERS][QS];
            read_tokens(cache, s, CACHE_STEP_DECODE, t, 1, out[0]);
            for (uint32_t l = 0; l < LAYERS; l++)
                for (uint32_t h = 0; h < Q_HEADS; h++) {
                    double expected;
                    dense(s, l, h / G, h % G, t, &expected);
                    worst = fmax(worst, fabs((double)out[l][h * HD] - expected) / (double)tokens);
                }
            define_token(s, &method.parameters, t);
            if (t % 50 == 0 || t > tokens - 10) check_rows(cache);
            struct terse_cache_report report;
            parts_report(cache, &report);
            assert_int_equal(report.kept, t + 1 < method.parameters.budget ? t + 1 : method.parameters.budget);
        }
        if (!(worst < (methods[m].codec ? 1e-2 : 3e-3))) fail_msg("%s: outputs differ by %g", methods[m].name, worst);
        parts_destroy(cache);
        free(s);
    }
}

/* Without rotation logits do not depend on positions, so what is chosen must not depend on how a text is cut into steps. */
static void steps_choose_what_single_tokens_choose(void **state) {
    (void)state;
    static const size_t long_cuts[][4] = {{1000, 0, 0, 0}, {30, 170, 1, 799}, {250, 250, 250, 250}, {999, 1, 0, 0}},
                        short_cuts[][4] = {{300, 0, 0, 0}, {30, 130, 1, 139}, {9, 141, 10, 140}, {299, 1, 0, 0}};
    static const char *const codecs[] = {NULL, "q8_0"};
    const size_t(*const cuts)[4] = backend_under_test()->emulated ? short_cuts : long_cuts;
    rope.n_rot = 0;
    for (size_t c = 0; c < cases(2, 1); c++) {
        for (size_t cut = 0; cut < 4; cut++) {
            for (int kind = CACHE_STEP_DECODE; kind <= CACHE_STEP_PREFILL; kind++) {
                struct method method = resolve("mat-150", codecs[c], 50, 1);
                struct sequence *s = sequence_new(cut);
                struct cache *cache = new_cache(&method);
                memset(kept, 0, sizeof kept);
                for (size_t t = 0; t < cuts[0][0]; t++) define_token(s, &method.parameters, t);
                for (size_t i = 0, first = 0; i < 4 && cuts[cut][i]; first += cuts[cut][i++])
                    read_tokens(cache, s, (enum cache_step_kind)kind, first, cuts[cut][i], NULL);
                check_rows(cache);
                parts_destroy(cache);
                free(s);
            }
        }
    }
    rope.n_rot = HD;
}

/* Reads the same tokens into two caches and compares what comes out. */
static void compare(const struct method *a, const struct method *b, double allowed) {
    struct sequence *s = sequence_new(9);
    struct cache *one = new_cache(a), *two = new_cache(b);
    static float out[2][LAYERS * QS];
    double worst = 0;
    read_tokens(one, s, CACHE_STEP_PREFILL, 0, 100, NULL);
    read_tokens(two, s, CACHE_STEP_PREFILL, 0, 100, NULL);
    for (size_t t = 100; t < (backend_under_test()->emulated ? 180 : 400); t++) {
        read_tokens(one, s, CACHE_STEP_DECODE, t, 1, out[0]);
        read_tokens(two, s, CACHE_STEP_DECODE, t, 1, out[1]);
        for (size_t i = 0; i < LAYERS * QS; i++) worst = fmax(worst, fabs((double)out[0][i] - (double)out[1][i]) / 400);
    }
    assert_true(worst <= allowed);
    parts_destroy(one);
    parts_destroy(two);
    free(s);
}

static void special_cases_are_streaming(void **state) {
    (void)state;
    struct method streaming = resolve("streaming-60", NULL, 0, TERSE_SHALLOW_DEFAULT),
                  all_shallow = resolve("mat-60", NULL, 20, LAYERS);
    compare(&all_shallow, &streaming, 1e-3);
    struct method one_anchor = resolve("mat-60", NULL, 1, 0);
    streaming.parameters.exact = 1;
    compare(&one_anchor, &streaming, 1e-6);
}

/* Forks, and states that are loaded, by this backend or the processor, choose as the sequence itself. */
static void copies_go_on(void **state) {
    const struct kv_ops *kv = backend_under_test()->kv;
    const size_t first = 120, end = backend_under_test()->emulated ? 160 : 400;
    struct method method = resolve("mat-60", "q8_0", 20, 1);
    struct sequence *s = sequence_new(3);
    struct terse_error error;
    struct state_file *file;
    method.tail_tokens = 0;
    memset(kept, 0, sizeof kept);
    struct cache *cache = new_cache(&method), *copies[3];
    for (size_t t = 0; t < first; t++) {
        read_tokens(cache, s, CACHE_STEP_DECODE, t, 1, NULL);
        define_token(s, &method.parameters, t);
    }
    cache_save_to(cache, *state);
    if (parts_fork(cache, &copies[0], &error)) fail_msg("%s", error.message);
    for (size_t i = 1; i < 3; i++) {
        if (parts_create(i == 1 ? kv->storage : backend_cpu.kv->storage, &shape, &method, 2, &copies[i], &error) ||
            state_file_open(*state, &file, &error) || parts_load(copies[i], file, &error))
            fail_msg("%s", error.message);
        state_file_close(file);
        check_rows(copies[i]);
    }
    for (size_t t = first; t < end; t++) {
        for (size_t i = 0; i < 3; i++) read_with(i < 2 ? kv : backend_cpu.kv, copies[i], s, CACHE_STEP_DECODE, t, 1, NULL);
        define_token(s, &method.parameters, t);
    }
    for (size_t i = 0; i < 3; i++) check_rows(copies[i]);
    cache_save_to(copies[2], *state); /* back from the processor */
    parts_destroy(copies[1]);
    if (parts_create(kv->storage, &shape, &method, 2, &copies[1], &error) || state_file_open(*state, &file, &error) ||
        parts_load(copies[1], file, &error))
        fail_msg("%s", error.message);
    state_file_close(file);
    for (size_t t = end; t < end + 20; t++) {
        read_tokens(copies[1], s, CACHE_STEP_DECODE, t, 1, NULL);
        define_token(s, &method.parameters, t);
    }
    check_rows(copies[1]);
    for (size_t i = 0; i < 3; i++) parts_destroy(copies[i]);
    parts_destroy(cache);
    free(s);
}

/* Two sequences of different lengths make their steps together. */
static void sequences_of_a_batch_choose_for_themselves(void **state) {
    (void)state;
    enum { TOGETHER = 50 };
    const struct kv_ops *kv = backend_under_test()->kv;
    const size_t first[2] = {90, 30};
    const struct method method = resolve("mat-60", "q8_0", 20, 1);
    struct sequence *s[2];
    struct cache *caches[2];
    struct kept(*lists)[LAYERS][HEADS] = malloc(2 * sizeof *lists);
    for (size_t i = 0; i < 2; i++) {
        s[i] = sequence_new(30 + i);
        caches[i] = new_cache(&method);
        memset(kept, 0, sizeof kept);
        read_tokens(caches[i], s[i], CACHE_STEP_PREFILL, 0, 20, NULL);
        for (size_t t = 20; t < first[i]; t++) read_tokens(caches[i], s[i], CACHE_STEP_DECODE, t, 1, NULL);
        for (size_t t = 0; t < first[i] + TOGETHER; t++) define_token(s[i], &method.parameters, t);
        memcpy(lists[i], kept, sizeof kept);
    }
    const struct kv_batch batch = {caches, 2, NULL};
    for (size_t step = 0; step < TOGETHER; step++) {
        float k[2][KV], v[2][KV], q[2][QS], out[2][QS];
        for (size_t i = 0; i < 2; i++) assert_int_equal(kv->begin(caches[i], CACHE_STEP_DECODE, 1, NULL), TERSE_OK);
        assert_int_equal(kv->join(&batch, NULL), TERSE_OK);
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (size_t i = 0; i < 2; i++) {
                memcpy(k[i], s[i]->k[l][first[i] + step], sizeof *k);
                memcpy(v[i], s[i]->v[l][first[i] + step], sizeof *v);
                memcpy(q[i], s[i]->q[l][first[i] + step], sizeof *q);
            }
            const struct kv_rows keys = {.layer = l, .count = 2, .k = k[0], .v = v[0]},
                                 queries = {.layer = l, .count = 2, .q = q[0], .out = out[0]};
            assert_int_equal(kv->append(&batch, &keys, NULL), TERSE_OK);
            assert_int_equal(kv->attend(&batch, &queries, NULL), TERSE_OK);
            assert_int_equal(kv->seal(&batch, l, NULL), TERSE_OK);
        }
        for (size_t i = 0; i < 2; i++) assert_int_equal(kv->commit(caches[i], NULL), TERSE_OK);
    }
    for (size_t i = 0; i < 2; i++) {
        memcpy(kept, lists[i], sizeof kept);
        check_rows(caches[i]);
        parts_destroy(caches[i]);
        free(s[i]);
    }
    free(lists);
}

/* A step that was begun, and perhaps appended and attended, but never committed changes nothing. */
static void a_step_given_up_replaces_nothing(void **state) {
    (void)state;
    const struct kv_ops *kv = backend_under_test()->kv;
    struct method method = resolve("mat-40", NULL, 10, 0);
    struct sequence *s = sequence_new(12), *other = sequence_new(13);
    struct cache *cache = new_cache(&method);
    static float k[150][KV], q[150][QS], out[150][QS];
    memset(kept, 0, sizeof kept);
    for (size_t t = 0; t < 90; t++) {
        if (t == 60 || t == 80) {
            const enum cache_step_kind kind = t == 60 ? CACHE_STEP_DECODE : CACHE_STEP_PREFILL;
            const size_t n = t == 60 ? 3 : 120;
            assert_int_equal(one_begin(kv, cache, kind, n, NULL), TERSE_OK);
            for (uint32_t l = 0; l < LAYERS; l++) {
                memcpy(k, other->k[l], n * sizeof *k);
                memcpy(q, other->q[l], n * sizeof *q);
                assert_int_equal(one_append(kv, cache, l, k[0], other->v[l][0], NULL), TERSE_OK);
                assert_int_equal(one_attend(kv, cache, l, q[0], 0, n, out[0], NULL), TERSE_OK);
                if (t == 60 || l + 1 < LAYERS) assert_int_equal(one_seal(kv, cache, l, NULL), TERSE_OK);
                if (kv == backend_cpu.kv) break; /* it replaces rows where they lie, layer by layer */
            }
            if (kv == backend_cpu.kv) break;
        }
        read_tokens(cache, s, CACHE_STEP_DECODE, t, 1, NULL);
        define_token(s, &method.parameters, t);
    }
    if (kv != backend_cpu.kv) check_rows(cache);
    parts_destroy(cache);
    free(s);
    free(other);
}

static void a_reset_forgets(void **state) {
    (void)state;
    struct method method = resolve("mat-40", NULL, 10, 1);
    struct sequence *s = sequence_new(1), *other = sequence_new(2);
    struct cache *cache = new_cache(&method);
    read_tokens(cache, other, CACHE_STEP_PREFILL, 0, 200, NULL);
    parts_reset(cache);
    memset(kept, 0, sizeof kept);
    for (size_t t = 0; t < (backend_under_test()->emulated ? 60 : 200); t++) {
        read_tokens(cache, s, CACHE_STEP_DECODE, t, 1, NULL);
        define_token(s, &method.parameters, t);
    }
    check_rows(cache);
    parts_destroy(cache);
    free(s);
    free(other);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    omp_set_num_threads(2);
    for (size_t i = 0; i < HD / 2; i++) frequency[i] = (float)pow(10000, -2.0 * (double)i / HD);
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_one_by_one_are_those_of_the_definition),
                                       cmocka_unit_test(steps_choose_what_single_tokens_choose),
                                       cmocka_unit_test(special_cases_are_streaming),
                                       cmocka_unit_test_setup_teardown(copies_go_on, make_state_path, remove_state_path),
                                       cmocka_unit_test(sequences_of_a_batch_choose_for_themselves),
                                       cmocka_unit_test(a_step_given_up_replaces_nothing),
                                       cmocka_unit_test(a_reset_forgets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
