/* Caches whose steps choose what they read, on the GPU beside the CPU: steps of one token and of several after the same state give the same outputs,
 * as far as the CPU's bytes tell, which test_select holds to double precision; after a second prompt, forked, cut, saved; replayed as a graph; what is
 * refused. test_select_tokens has the choice itself. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/ops.h"
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

enum { LAYERS = 2, HEADS = 2, QUERY_HEADS = 6, HD = 64, MOST = 64, QS = QUERY_HEADS * HD, KV = HEADS * HD };

static const struct {
    const char *method, *key;
    double percent; /* 0: as the method's name says */
} methods[] = {{"terse-2", NULL, 10}, {"terse-4", NULL, 30}, {"quest-200", NULL, 0}, {"quest-100", "q8_0", 0}};
enum { METHODS = sizeof methods / sizeof methods[0] };

static struct oracle_setup setup_of(size_t m, double percent) {
    return (struct oracle_setup){.kv = host_kv_ops(),
                                 .method = methods[m].method,
                                 .key = methods[m].key,
                                 .tail = 64,
                                 .layers = LAYERS,
                                 .query_heads = QUERY_HEADS,
                                 .kv_heads = HEADS,
                                 .head_dim = HD,
                                 .pairing = m % 2 ? ROPE_HALF_SPLIT : ROPE_ADJACENT,
                                 .read_percent = percent,
                                 .seed = m};
}

struct numbers {
    float q[LAYERS][MOST * QS], k[LAYERS][MOST * KV], v[LAYERS][MOST * KV];
};

static void fill(struct oracle *o, struct numbers *numbers) {
    float *all = numbers->q[0];
    for (size_t i = 0; i < sizeof *numbers / sizeof(float); i++) all[i] = oracle_random(o);
}

static void step(const struct kv_ops *kv, struct cache *cache, const struct oracle *o, size_t n, const struct numbers *in,
                 float (*out)[MOST * QS]) {
    step_cache(kv, cache, &o->shape, D, n,
               &(struct step_rows){.k = in->k[0], .v = in->v[0], .q = in->q[0], .out = out[0], .apart = MOST});
}

/* Returns the share of the heads' outputs that differ by more than FAR of their length. */
#define FAR 0.3
#define FAR_MOST 0.05
static double share_far(float (*const both[2])[MOST * QS], size_t n) {
    size_t far = 0;
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t at = 0; at < n * QS; at += HD) {
            double off = 0, length = 0;
            for (size_t c = at; c < at + HD; c++) {
                off += pow((double)both[0][layer][c] - (double)both[1][layer][c], 2);
                length += pow((double)both[1][layer][c], 2);
            }
            far += !(off <= FAR * FAR * length);
        }
    return (double)(far * HD) / (double)(LAYERS * n * QS);
}

/* Compares steps on both backends from a state on. Random keys score nearly alike: here and there the two choose another token, or the tokens of
 * another rope run; a few outputs then differ. */
static void compare_steps(struct oracle *o, const char *path) {
    static const size_t counts[] = {3, 20, 1};
    static struct numbers in;
    static float outs[2][LAYERS][MOST * QS];
    float(*const both[2])[MOST * QS] = {outs[0], outs[1]};
    double far = 0, all = 0;
    oracle_save(o, path);
    struct oracle *cpu = oracle_load(o, backend_cpu.kv, path, 1), *gpu = oracle_fork(o, 1);
    oracle_save(cpu, path);
    struct oracle *back = oracle_load(o, o->kv, path, 1);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        fill(o, &in);
        step(gpu->kv, gpu->cache, o, counts[i], &in, outs[0]);
        step(cpu->kv, cpu->cache, o, counts[i], &in, outs[1]);
        far += (double)counts[i] * share_far(both, counts[i]), all += (double)counts[i];
        if (i) continue;
        step(back->kv, back->cache, o, counts[i], &in, outs[0]); /* what has gone to the CPU and back */
        far += (double)counts[i] * share_far(both, counts[i]), all += (double)counts[i];
    }
    print_message("%s of %zu tokens: %.3f of outputs are not the CPU's\n", o->method.name, o->length, far / all);
    assert_true(far / all <= FAR_MOST);
    oracle_free_copy(cpu);
    oracle_free_copy(gpu);
    oracle_free_copy(back);
}

