/* Caches whose steps choose what they read, on the GPU beside the CPU: steps of one token and of several after the same state give the same outputs,
 * as far as the CPU's bytes tell, which test_select holds to double precision; after a second prompt, forked, cut, saved; replayed as a graph; what is
 * refused; beside anchors by vote, which are the CPU's. test_select_tokens has the choice itself. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/ops.h"
#include "base/half.h"
#include "base/random.h"
#include "host_kv.h"
#include "no_device.h"
#include "support/cache_steps.h"
#include "support/one_cache.h"
#include "support/oracle_copies.h"
#include "support/oracle_runs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2, MOST = 64, HD_MOST = 256, G_MOST = 12, OUT_MOST = LAYERS * MOST * HEADS * G_MOST * HD_MOST };

/* Keys that score nearly alike may be chosen on one backend and not on the other, and so may whole rope runs of terse-N: a few outputs then differ by
 * more than `far` of their length. */
static const struct setting {
    const char *method, *key;
    double percent; /* 0: as the method's name says */
    uint32_t head_dim, group;
    double far;
    uint32_t anchors; /* by vote */
} settings[] = {{"terse-2", NULL, 10, 64, 3, 0.3, 0},      {"cq-1", NULL, 20, 64, 3, 0.1, 0},
                {"quest-200", NULL, 0, 64, 3, 0.02, 0},    {"quest-100", "q8_0", 0, 64, 1, 0.02, 0},
                {"selfindex-2", NULL, 0, 128, 4, 0.1, 0},  {"q4_0", NULL, 10, 64, 3, 0.1, 0},
                {"selfindex-16", NULL, 0, 64, 3, 0.1, 0},  {"selfindex-2", NULL, 20, 64, 12, 0.1, 0},
                {"selfindex-2", NULL, 20, 256, 2, 0.1, 0}, {"kivi-2", NULL, 20, 128, 3, 0.1, 0},
                {"selfindex-2", NULL, 20, 96, 1, 0.1, 0},  {"selfindex-16", NULL, 100, 64, 1, 0.1, 20},
                {"selfindex-2", NULL, 10, 64, 2, 0.1, 64}, {"quest-200", NULL, 0, 128, 4, 0.02, 0},
                {"quest-200", NULL, 0, 256, 2, 0.02, 0}};
enum { SETTINGS = sizeof settings / sizeof settings[0] };
#define FAR_MOST 0.05 /* of the outputs */

static struct oracle_setup setup_of(const struct setting *s, double percent) {
    return (struct oracle_setup){.kv = host_kv_ops(),
                                 .method = s->method,
                                 .key = s->key,
                                 .tail = 64,
                                 .layers = LAYERS,
                                 .query_heads = HEADS * s->group,
                                 .kv_heads = HEADS,
                                 .head_dim = s->head_dim,
                                 .pairing = s->group % 2 ? ROPE_HALF_SPLIT : ROPE_ADJACENT,
                                 .read_percent = percent,
                                 .anchor_count = s->anchors,
                                 .seed = s->head_dim};
}

/* A step has these numbers in all layers, of MOST tokens each: q[Hq][hd], k and v[Hk][hd] of a token. */
struct numbers {
    float q[OUT_MOST], k[OUT_MOST / G_MOST], v[OUT_MOST / G_MOST];
};

static void fill(struct oracle *o, struct numbers *numbers) {
    const size_t q = LAYERS * MOST * cache_shape_query_width(&o->shape), k = LAYERS * MOST * cache_shape_kv_width(&o->shape);
    for (size_t i = 0; i < q; i++) numbers->q[i] = oracle_random(o);
    for (size_t i = 0; i < k; i++) numbers->k[i] = oracle_random(o), numbers->v[i] = oracle_random(o);
}

static void step(const struct oracle *o, enum cache_step_kind kind, size_t n, const struct numbers *in, float *out) {
    step_cache(o->kv, o->cache, &o->shape, kind, n,
               &(struct step_rows){.k = in->k, .v = in->v, .q = in->q, .out = out, .apart = MOST});
}

/* A step of random tokens. Of a prompt that votes all queries are asked. */
static void read_tokens(struct oracle *o, enum cache_step_kind kind, size_t n) {
    const bool votes = kind == P && o->setup.anchor_count;
    const size_t floats = LAYERS * n * cache_shape_kv_width(&o->shape), queries = LAYERS * n * cache_shape_query_width(&o->shape);
    float *rows = malloc((2 * floats + queries) * sizeof *rows);
    assert_non_null(rows);
    for (size_t i = 0; i < 2 * floats + (votes ? queries : 0); i++) rows[i] = oracle_random(o);
    step_cache(o->kv, o->cache, &o->shape, kind, n,
               &(struct step_rows){.k = rows, .v = rows + floats, .q = votes ? rows + 2 * floats : NULL, .apart = n});
    o->length += n;
    free(rows);
}

