/* Attention over the GPU's caches equals dense attention in double precision over the stored numbers, for every method, shape and way to
 * cut a sequence into steps, as tests/kv holds the CPU's to; a state saved on one of both goes on on the other. */
#include "backend/cuda/device.h"
#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/codec.h"
#include "host_kv.h"
#include "no_device.h"
#include "support/cache_oracle.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct test_step {
    enum cache_step_kind kind;
    size_t n, piece;
};

#define D CACHE_STEP_DECODE
#define P CACHE_STEP_PREFILL
#define C CACHE_STEP_CHUNK
#define Q CACHE_STEP_PAPER

/* The bound on differences of outputs, which are about 1 in size: keys, values and queries are halves, and kivi's queries are rounded once more with
 * its scales. Codes of transforms and centroids are the cache's own, decoded by the CPU; another test compares pages with the CPU's.
 * emulation/plant_faults.py shows which faults the bound finds. */
#define ALLOWED 6e-3

static void fetch(void *to, const void *from, size_t bytes) {
    cudaStreamSynchronize(device_stream());
    assert_int_equal(device_fetch(to, from, bytes), cudaSuccess);
}

static struct oracle_setup setup_of(const char *method, const char *key, const char *value, uint32_t tail, uint64_t seed) {
    return (struct oracle_setup){.kv = host_kv_ops(),
                                 .allowed = ALLOWED,
                                 .fetch = fetch,
                                 .method = method,
                                 .key = key,
                                 .value = value,
                                 .tail = tail,
                                 .layers = 2,
                                 .query_heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 64,
                                 .seed = seed};
}

static void run_steps(const struct oracle_setup *setup, const struct test_step *steps, size_t n_steps) {
    size_t tokens = 0;
    for (size_t i = 0; i < n_steps; i++) tokens += steps[i].n;
    struct oracle *o = oracle_new(setup, tokens);
    for (size_t i = 0; i < n_steps; i++) oracle_step(o, steps[i].kind, steps[i].n, steps[i].piece);
    assert_true(o->compared > 0);
    printf("%-16s tail %3u, heads of %3u, G %u: %.2g\n", o->method.name, setup->tail, setup->head_dim,
           setup->query_heads / setup->kv_heads, o->worst);
    oracle_free(o);
}

#define RUN(setup, ...) \
    run_steps(setup, (const struct test_step[]){__VA_ARGS__}, \
              sizeof((const struct test_step[]){__VA_ARGS__}) / sizeof(struct test_step))

static const char *const named[][3] = {{"f16", NULL, NULL},     {"q8_0", NULL, NULL},         {"q4_0", NULL, NULL},
                                       {"kivi-4", NULL, NULL},  {"kivi-2", NULL, NULL},       {"f16", "q8_0", "q4_0"},
                                       {"q4_0", "f16", "q8_0"}, {"q8_0", "kivi-4", "kivi-2"}, {"terse-4", NULL, NULL},
                                       {"terse-2", NULL, NULL}, {"million-4", NULL, NULL},    {"cq-1", NULL, NULL}};
#define NAMED (sizeof named / sizeof named[0])
static const char *methods[NAMED + CODEC_COUNT][3];
static size_t n_methods;

static bool has_row(const struct codec *codec) { return cuda_codec_of(codec->id); }

static void every_method_equals_dense_attention(void **state) {
    (void)state;
    static const uint32_t tails[] = {0, 32, 128};
    for (size_t m = 0; m < n_methods; m++)
        for (size_t t = 0; t < 3; t++) {
            struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], tails[t], m * 3 + t);
            const size_t prompt = tails[t] == 32 ? 330 : 130; /* beyond a rope run, or not */
            RUN(&setup, {P, prompt, 0}, {D, 1, 0}, {D, 1, 0}, {D, 5, 0}, {D, 17, 0}, {P, 70, 0}, {D, 62, 0}, {D, 1, 0});
        }
}

