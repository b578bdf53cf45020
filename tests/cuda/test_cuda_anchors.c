/* Tests which tokens of a prompt the attention of its last queries keeps (snapkv-N): the same as on the CPU, by explicit softmax rows; and that the
 * kept tokens are then read, cut, forked and saved. */
#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "base/random.h"
#include "format/codebook_layouts.h"
#include "host_kv.h"
#include "no_device.h"
#include "support/one_cache.h"

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

enum { LAYERS = 2, HQ = 4, HK = 2, HD = 64, MOST = 1200, QUERIES = 32, BUDGET = 200 };

/* Keys and queries are halves on the GPU: weights, and so scores, differ by as much from those of floats. */
#define NEAR 4e-3
/* Bounds of the difference of outputs between the backends. */
#define HALVES 6e-3
#define CODES 3e-2
#define TRANSFORM 2e-1 /* a half that is rounded otherwise may be another path of the trellis: test_cuda_cache.c */

static const struct kv_ops *ops(int i) { return i ? host_kv_ops() : backend_cpu.kv; }

static float frequency[HD / 2];
static struct rope rope = {ROPE_HALF_SPLIT, HD, HD, frequency, 1};
static const struct cache_shape shape = {
    .layers = LAYERS, .query_heads = HQ, .kv_heads = HK, .head_dim = HD, .scale = 0.125f, .rope = &rope};

static float keys[LAYERS][MOST][HK * HD], values[LAYERS][MOST][HK * HD], queries[LAYERS][MOST][HQ * HD];
static float out[2][MOST][HQ * HD];

static void make_numbers(uint64_t seed) {
    float *all[] = {&keys[0][0][0], &values[0][0][0], &queries[0][0][0]};
    size_t n[] = {sizeof keys / sizeof(float), sizeof values / sizeof(float), sizeof queries / sizeof(float)};
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < n[i]; j++) all[i][j] = (float)(random_uniform(random_next(&seed)) * 4 - 2);
}

/* Gives a method of codec transform a random profile that counts as made from the weights: the codec is then fitted to the first tokens that are
 * sealed. */
static void give_profile(struct method *method) {
    static struct terse_codebook *profile;
    struct codebook_info info = {.key = method->key, .value = method->value, .layers = LAYERS, .kv_heads = HK, .head_dim = HD};
    const double rate[2] = {method->key.rate, method->value.rate};
    struct terse_error error;
    snprintf(info.method, sizeof info.method, "%s", method->codebook);
    if ((!profile && codebook_random(&info, 0, false, &profile, &error)) ||
        codebook_layouts(profile, rate, &method->layouts, &error))
        fail_msg("%s", error.message);
    method->learned = profile;
    method->of_weights = true;
}

static struct method method_of(const char *codec) {
    struct terse_cache_options options = {.method = codec, .evict = "snapkv-200", .anchor_percent = -1, .tail_tokens = 32};
    struct method method;
    struct terse_error error;
    if (method_resolve(&options, HD, &method, &error)) fail_msg("%s", error.message);
    if (method.codebook[0]) give_profile(&method);
    return method;
}

static struct cache *new_cache(int on, const struct method *method) {
    struct cache *cache;
    struct terse_error error;
    if (ops(on)->create(&shape, method, 2, &cache, &error)) fail_msg("%s", error.message);
    return cache;
}