/* Counts the heads' outputs of a step that differ by more than `far` of their length. */
static size_t count_far(const struct oracle *o, const float *a, const float *b, size_t n, double far) {
    const size_t hd = o->shape.head_dim, width = cache_shape_query_width(&o->shape);
    size_t count = 0;
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t head = 0; head < n * width / hd; head++) {
            const size_t at = layer * MOST * width + head * hd;
            double off = 0, length = 0;
            for (size_t c = at; c < at + hd; c++) {
                off += pow((double)a[c] - (double)b[c], 2);
                length += pow((double)b[c], 2);
            }
            count += !(off <= far * far * length);
        }
    return count;
}

/* Reads a prompt on both backends and compares the anchors that its last queries vote for, and older ones. */
static void compare_votes(struct oracle *gpu, struct oracle *cpu) {
    enum { PROMPT = 140, ANCHORS_MOST = 256 };
    const size_t n = cache_base_of(gpu->cache)->n_anchors + gpu->setup.anchor_count, sides = LAYERS * HEADS * 2;
    uint32_t tokens[2][ANCHORS_MOST];
    size_t differ = 0;
    read_tokens(gpu, P, PROMPT);
    read_tokens(cpu, P, PROMPT);
    for (uint32_t at = 0; at < sides; at++) {
        for (int i = 0; i < 2; i++) {
            struct cache *cache = i ? cpu->cache : gpu->cache;
            assert_true(cache_base_of(cache)->n_anchors == n && n <= ANCHORS_MOST);
            assert_true(cache_base_of(cache)->storage->anchor_tokens(cache, at / 2 / HEADS, at / 2 % HEADS,
                                                                     at % 2 ? CODEC_VALUES : CODEC_KEYS, tokens[i]));
        }
        for (size_t i = 0, j = 0; i < n; i++) {
            while (j < n && tokens[1][j] < tokens[0][i]) j++;
            differ += j == n || tokens[1][j] != tokens[0][i];
        }
    }
    print_message("%s: %zu of %zu anchors are not the CPU's\n", gpu->method.name, differ, sides * n);
    assert_true(differ * 50 <= sides * n);
}

/* Compares steps on both backends from a state on. */
static void compare_steps(struct oracle *o, const char *path, double far) {
    static const size_t counts[] = {3, 20, 1};
    static struct numbers in;
    static float outs[2][OUT_MOST];
    size_t differ = 0, all = 0;
    oracle_save(o, path);
    struct oracle *cpu = oracle_load(o, backend_cpu.kv, path, 1), *gpu = oracle_fork(o, 1);
    oracle_save(cpu, path);
    struct oracle *back = oracle_load(o, o->kv, path, 1);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        fill(o, &in);
        step(gpu, D, counts[i], &in, outs[0]);
        step(cpu, D, counts[i], &in, outs[1]);
        differ += count_far(o, outs[0], outs[1], counts[i], far), all += counts[i];
        if (i) continue;
        step(back, D, counts[i], &in, outs[0]); /* what has gone to the CPU and back */
        differ += count_far(o, outs[0], outs[1], counts[i], far), all += counts[i];
    }
    if (o->setup.anchor_count) { /* a prompt reads exact rows in place of codes, too */
        assert_true(cache_base_of(o->cache)->n_anchors >= o->setup.anchor_count);
        compare_votes(gpu, cpu);
        fill(o, &in);
        step(gpu, P, MOST, &in, outs[0]);
        step(cpu, P, MOST, &in, outs[1]);
        differ += count_far(o, outs[0], outs[1], MOST, far), all += MOST;
    }
    const double share = (double)differ / (double)(all * LAYERS * o->shape.query_heads);
    print_message("%s of %u channels, %zu tokens: %.3f of outputs are not the CPU's\n", o->method.name, o->shape.head_dim,
                  o->length, share);
    assert_true(share <= FAR_MOST);
    oracle_free_copy(cpu);
    oracle_free_copy(gpu);
    oracle_free_copy(back);
}