/* Sequences of more pages than a CTA's warps take are read in parts, which are merged. */
static void every_method_is_read_in_parts(void **state) {
    (void)state;
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], 0, m + 60);
        struct oracle *o = oracle_new(&setup, 1300);
        oracle_skip(o, P, 1290);
        oracle_step(o, D, 1, 0);
        oracle_step(o, D, 3, 0);
        oracle_free(o);
    }
}

static void many_single_steps(void **state) {
    (void)state;
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], 128, m + 40);
        struct oracle *o = oracle_new(&setup, 700);
        oracle_step(o, D, 1, 0);
        for (size_t i = 0; i < 400; i++) oracle_skip(o, D, 1);
        for (size_t i = 0; i < 70; i++) oracle_step(o, D, 1 + i % 3, 0);
        oracle_free(o);
    }
}

static void every_shape_equals_dense_attention(void **state) {
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 8}, head_dims[] = {64, 96, 128, 256};
    static const char *const some[] = {"f16", "q8_0", "cq-2", "terse-3"};
    for (size_t g = 0; g < 4; g++)
        for (size_t h = 0; h < 4; h++)
            for (int pairing = ROPE_ADJACENT; pairing <= ROPE_HALF_SPLIT; pairing++) {
                struct oracle_setup setup = setup_of(some[(g + h) % 4], NULL, NULL, 32, 100 + g * 10 + h);
                setup.query_heads = 2 * groups[g];
                setup.head_dim = head_dims[h];
                setup.pairing = (enum rope_pairing)pairing;
                RUN(&setup, {P, 297, 0}, {D, 1, 0}, {D, 3, 0}, {D, 20, 0}, {D, 1, 0});
            }
}

static void partial_rotation_and_magnitude(void **state) {
    (void)state;
    for (int pairing = ROPE_ADJACENT; pairing <= ROPE_HALF_SPLIT; pairing++) {
        struct oracle_setup setup = setup_of("f16", NULL, NULL, 0, 7);
        setup.n_rot = 48;
        setup.magnitude = 1.25f;
        setup.pairing = (enum rope_pairing)pairing;
        RUN(&setup, {P, 70, 0}, {D, 1, 0}, {D, 30, 0}, {D, 2, 0});
        setup.method = "streaming-40";
        RUN(&setup, {P, 30, 0}, {D, 1, 0}, {D, 30, 0}, {D, 2, 0}, {D, 1, 0});
    }
}

static void alibi_instead_of_rotation(void **state) {
    (void)state;
    static const char *const some[] = {"f16", "q8_0", "q4_0", "streaming-40"};
    for (size_t m = 0; m < 4; m++) {
        struct oracle_setup setup = setup_of(some[m], NULL, NULL, 0, 60 + m);
        setup.alibi = true;
        setup.query_heads = 6;
        RUN(&setup, {P, 30, 0}, {D, 1, 0}, {P, 130, 0}, {D, 3, 0}, {D, 1, 0}, {P, 70, 11});
    }
}

static void streaming_goes_on_without_end(void **state) {
    (void)state;
    static const char *const some[] = {"streaming-40", "streaming-100", "streaming-260"};
    for (size_t m = 0; m < 3; m++) {
        struct oracle_setup setup = setup_of(some[m], NULL, NULL, 0, 80 + m);
        struct oracle *o = oracle_new(&setup, 1500);
        oracle_step(o, P, 300, 0);
        for (size_t i = 0; i < 300; i++) (i % 10 ? oracle_skip(o, D, 1) : oracle_step(o, D, 1, 0));
        oracle_step(o, P, 90, 0);
        oracle_step(o, D, 1, 0);
        oracle_step(o, D, 40, 0);
        oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
}

static void chunks_and_the_papers_protocol(void **state) {
    (void)state;
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], 32, 200 + m);
        RUN(&setup, {C, 100, 0}, {C, 100, 0}, {C, 100, 7}, {D, 1, 0});
        RUN(&setup, {Q, 130, 0}, {Q, 70, 0}, {D, 1, 0}, {Q, 5, 0});
    }
}