#define MUST(call) \
    do { \
        if (call) fail_msg("%s: %s", #call, error.message); \
    } while (0)

/* Tokens [first, first + n); outputs of the last layer to `to`. In the last layer of a prompt all but the last token's queries are but shown. */
static void read_tokens(int on, struct cache *cache, enum cache_step_kind kind, size_t first, size_t n, float (*to)[HQ * HD]) {
    static float k[MOST * HK * HD], q[MOST * HQ * HD];
    struct terse_error error;
    MUST(one_begin(ops(on), cache, kind, n, &error));
    for (uint32_t l = 0; l < LAYERS; l++) {
        memcpy(k, keys[l][first], n * sizeof keys[l][0]);
        memcpy(q, queries[l][first], n * sizeof queries[l][0]);
        MUST(one_append(ops(on), cache, l, k, values[l][first], &error));
        size_t needed = kind == CACHE_STEP_PREFILL && l + 1 == LAYERS ? n - 1 : 0;
        size_t shown = one_queries_to_observe(ops(on), cache, needed);
        for (size_t i = 0; i < shown; i += 100)
            MUST(one_observe(ops(on), cache, l, q + i * HQ * HD, i, shown - i < 100 ? shown - i : 100, &error));
        for (size_t i = needed; i < n; i += 90) {
            size_t count = n - i < 90 ? n - i : 90;
            MUST(one_attend(ops(on), cache, l, q + i * HQ * HD, i, count, to[i], &error));
        }
        MUST(one_seal(ops(on), cache, l, &error));
    }
    MUST(ops(on)->commit(cache, &error));
}

static double apart(float (*a)[HQ * HD], float (*b)[HQ * HD], size_t n) {
    double most = 0;
    for (size_t i = 0; i < n * HQ * HD; i++) most = fmax(most, fabs((double)a[0][i] - (double)b[0][i]));
    return most;
}

/* ---- What was kept, by way of a file */

static void save(int on, const struct cache *cache, const char *path) {
    struct state_writer *writer;
    struct terse_error error;
    MUST(state_writer_new(path, &writer, &error));
    for (int section = STATE_METHOD; section < STATE_CACHE; section++) state_writer_begin(writer, (enum state_section)section);
    ops(on)->save(cache, writer);
    MUST(state_writer_finish(writer, &(struct state_identity){0}, &error));
}

static struct cache *load(int on, const struct method *method, const char *path) {
    struct cache *cache = new_cache(on, method);
    struct state_file *file;
    struct terse_error error;
    MUST(state_file_open(path, &file, &error));
    MUST(ops(on)->load(cache, file, &error));
    state_file_close(file);
    return cache;
}

/* tokens[LAYERS][HK][*n] of keys, which those of values are too; to be freed. */
static uint32_t *kept_tokens(int on, const struct cache *cache, size_t *n) {
    char path[] = "/tmp/terse-test-anchors-XXXXXX";
    int descriptor = mkstemp(path);
    struct state_file *file;
    struct terse_error error;
    size_t bytes, each = sizeof(uint32_t) + HD * sizeof(uint16_t);
    assert_true(descriptor >= 0);
    close(descriptor);
    save(on, cache, path);
    MUST(state_file_open(path, &file, &error));
    const uint8_t *data = state_file_section(file, STATE_ANCHORS, &bytes);
    *n = bytes / each / (LAYERS * HK * 2);
    uint32_t *tokens = malloc(LAYERS * HK * *n * sizeof *tokens + 1);
    for (size_t i = 0; i < LAYERS * HK; i++) {
        assert_memory_equal(data + 2 * i * *n * each, data + (2 * i + 1) * *n * each, *n * sizeof *tokens);
        memcpy(tokens + i * *n, data + 2 * i * *n * each, *n * sizeof *tokens);
    }
    state_file_close(file);
    unlink(path);
    return tokens;
}

static size_t count_different(const uint32_t *a, const uint32_t *b, size_t n) {
    size_t different = 0;
    for (size_t i = 0; i < LAYERS * HK; i++)
        for (size_t j = 0; j < n; j++) {
            size_t at = 0;
            while (at < n && b[i * n + at] != a[i * n + j]) at++;
            different += at == n;
        }
    return different;
}

/* ---- By the definition */

static void rotated(const float *row, size_t position, double *to) {
    for (size_t i = 0; i < HD / 2; i++) {
        double angle = (double)position * (double)frequency[i], x = (double)row[i], y = (double)row[i + HD / 2];
        to[i] = x * cos(angle) - y * sin(angle);
        to[i + HD / 2] = y * cos(angle) + x * sin(angle);
    }
}

/* pooled[sealed] of tokens from..., from the weights of the last queries of a prompt of n tokens. */
static void scores_of(uint32_t layer, uint32_t head, size_t n, size_t from, size_t sealed, double *pooled) {
    static double rows[MOST][HD], weights[MOST], paid[MOST];
    memset(paid, 0, sizeof paid);
    for (size_t t = 0; t < n; t++) rotated(keys[layer][t] + head * HD, t, rows[t]);
    for (size_t i = n - QUERIES; i < n; i++)
        for (size_t g = 0; g < HQ / HK; g++) {
            double q[HD], most = -INFINITY, sum = 0;
            rotated(queries[layer][i] + (head * (HQ / HK) + g) * HD, i, q);
            for (size_t t = 0; t <= i; t++) {
                weights[t] = 0;
                for (size_t c = 0; c < HD; c++) weights[t] += q[c] * rows[t][c] * (double)shape.scale;
                most = fmax(most, weights[t]);
            }
            for (size_t t = 0; t <= i; t++) sum += exp(weights[t] - most);
            for (size_t t = from; t <= i && t < from + sealed; t++) paid[t - from] += exp(weights[t] - most) / sum;
        }
    for (size_t t = 0; t < sealed; t++) {
        size_t first = t < 2 ? 0 : t - 2, last = t + 2 < sealed ? t + 2 : sealed - 1;
        pooled[t] = 0;
        for (size_t j = first; j <= last; j++) pooled[t] += paid[j] / (double)(last - first + 1);
    }
}

static void the_best_are_kept(void **state) {
    (void)state;
    static const char *const codecs[] = {"f16", "q8_0"};
    enum { N = 500 };
    for (size_t c = 0; c < 2; c++) {
        struct method method = method_of(codecs[c]);
        struct plan plan = plan_step(&method, &(struct extent){0}, CACHE_STEP_PREFILL, N);
        struct cache *cache[2];
        uint32_t *tokens[2];
        size_t n[2], from = (size_t)plan_first_sealed(&plan);
        double worst = 1;
        make_numbers(c + 1);
        for (int on = 0; on < 2; on++) {
            cache[on] = new_cache(on, &method);
            read_tokens(on, cache[on], CACHE_STEP_PREFILL, 0, N, out[on]);
            tokens[on] = kept_tokens(on, cache[on], &n[on]);
            assert_int_equal(n[on], plan.anchors);
        }
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t head = 0; head < HK; head++) {
                static double pooled[MOST];
                bool kept[MOST] = {false};
                double least = INFINITY, most = 0;
                scores_of(l, head, N, from, plan.sealed, pooled);
                for (size_t i = 0; i < n[1]; i++) kept[tokens[1][(l * HK + head) * n[1] + i] - from] = true;
                for (size_t t = 0; t < plan.sealed; t++) {
                    if (kept[t]) least = fmin(least, pooled[t]);
                    if (!kept[t]) most = fmax(most, pooled[t]);
                }
                worst = fmin(worst, least / most);
            }
        size_t different = count_different(tokens[0], tokens[1], n[1]);
        printf("%s: the least of those kept is %.6f of the best of the others, %zu of %zu are not the CPU's\n", method.name, worst,
               different, LAYERS * HK * n[1]);
        assert_true(worst >= 1 - NEAR);
        assert_true(different * 100 <= LAYERS * HK * n[1]);
        for (int on = 0; on < 2; on++) {
            ops(on)->destroy(cache[on]);
            free(tokens[on]);
        }
    }
}