static void steps_are_the_cpus(void **state) {
    for (size_t m = 0; m < SETTINGS; m++) {
        const struct oracle_setup setup = setup_of(&settings[m], settings[m].percent);
        struct oracle *o = oracle_new(&setup, 2000);
        read_tokens(o, P, setup.anchor_count ? 330 : 1100);
        for (size_t i = 0; i < 3; i++) read_tokens(o, D, 50); /* what is generated is read whatever it scores */
        read_tokens(o, P, setup.anchor_count ? 100 : 200);
        compare_steps(o, *state, settings[m].far);
        if (setup.anchor_count) { /* the anchors of a part of a prompt are not as many in all heads */
            assert_int_equal(parts_truncate(o->cache, 200, NULL), TERSE_E_UNSUPPORTED);
            oracle_cut(o, 340);
            assert_int_equal(cache_base_of(o->cache)->n_anchors, setup.anchor_count);
        } else {
            oracle_cut(o, 900);
        }
        if (m % 3 == 0) compare_steps(o, *state, settings[m].far);
        oracle_free(o);
    }
}

/* Steps that choose and steps that do not read the same tokens here. */
static void few_tokens_are_read(void **state) {
    (void)state;
    static struct numbers in;
    static float outs[2][OUT_MOST];
    for (size_t m = 0; m < 5; m += 4) { /* selfindex-2 reads all by another share */
        size_t far = 0;
        for (int all = 0; all < 2; all++) {
            const struct oracle_setup setup = setup_of(&settings[m], !all ? settings[m].percent : m ? 100 : 0);
            struct oracle *o = oracle_new(&setup, 1100);
            read_tokens(o, P, 1100);
            fill(o, &in);
            step(o, D, 2, &in, outs[all]);
            if (all) far = count_far(o, outs[0], outs[1], 2, settings[m].far);
            oracle_free(o);
        }
        print_message("%s: %zu outputs are not those of all tokens\n", settings[m].method, far);
        assert_true((double)far > 5 * FAR_MOST * 2 * LAYERS * HEADS * settings[m].group);
    }
}

/* ---- Pages */

static char *section_of(const char *path, enum state_section section, size_t *n) {
    struct state_file *file;
    struct terse_error error;
    if (state_file_open(path, &file, &error)) fail_msg("%s", error.message);
    const void *data = state_file_section(file, section, n);
    char *to = malloc(*n + 1);
    assert_non_null(to);
    memcpy(to, data, *n);
    state_file_close(file);
    return to;
}

/* Writes to `path` a cache whose keys are halves and not rotated, so that both backends see the same numbers: of a prompt and pages that
 * are sealed later, or of such pages alone. */
static void save_halves(const struct kv_ops *kv, const struct oracle *o, bool prompt, const char *path) {
    enum { PROMPT = 700, AFTER = 64 };
    const size_t width = HEADS * o->shape.head_dim, n = (PROMPT + AFTER) * width;
    struct rope rope = o->rope;
    struct cache_shape shape = o->shape;
    struct cache *cache;
    struct terse_error error;
    uint64_t random = 7;
    float *k = malloc(n * sizeof *k), *v = malloc(n * sizeof *v);
    assert_true(k && v);
    for (size_t i = 0; i < n; i++) {
        const double x = random_uniform(random_next(&random)) - 0.5, mean = i % width % 5 * 0.25;
        k[i] = half_to_float(half_from_float((float)(4 * x * x * x + mean)));
        v[i] = half_to_float(half_from_float((float)random_uniform(random_next(&random)) - 0.5f));
    }
    rope.n_rot = 0;
    shape.rope = &rope;
    if (parts_create(kv->storage, &shape, &o->method, 1, &cache, &error)) fail_msg("%s", error.message);
    if (prompt) step_cache(kv, cache, &shape, P, PROMPT, &(struct step_rows){.k = k, .v = v});
    for (size_t at = prompt ? PROMPT : 0; at < PROMPT + AFTER; at += AFTER)
        step_cache(kv, cache, &shape, D, PROMPT + AFTER - at < AFTER ? PROMPT + AFTER - at : AFTER,
                   &(struct step_rows){.k = k + at * width, .v = v + at * width});
    cache_save_to(cache, path);
    parts_destroy(cache);
    free(k);
    free(v);
}

/* Codecs learn from a prompt what the processor learns, and all pages are the processor's, byte for byte. */
static void the_same_keys_make_the_same_pages(void **state) {
    static const char *const codecs[] = {"selfindex-2", "selfindex-16", "quest-64"};
    static const uint32_t head_dims[] = {64, 96, 128, 256};
    for (size_t m = 0; m < 3 * 4; m++) {
        struct oracle_setup setup = setup_of(&settings[0], 0);
        setup.method = codecs[m / 4], setup.head_dim = head_dims[m % 4], setup.layers = 1;
        struct oracle *o = oracle_new(&setup, 1);
        for (enum state_section section = STATE_PAGES;; section = STATE_FITTED) {
            size_t n[2];
            char *bytes[2];
            for (int on = 0; on < 2; on++) {
                save_halves(on ? backend_cpu.kv : host_kv_ops(), o, m % 2 == 0, *state);
                bytes[on] = section_of(*state, section, &n[on]);
            }
            assert_true(n[0] == n[1] && (n[0] > 0 || m >= 8));
            if (memcmp(bytes[0], bytes[1], n[0]))
                fail_msg("%s, %u channels: section %d", setup.method, setup.head_dim, (int)section);
            free(bytes[0]);
            free(bytes[1]);
            if (section == STATE_FITTED) break;
        }
        oracle_free(o);
    }
}