/* ---- Cut, forked, saved */

static void cut(struct oracle *o, size_t n) {
    struct terse_error error;
    if (o->kv->truncate(o->cache, n, &error)) fail_msg("%s", error.message);
    assert_int_equal(o->kv->length(o->cache), n);
    o->length = n;
    if (o->window > n) o->window = n;
}

static void what_is_left_equals_dense_attention(void **state) {
    (void)state;
    static const size_t cuts[] = {299, 196, 132, 100, 5, 3};
    for (size_t m = 0; m < n_methods; m++)
        for (size_t c = 0; c < 6; c++) {
            struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], c % 2 ? 0 : 64, m * 10 + c);
            struct oracle *o = oracle_new(&setup, 700);
            oracle_skip(o, P, 290);
            for (size_t i = 0; i < 10; i++) oracle_skip(o, D, 1);
            cut(o, cuts[c]);
            oracle_step(o, D, 1, 0);
            oracle_step(o, D, 90, 0);
            cut(o, cuts[c] + 50);
            oracle_step(o, P, 150, 0);
            for (size_t i = 0; i < 5; i++) oracle_step(o, D, 1, 0);
            oracle_free(o);
        }
}

/* A second oracle of the same sequence with another cache. */
static struct oracle *copy_oracle(const struct oracle *from, struct cache *cache, const struct kv_ops *kv, uint64_t seed) {
    struct oracle *o = malloc(sizeof *o);
    size_t bytes = from->setup.layers * from->capacity * from->setup.kv_heads * from->setup.head_dim * sizeof *o->k;
    *o = *from;
    o->kv = kv;
    o->cache = cache;
    o->random = seed;
    o->k = memcpy(malloc(bytes), from->k, bytes);
    o->v = memcpy(malloc(bytes), from->v, bytes);
    return o;
}

static void free_copy(struct oracle *o) {
    o->kv->destroy(o->cache);
    free(o->k);
    free(o->v);
    free(o);
}

static void forks_go_their_own_ways(void **state) {
    (void)state;
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], m % 2 ? 0 : 64, m);
        struct oracle *a = oracle_new(&setup, 700);
        struct terse_error error;
        struct cache *fork;
        oracle_skip(a, P, 230);
        for (size_t i = 0; i < 40; i++) oracle_skip(a, D, 1);
        if (a->kv->fork(a->cache, &fork, &error)) fail_msg("%s", error.message);
        struct oracle *b = copy_oracle(a, fork, a->kv, 171);
        for (size_t i = 0; i < 70; i++) {
            oracle_step(a, D, 1, 0);
            oracle_step(b, D, 1, 0);
        }
        cut(b, 150); /* pages that the other holds go on to be its */
        oracle_step(b, P, 200, 0);
        oracle_step(a, D, 1, 0);
        cut(a, 0);
        oracle_step(a, P, 300, 0);
        oracle_step(b, D, 1, 0);
        free_copy(b);
        oracle_step(a, D, 1, 0);
        oracle_free(a);
    }
}

/* The cache's sections, with nothing before them. */
static void save(const struct oracle *o, const char *path) {
    struct state_writer *writer;
    struct terse_error error;
    if (state_writer_new(path, &writer, &error)) fail_msg("%s", error.message);
    for (int section = STATE_METHOD; section < STATE_CACHE; section++) state_writer_begin(writer, (enum state_section)section);
    o->kv->save(o->cache, writer);
    if (state_writer_finish(writer, &(struct state_identity){0}, &error)) fail_msg("%s", error.message);
}

static struct oracle *load(const struct oracle *from, const struct kv_ops *kv, const char *path) {
    struct state_file *file;
    struct terse_error error;
    struct cache *cache;
    if (kv->create(&from->shape, &from->method, 2, &cache, &error)) fail_msg("%s", error.message);
    if (state_file_open(path, &file, &error)) fail_msg("%s", error.message);
    if (kv->load(cache, file, &error)) fail_msg("%s", error.message);
    state_file_close(file);
    return copy_oracle(from, cache, kv, 181);
}