/* Prompts and steps on both sides, from a state that the GPU has saved; each prompt keeps other tokens. */
static void what_is_kept_is_read(void **state) {
    (void)state;
    static const char *const codecs[] = {"f16", "q4_0", "terse-3"};
    static const double allowed[] = {HALVES, CODES, TRANSFORM};
    char path[] = "/tmp/terse-test-anchors-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    for (size_t c = 0; c < 3; c++) {
        struct method method = method_of(codecs[c]);
        struct cache *cache[2];
        double worst = 0;
        make_numbers(c + 10);
        cache[1] = new_cache(1, &method);
        read_tokens(1, cache[1], CACHE_STEP_PREFILL, 0, 400, out[1]);
        size_t at = 400;
        for (int turn = 0; turn < 3; turn++) {
            save(1, cache[1], path);
            cache[0] = load(0, &method, path);
            for (size_t i = 0; i < 70; i++, at++) {
                for (int on = 0; on < 2; on++) read_tokens(on, cache[on], CACHE_STEP_DECODE, at, 1, out[on]);
                worst = fmax(worst, apart(out[0], out[1], 1));
            }
            ops(0)->destroy(cache[0]);
            struct cache *again = load(1, &method, path); /* and from the file on the GPU, or a fork, the same */
            if (turn == 1) {
                struct cache *fork;
                struct terse_error error;
                MUST(ops(1)->fork(cache[1], &fork, &error));
                ops(1)->destroy(cache[1]);
                cache[1] = fork;
            }
            for (size_t i = at - 70; i < at; i++) read_tokens(1, again, CACHE_STEP_DECODE, i, 1, out[0]);
            worst = fmax(worst, apart(out[0], out[1], 1));
            ops(1)->destroy(again);
            if (turn == 2) break;
            save(1, cache[1], path);
            cache[0] = load(0, &method, path);
            size_t n[2], n_prompt = turn ? 20 : 250; /* a short prompt keeps all */
            for (int on = 0; on < 2; on++) read_tokens(on, cache[on], CACHE_STEP_PREFILL, at, n_prompt, out[on]);
            worst = fmax(worst, apart(out[0] + n_prompt - 1, out[1] + n_prompt - 1, 1));
            uint32_t *tokens[2];
            for (int on = 0; on < 2; on++) tokens[on] = kept_tokens(on, cache[on], &n[on]);
            assert_int_equal(n[0], n[1]);
            assert_true(count_different(tokens[0], tokens[1], n[0]) * 100 <= LAYERS * HK * n[0]);
            for (int on = 0; on < 2; on++) free(tokens[on]);
            at += n_prompt;
            /* The CPU reads the rows that it has kept itself; those of the file are the GPU's. */
            for (int on = 0; on < 2; on++) read_tokens(on, cache[on], CACHE_STEP_DECODE, at, 1, out[on]);
            worst = fmax(worst, apart(out[0], out[1], 1));
            ops(0)->destroy(cache[0]);
            at++;
        }
        printf("%s of %s: outputs differ by %.2g\n", method.name, codecs[c], worst);
        assert_true(worst < allowed[c]);
        ops(1)->destroy(cache[1]);
    }
    unlink(path);
}