/* ---- Graphs */

static float *sent(float *to, const float *from, size_t floats) {
    if (!to) to = device_alloc(NULL, floats * sizeof *to, "a test", NULL);
    assert_non_null(to);
    assert_int_equal(device_send(to, from, floats * sizeof *to), cudaSuccess);
    return to;
}

/* A step's launches are recorded and replayed for the next one: the same kernels on the same memory choose other tokens. */
static void steps_are_replayed(void **state) {
    (void)state;
    static struct numbers in;
    static float alone[OUT_MOST], replayed[HEADS * G_MOST * HD_MOST];
    const struct oracle_setup setup = setup_of(&settings[0], settings[0].percent);
    struct oracle *o = oracle_new(&setup, 1200);
    const size_t qs = cache_shape_query_width(&o->shape), ks = cache_shape_kv_width(&o->shape);
    struct kv_batch batch = {&o->cache, 1, NULL};
    float *q = NULL, *k = NULL, *v = NULL;
    cudaGraph_t graph;
    cudaGraphExec_t launch = NULL;
    uint64_t key = 0;
    read_tokens(o, P, 1100);
    assert_int_equal(batch_new(&o->shape, &batch.memory, NULL), TERSE_OK);
    for (int i = 0; i < 3; i++) {
        struct oracle *fork = oracle_fork(o, 1);
        fill(o, &in);
        step(fork, D, 1, &in, alone);
        oracle_free_copy(fork);
        assert_int_equal(cuda_kv_ops.begin(o->cache, D, 1, NULL), TERSE_OK);
        assert_int_equal(cuda_kv_ops.join(&batch, NULL), TERSE_OK);
        q = sent(q, in.q, qs), k = sent(k, in.k, ks), v = sent(v, in.v, ks);
        if (!i) {
            const struct kv_rows rows = {.layer = 0, .count = 1, .k = k, .v = v, .q = q, .out = q};
            key = batch_key(batch.memory);
            assert_int_equal(cudaStreamBeginCapture(device_stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
            assert_int_equal(cuda_kv_ops.append(&batch, &rows, NULL), TERSE_OK);
            assert_int_equal(cuda_kv_ops.attend(&batch, &rows, NULL), TERSE_OK);
            assert_int_equal(cudaStreamEndCapture(device_stream(), &graph), cudaSuccess);
            assert_int_equal(cudaGraphInstantiate(&launch, graph, 0), cudaSuccess);
            assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
        }
        assert_true(batch_key(batch.memory) == key);
        assert_int_equal(cudaGraphLaunch(launch, device_stream()), cudaSuccess);
        assert_int_equal(device_fetch(replayed, q, qs * sizeof *q), cudaSuccess);
        assert_memory_equal(replayed, alone, qs * sizeof *q);
        assert_int_equal(cuda_kv_ops.commit(o->cache, NULL), TERSE_OK);
        o->length++;
    }
    assert_int_equal(cudaGraphExecDestroy(launch), cudaSuccess);
    batch_free(batch.memory);
    device_free(NULL, q, qs * sizeof *q);
    device_free(NULL, k, ks * sizeof *k);
    device_free(NULL, v, ks * sizeof *v);
    oracle_free(o);
}

static void what_is_not_chosen_is_refused(void **state) {
    (void)state;
    const struct oracle_setup setup = setup_of(&settings[0], settings[0].percent);
    struct oracle *o = oracle_new(&setup, 400);
    struct terse_error error;
    read_tokens(o, P, 300);
    static const struct {
        enum cache_step_kind kind;
        size_t n;
    } steps[] = {{D, 65}, {C, 10}};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(o->kv->begin(o->cache, steps[i].kind, steps[i].n, &error), TERSE_E_UNSUPPORTED);
        assert_non_null(strstr(error.message, "cannot choose"));
        assert_non_null(strstr(error.message, "--device cpu"));
    }
    read_tokens(o, D, 1);
    oracle_free(o);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(steps_are_the_cpus, make_state_path, remove_state_path),
        cmocka_unit_test_setup_teardown(the_same_keys_make_the_same_pages, make_state_path, remove_state_path),
        cmocka_unit_test(few_tokens_are_read), cmocka_unit_test(steps_are_replayed),
        cmocka_unit_test(what_is_not_chosen_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