/* Bytes of sealed pages that are not the same in two files. */
static size_t different_bytes(const char *a, const char *b, size_t *n) {
    const char *const paths[] = {a, b};
    struct state_file *file[2];
    const unsigned char *pages[2];
    struct terse_error error;
    size_t bytes[2], different = 0;
    for (int i = 0; i < 2; i++) {
        if (state_file_open(paths[i], &file[i], &error)) fail_msg("%s", error.message);
        pages[i] = state_file_section(file[i], STATE_PAGES, &bytes[i]);
    }
    assert_int_equal(bytes[0], bytes[1]);
    for (size_t i = 0; i < bytes[0]; i++) different += pages[0][i] != pages[1][i];
    *n = bytes[0];
    for (int i = 0; i < 2; i++) state_file_close(file[i]);
    return different;
}

static void steps_seal_the_pages_of_the_cpu(void **state) {
    (void)state;
    static const char *const sealed[] = {"f16",     "q8_0",    "q4_0",      "kivi-4",    "kivi-2", "terse-4",
                                         "terse-2", "terse-1", "million-4", "million-3", "cq-1"};
    char path[2][32] = {"/tmp/terse-test-cache-XXXXXX", "/tmp/terse-test-cache-XXXXXX"};
    for (int i = 0; i < 2; i++) {
        int file = mkstemp(path[i]);
        assert_true(file >= 0);
        close(file);
    }
    for (size_t m = 0; m < sizeof sealed / sizeof sealed[0]; m++) {
        for (int i = 0; i < 2; i++) {
            struct oracle_setup setup = setup_of(sealed[m], NULL, NULL, 128, 500 + m);
            if (!i) setup.kv = NULL;
            struct oracle *o = oracle_new(&setup, 700);
            for (size_t t = 0; t < 470; t++) oracle_skip(o, D, 1);
            save(o, path[i]);
            oracle_free(o);
        }
        size_t n, different = different_bytes(path[0], path[1], &n);
        printf("%-16s %zu of %zu bytes of pages differ\n", sealed[m], different, n);
        assert_true(n > 0 && different <= n / 1000);
    }
    for (int i = 0; i < 2; i++) unlink(path[i]);
}

static void states_go_on_on_the_other_backend(void **state) {
    (void)state;
    char path[] = "/tmp/terse-test-cache-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (size_t m = 0; m < n_methods; m++) {
        for (int from_cpu = 0; from_cpu < 2; from_cpu++) {
            struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], 64, 300 + m);
            if (from_cpu) setup.kv = NULL;
            setup.allowed = fmax(setup.allowed, 8e-2); /* of the CPU's kernels, too */
            struct oracle *a = oracle_new(&setup, 900);
            oracle_skip(a, P, 230);
            for (size_t i = 0; i < 40; i++) oracle_skip(a, D, 1);
            save(a, path);
            struct oracle *b = load(a, from_cpu ? host_kv_ops() : backend_cpu.kv, path);
            for (size_t i = 0; i < 70; i++) oracle_step(b, D, 1, 0);
            oracle_step(b, P, 100, 0);
            oracle_step(b, D, 1, 0);
            save(b, path);
            struct oracle *c = load(b, b->kv, path);
            oracle_step(c, D, 1, 0);
            free_copy(c);
            free_copy(b);
            oracle_free(a);
        }
    }
    unlink(path);
}

/* A file has exact keys as they were before rotation, and so without RoPE's magnitude. */
static void exact_keys_are_saved_without_a_magnitude(void **state) {
    (void)state;
    char path[] = "/tmp/terse-test-cache-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (int from_cpu = 0; from_cpu < 2; from_cpu++) {
        struct oracle_setup setup = setup_of("q8_0", NULL, NULL, 64, 800);
        if (from_cpu) setup.kv = NULL;
        setup.magnitude = 1.25f;
        struct oracle *a = oracle_new(&setup, 50);
        oracle_skip(a, P, 20);
        save(a, path);
        struct oracle *b = load(a, from_cpu ? host_kv_ops() : backend_cpu.kv, path);
        oracle_step(b, D, 1, 0);
        free_copy(b);
        oracle_free(a);
    }
    unlink(path);
}