static void steps_are_the_cpus(void **state) {
    for (size_t m = 0; m < METHODS; m++) {
        const struct oracle_setup setup = setup_of(m, methods[m].percent);
        struct oracle *o = oracle_new(&setup, 2000);
        oracle_skip(o, P, 1100);
        if (m % 2 == 0) compare_steps(o, *state);
        for (size_t i = 0; i < 3; i++) oracle_skip(o, D, 50); /* what is generated is read whatever it scores */
        oracle_skip(o, P, 200);
        compare_steps(o, *state);
        oracle_cut(o, 900);
        if (m % 2) compare_steps(o, *state);
        oracle_free(o);
    }
}

/* The same tokens read by steps that choose and by steps that do not. */
static void few_tokens_are_read(void **state) {
    (void)state;
    static struct numbers in;
    static float outs[2][LAYERS][MOST * QS];
    float(*const both[2])[MOST * QS] = {outs[0], outs[1]};
    for (int all = 0; all < 2; all++) {
        const struct oracle_setup setup = setup_of(0, all ? 0 : methods[0].percent);
        struct oracle *o = oracle_new(&setup, 1100);
        oracle_skip(o, P, 1100);
        fill(o, &in);
        step(o->kv, o->cache, o, 2, &in, outs[all]);
        oracle_free(o);
    }
    print_message("%.3f of outputs are not those of all tokens\n", share_far(both, 2));
    assert_true(share_far(both, 2) > 5 * FAR_MOST);
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
    static float alone[LAYERS][MOST * QS], replayed[QS];
    const struct oracle_setup setup = setup_of(0, methods[0].percent);
    struct oracle *o = oracle_new(&setup, 1200);
    struct kv_batch batch = {&o->cache, 1, NULL};
    float *q = NULL, *k = NULL, *v = NULL;
    cudaGraph_t graph;
    cudaGraphExec_t launch = NULL;
    uint64_t key = 0;
    oracle_skip(o, P, 1100);
    assert_int_equal(batch_new(&o->shape, &batch.memory, NULL), TERSE_OK);
    for (int i = 0; i < 3; i++) {
        struct oracle *fork = oracle_fork(o, 1);
        fill(o, &in);
        step(o->kv, fork->cache, o, 1, &in, alone);
        oracle_free_copy(fork);
        assert_int_equal(cuda_kv_ops.begin(o->cache, D, 1, NULL), TERSE_OK);
        assert_int_equal(cuda_kv_ops.join(&batch, NULL), TERSE_OK);
        q = sent(q, in.q[0], QS), k = sent(k, in.k[0], KV), v = sent(v, in.v[0], KV);
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
        assert_int_equal(device_fetch(replayed, q, sizeof replayed), cudaSuccess);
        assert_memory_equal(replayed, alone[0], sizeof replayed);
        assert_int_equal(cuda_kv_ops.commit(o->cache, NULL), TERSE_OK);
        o->length++;
    }
    assert_int_equal(cudaGraphExecDestroy(launch), cudaSuccess);
    batch_free(batch.memory);
    device_free(NULL, q, QS * sizeof *q);
    device_free(NULL, k, KV * sizeof *k);
    device_free(NULL, v, KV * sizeof *v);
    oracle_free(o);
}

static void what_is_not_chosen_is_refused(void **state) {
    (void)state;
    const struct oracle_setup setup = setup_of(0, methods[0].percent);
    struct oracle *o = oracle_new(&setup, 400);
    struct terse_error error;
    oracle_skip(o, P, 300);
    static const struct {
        enum cache_step_kind kind;
        size_t n;
    } steps[] = {{D, 65}, {C, 10}};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(o->kv->begin(o->cache, steps[i].kind, steps[i].n, &error), TERSE_E_UNSUPPORTED);
        assert_non_null(strstr(error.message, "cannot choose"));
        assert_non_null(strstr(error.message, "--device cpu"));
    }
    oracle_skip(o, D, 1);
    oracle_free(o);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(steps_are_the_cpus, make_state_path, remove_state_path),
                                       cmocka_unit_test(few_tokens_are_read), cmocka_unit_test(steps_are_replayed),
                                       cmocka_unit_test(what_is_not_chosen_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