static void cut_where_nothing_was_dropped(void **state) {
    (void)state;
    struct method method = method_of("f16");
    struct terse_error error;
    struct cache *cache[2];
    make_numbers(20);
    for (int on = 0; on < 2; on++) {
        cache[on] = new_cache(on, &method);
        read_tokens(on, cache[on], CACHE_STEP_PREFILL, 0, 400, out[on]);
        for (size_t i = 400; i < 500; i++) read_tokens(on, cache[on], CACHE_STEP_DECODE, i, 1, out[on]);
        assert_int_equal(ops(on)->truncate(cache[on], 150, &error), TERSE_E_UNSUPPORTED);
        assert_non_null(strstr(error.message, "has evicted tokens"));
        MUST(ops(on)->truncate(cache[on], 420, &error));
        read_tokens(on, cache[on], CACHE_STEP_DECODE, 420, 1, out[on]);
    }
    assert_true(apart(out[0], out[1], 1) < HALVES);
    for (int on = 0; on < 2; on++) { /* and from the beginning */
        MUST(ops(on)->truncate(cache[on], 0, &error));
        read_tokens(on, cache[on], CACHE_STEP_PREFILL, 0, 150, out[on]);
        read_tokens(on, cache[on], CACHE_STEP_DECODE, 150, 1, out[on]);
        ops(on)->destroy(cache[on]);
    }
    assert_true(apart(out[0], out[1], 1) < HALVES);
}

static void bytes_are_as_foretold(void **state) {
    (void)state;
    static const char *const codecs[] = {"f16", "q8_0"};
    for (size_t c = 0; c < 2; c++) {
        struct method method = method_of(codecs[c]);
        struct terse_cache_report foretold, report, cpu;
        struct kv_budget budget = {.most = UINT64_MAX};
        struct terse_error error;
        struct cache *cache = new_cache(1, &method);
        make_numbers(30);
        MUST(ops(1)->limit(cache, &budget, &error));
        ops(1)->predict(&shape, &method, 700, &foretold);
        ops(0)->predict(&shape, &method, 700, &cpu);
        read_tokens(1, cache, CACHE_STEP_PREFILL, 0, 700, out[1]);
        ops(1)->report(cache, &report);
        assert_int_equal(report.resident, foretold.resident);
        assert_int_equal(report.resident, budget.used);
        assert_int_equal(report.kept, cpu.kept);
        ops(1)->destroy(cache);
        assert_int_equal(budget.used, 0);
    }
}

static void the_map_tells_what_was_kept(void **state) {
    (void)state;
    enum { PARTS = 16 };
    struct method method = method_of("f16");
    struct terse_token_share shares[2][PARTS];
    make_numbers(40);
    for (int on = 0; on < 2; on++) {
        struct cache *cache = new_cache(on, &method);
        read_tokens(on, cache, CACHE_STEP_PREFILL, 0, 640, out[on]);
        ops(on)->map(cache, shares[on], PARTS);
        ops(on)->destroy(cache);
    }
    for (size_t i = 0; i < PARTS; i++) assert_true(fabsf(shares[0][i].exact - shares[1][i].exact) < 0.02f);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    for (size_t i = 0; i < HD / 2; i++) frequency[i] = (float)pow(10000, -2.0 * (double)i / HD);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_best_are_kept), cmocka_unit_test(what_is_kept_is_read),
                                       cmocka_unit_test(cut_where_nothing_was_dropped), cmocka_unit_test(bytes_are_as_foretold),
                                       cmocka_unit_test(the_map_tells_what_was_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