/* A whole file, to be freed. */
static char *contents(const char *path, size_t *n) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *n = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*n);
    assert_int_equal(fread(data, 1, *n, file), *n);
    fclose(file);
    return data;
}

static void saving_leaves_all_as_it_was(void **state) {
    (void)state;
    char path[] = "/tmp/terse-test-cache-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], 64, 600 + m);
        setup.magnitude = 1.25f;
        struct oracle *o = oracle_new(&setup, 400);
        char *saved[2];
        size_t n[2];
        oracle_skip(o, P, 230);
        for (size_t i = 0; i < 40; i++) oracle_skip(o, D, 1);
        for (int i = 0; i < 2; i++) {
            save(o, path);
            saved[i] = contents(path, &n[i]);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(saved[0], saved[1], n[0]);
        for (int i = 0; i < 2; i++) free(saved[i]);
        oracle_step(o, D, 1, 0);
        oracle_free(o);
    }
    unlink(path);
}

struct saving {
    const struct oracle *oracle;
    const char *path;
};

static void *save_there(void *user) {
    const struct saving *saving = user;
    save(saving->oracle, saving->path);
    return NULL;
}

/* Steps of other caches may be captured meanwhile: nothing of the saving is to become a part of them. */
static void saving_on_another_thread_is_no_part_of_a_step(void **state) {
    (void)state;
    char path[] = "/tmp/terse-test-cache-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], 64, 700 + m);
        struct oracle *o = oracle_new(&setup, 400);
        struct saving saving = {o, path};
        char *saved[2];
        size_t n[2];
        cudaGraph_t graph;
        pthread_t thread;
        oracle_skip(o, P, 230);
        save(o, path);
        saved[0] = contents(path, &n[0]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(cudaStreamBeginCapture(device_stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
        assert_int_equal(pthread_create(&thread, NULL, save_there, &saving), 0);
        pthread_join(thread, NULL);
        assert_int_equal(cudaStreamEndCapture(device_stream(), &graph), cudaSuccess);
        assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
        saved[1] = contents(path, &n[1]);
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(saved[0], saved[1], n[0]);
        for (int i = 0; i < 2; i++) free(saved[i]);
        oracle_free(o);
    }
    unlink(path);
}

/* ---- Keys of steps, by which graphs are found */

/* Returns the key of a decoding step of a cache that comes and goes: the tables of the next may lie where its own did. */
static uint64_t key_of_a_step(struct batch_memory *batch, const char *method) {
    struct oracle_setup setup = setup_of(method, NULL, NULL, 64, 900);
    struct oracle *o = oracle_new(&setup, 400);
    oracle_skip(o, P, 230);
    assert_int_equal(host_kv_ops()->begin(o->cache, D, 1, NULL), TERSE_OK);
    assert_int_equal(batch_begin(batch, &o->cache, 1, NULL), TERSE_OK);
    uint64_t key = batch_key(batch);
    oracle_free(o);
    return key;
}

static void keys_of_steps_differ_with_what_they_read(void **state) {
    (void)state;
    struct oracle_setup setup = setup_of("f16", NULL, NULL, 64, 900);
    struct oracle *o = oracle_new(&setup, 400);
    struct batch_memory *batch;
    uint64_t key[8];
    assert_int_equal(batch_new(&o->shape, &batch, NULL), TERSE_OK);
    oracle_free(o);
    key_of_a_step(batch, "terse-2"); /* which needs the most memory */
    for (size_t n = 0; n < 8; n++) {
        key[n] = key_of_a_step(batch, n % 4 == 3 ? "terse-2" : "f16");
        for (size_t i = 0; i < n; i++) assert_true(key[i] != key[n]);
    }
    batch_free(batch);
}

/* ---- Memory */

static void what_is_foretold_is_allocated(void **state) {
    (void)state;
    for (size_t m = 0; m < n_methods; m++) {
        struct oracle_setup setup = setup_of(methods[m][0], methods[m][1], methods[m][2], 128, 400 + m);
        struct terse_cache_report foretold, report;
        struct terse_error error;
        struct kv_budget budget = {.most = UINT64_MAX};
        struct oracle *o = oracle_new(&setup, 1000);
        if (o->kv->limit(o->cache, &budget, &error)) fail_msg("%s", error.message);
        o->kv->predict(&o->shape, &o->method, 1000, &foretold);
        oracle_skip(o, P, 1000);
        o->kv->report(o->cache, &report);
        assert_int_equal(report.resident, foretold.resident);
        assert_int_equal(report.resident, budget.used);
        oracle_free(o);
        assert_int_equal(budget.used, 0);
    }
}

static void a_budget_that_is_spent_refuses(void **state) {
    (void)state;
    struct oracle_setup setup = setup_of("q4_0", NULL, NULL, 128, 1);
    struct kv_budget budget = {.most = 400000};
    struct terse_error error;
    struct oracle *o = oracle_new(&setup, 5000);
    if (o->kv->limit(o->cache, &budget, &error)) fail_msg("%s", error.message);
    oracle_skip(o, P, 300);
    assert_int_equal(o->kv->begin(o->cache, P, 4000, &error), TERSE_E_MEMORY);
    oracle_step(o, D, 1, 0); /* nothing is lost */
    oracle_free(o);
}

static void what_cannot_be_computed_is_refused(void **state) {
    (void)state;
    static const char *const some[] = {"antkv-1", "commvq-2", "mat-256", "quest-16", "selfindex-2"};
    const struct cache_shape shape = {.layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .scale = 1};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        struct terse_cache_options options = {.method = some[i], .anchor_percent = -1};
        struct method method;
        struct terse_error error;
        if (method_resolve(&options, 64, &method, &error)) fail_msg("%s", error.message);
        assert_int_equal(host_kv_ops()->supports(&shape, &method, &error), TERSE_E_UNSUPPORTED);
        assert_non_null(strstr(error.message, "--device cpu"));
    }
}

/* test_cuda_cache [PATTERN]: the tests whose names match. */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (no_device()) return NO_DEVICE_STATUS;
    n_methods = oracle_methods(named, NAMED, has_row, methods);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_method_equals_dense_attention),
                                       cmocka_unit_test(every_method_is_read_in_parts),
                                       cmocka_unit_test(many_single_steps),
                                       cmocka_unit_test(every_shape_equals_dense_attention),
                                       cmocka_unit_test(partial_rotation_and_magnitude),
                                       cmocka_unit_test(alibi_instead_of_rotation),
                                       cmocka_unit_test(streaming_goes_on_without_end),
                                       cmocka_unit_test(chunks_and_the_papers_protocol),
                                       cmocka_unit_test(what_is_left_equals_dense_attention),
                                       cmocka_unit_test(forks_go_their_own_ways),
                                       cmocka_unit_test(steps_seal_the_pages_of_the_cpu),
                                       cmocka_unit_test(states_go_on_on_the_other_backend),
                                       cmocka_unit_test(exact_keys_are_saved_without_a_magnitude),
                                       cmocka_unit_test(saving_leaves_all_as_it_was),
                                       cmocka_unit_test(saving_on_another_thread_is_no_part_of_a_step),
                                       cmocka_unit_test(keys_of_steps_differ_with_what_they_read),
                                       cmocka_unit_test(what_is_foretold_is_allocated),
                                       cmocka_unit_test(a_budget_that_is_spent_refuses),
                                       cmocka_unit_test(what_cannot_be_computed_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
