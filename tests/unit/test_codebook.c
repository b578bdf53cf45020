/* Codebooks and their files: what is learned comes back bit by bit, a file written by another program reads as documented, and a
 * codebook serves its own model and method alone. Damaged files: test_codebook_damage.c. Refused memory: test_codebook_memory.c. */
#include "backend/cpu/codec/codec.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/memory.h"
#include "format/codebook_private.h"
#include "gguf/gguf_writer.h"
#include "support/codebook_sample.h"
#include "support/prepared.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FIXTURE TESTS_DIR "/fixtures/llama.codebook"

static enum codec_side sides[2] = {CODEC_KEYS, CODEC_VALUES};

static struct terse_codebook *make(const struct codebook_info *info) {
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    if (codebook_sample_new(info, &codebook, &error)) fail_msg("%s", error.message);
    return codebook;
}

static struct terse_codebook *load(const void *file, size_t size) {
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    if (terse_codebook_load_memory(file, size, "a.codebook", &codebook, &error)) fail_msg("%s", error.message);
    return codebook;
}

/* ---- What is learned ------------------------------------------------------------------------------------------------------ */

static void same_info(const struct codebook_info *a, const struct codebook_info *b) {
    assert_string_equal(a->method, b->method);
    assert_memory_equal(&a->key, &b->key, sizeof a->key);
    assert_memory_equal(&a->value, &b->value, sizeof a->value);
    assert_int_equal(a->shared, b->shared);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_true(a->fingerprint == b->fingerprint && a->fingerprint_of == b->fingerprint_of);
    assert_string_equal(a->model, b->model);
    assert_string_equal(a->corpus, b->corpus);
    assert_true(a->tokens == b->tokens && a->seed == b->seed);
    assert_string_equal(a->weighting, b->weighting);
    assert_true(memcmp(&a->effective_samples, &b->effective_samples, sizeof(double)) == 0);
}

/* The bytes of a block of random rows, and the rows that it decodes to. */
static void use(const struct terse_codebook *codebook, enum codec_side side, uint32_t layer, uint32_t head, void *block,
                float *rows) {
    const struct codebook_info *info = codebook_info(codebook);
    struct codec_shape shape = codebook_shape(info, side);
    const struct codec *codec = codebook_coding(info, side).codec;
    shape.learned = prepared_learned(codebook, side, layer, head);
    assert_non_null(shape.learned);
    codebook_sample_fill(rows, PAGE_TOKENS * info->head_dim, 3);
    cpu_codec_of(codec)->encode(shape, side, rows, PAGE_TOKENS, block);
    cpu_codec_of(codec)->decode(shape, side, block, rows);
}

static void same_codebook(const struct terse_codebook *a, const struct terse_codebook *b) {
    static _Alignas(64) uint8_t blocks[2][PAGE_TOKENS * CODEC_HEAD_DIM_MAX * 2];
    static float rows[2][PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    const struct codebook_info *info = codebook_info(a);
    same_info(info, codebook_info(b));
    assert_true(cpu_codebook_bytes(a) == cpu_codebook_bytes(b)); /* prepared or not */
    for (int s = 0; s < 2; s++) {
        const struct codec *codec = codebook_coding(info, sides[s]).codec;
        for (uint32_t head = 0; head < info->layers * info->kv_heads; head++) {
            uint32_t layer = head / info->kv_heads;
            if (!codec) {
                assert_null(prepared_learned(a, sides[s], layer, head % info->kv_heads));
                assert_null(prepared_learned(b, sides[s], layer, head % info->kv_heads));
                continue;
            }
            size_t bytes = codec_page_bytes(codec, codebook_shape(info, sides[s]), sides[s]);
            assert_true(bytes <= sizeof blocks[0]);
            use(a, sides[s], layer, head % info->kv_heads, blocks[0], rows[0]);
            use(b, sides[s], layer, head % info->kv_heads, blocks[1], rows[1]);
            assert_memory_equal(blocks[0], blocks[1], bytes);
            assert_memory_equal(rows[0], rows[1], PAGE_TOKENS * info->head_dim * sizeof(float));
        }
    }
}

/* Made, written and loaded again it is the same, and so is its file. */
static void round_trip(const struct codebook_info *info) {
    struct terse_codebook *fresh = make(info), *loaded;
    size_t size, again_size;
    uint8_t *file = codebook_sample_build(fresh, &size);
    assert_non_null(file);
    loaded = load(file, size);
    same_codebook(fresh, loaded);
    uint8_t *again = codebook_sample_build(loaded, &again_size);
    assert_int_equal(size, again_size);
    assert_memory_equal(file, again, size);
    memory_free(file);
    memory_free(again);
    terse_codebook_free(fresh);
    terse_codebook_free(loaded);
}

static void test_round_trips(void **state) {
    (void)state;
    static const struct coding codings[] = {{.codec = &codec_vq, .width = 2, .bits = 8},
                                            {.codec = &codec_gain_shape, .width = 8, .bits = 8},
                                            {.codec = &codec_pq, .width = 2, .bits = 4},
                                            {.codec = &codec_pq, .width = 16, .bits = 10},
                                            {.codec = &codec_vq, .width = 32, .bits = 12},
                                            {.codec = &codec_pq, .width = 4, .bits = 5},
                                            {.codec = &codec_gain_shape, .width = 32, .bits = 4},
                                            {.codec = NULL},
                                            {.codec = &codec_q8_0}};
    enum { N = sizeof codings / sizeof *codings };
    struct codebook_info info = codebook_sample_info();
    round_trip(&info);
    for (size_t i = 0; i < N - 2; i++) {
        info.key = codings[i];
        info.value = codings[(i * 3 + 1) % N];
        info.shared = i % 3 == 1;
        info.layers = 1 + (uint32_t)i % 3;
        info.kv_heads = 3 - (uint32_t)i % 3;
        info.head_dim = i % 2 ? 128 : 64;
        round_trip(&info);
        info.value = info.key;
        info.key = codings[N - 2 + i % 2];
        round_trip(&info);
    }
}

/* A profile, whose fingerprint is of the norms. */
static void test_profile_round_trips(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *fresh, *loaded;
    struct terse_error error;
    size_t size, n;
    info.key = info.value = (struct coding){.codec = &codec_transform};
    info.fingerprint_of = CODEBOOK_OF_NORMS;
    if (codebook_random(&info, 16, true, &fresh, &error)) fail_msg("%s", error.message);
    uint8_t *file = codebook_sample_build(fresh, &size);
    loaded = load(file, size);
    same_info(codebook_info(fresh), codebook_info(loaded));
    assert_true(codebook_is_profile(codebook_info(loaded)));
    for (int i = 0; i < 4; i++) {
        n = codebook_part_floats(&info, sides[i / 2], CODEBOOK_CENTROIDS);
        assert_int_equal(n, 32 * 35 + 5);
        assert_memory_equal(codebook_halves(fresh, sides[i / 2], CODEBOOK_CENTROIDS, (size_t)i % 2),
                            codebook_halves(loaded, sides[i / 2], CODEBOOK_CENTROIDS, (size_t)i % 2), n * sizeof(uint16_t));
    }
    memory_free(file);
    terse_codebook_free(fresh);
    terse_codebook_free(loaded);
}

static struct terse_codebook *random_profile(void) {
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *profile;
    struct terse_error error;
    info.key = info.value = (struct coding){.codec = &codec_transform};
    if (codebook_random(&info, 16, true, &profile, &error)) fail_msg("%s", error.message);
    return profile;
}

/* A profile's file keeps what rates cost. That changes nothing else of it, and can be noted anew. */
static void test_rate_costs(void **state) {
    (void)state;
    static const struct terse_rate_cost costs[] = {{4, 0.002f, 0.0001f}, {1.5f, 0.04f, 0.002f}, {1, 0.08f, 0}};
    struct terse_codebook *profile = random_profile(), *loaded;
    struct terse_codebook_info info;
    struct terse_error error;
    size_t size;
    uint64_t hash = codebook_hash(profile);
    terse_codebook_describe(profile, &info);
    assert_int_equal(info.n_costs, 0);
    assert_int_equal(terse_codebook_set_rate_costs(profile, costs, 3, "some text", 2048, &error), TERSE_OK);
    assert_int_equal(codebook_hash(profile), hash);
    uint8_t *file = codebook_sample_build(profile, &size);
    loaded = load(file, size);
    terse_codebook_describe(loaded, &info);
    assert_int_equal(info.n_costs, 3);
    assert_memory_equal(info.costs, costs, sizeof costs);
    assert_string_equal(info.costs_corpus, "some text");
    assert_int_equal(info.costs_positions, 2048);
    assert_int_equal(terse_codebook_set_rate_costs(loaded, costs + 2, 1, "another", 7, &error), TERSE_OK);
    terse_codebook_describe(loaded, &info);
    assert_int_equal(info.n_costs, 1);
    assert_true(info.costs[0].bits == 1 && info.costs_positions == 7);
    memory_free(file);
    terse_codebook_free(profile);
    terse_codebook_free(loaded);
}

static void test_impossible_rate_costs(void **state) {
    (void)state;
    static const struct terse_rate_cost rising[] = {{2, 0.1f, 0}, {4, 0.1f, 0}}, negative[] = {{4, -0.1f, 0}},
                                        infinite[] = {{4, INFINITY, 0}}, nothing[] = {{0, 0.1f, 0}},
                                        many[TERSE_RATE_COSTS + 1] = {{9, 0, 0}, {8, 0, 0}, {7, 0, 0}, {6, 0, 0}, {5, 0, 0},
                                                                      {4, 0, 0}, {3, 0, 0}, {2, 0, 0}, {1, 0, 0}};
    static const struct {
        const struct terse_rate_cost *costs;
        size_t n;
    } cases[] = {{rising, 2}, {negative, 1}, {infinite, 1}, {nothing, 1}, {many, TERSE_RATE_COSTS + 1}};
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *profile = random_profile(), *other;
    struct terse_error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(terse_codebook_set_rate_costs(profile, cases[i].costs, cases[i].n, "", 1, &error), TERSE_E_ARGUMENT);
        assert_non_null(strstr(error.message, "falling order of bits"));
        if (cases[i].n > TERSE_RATE_COSTS) continue;
        /* A file that says the same is refused. */
        struct terse_codebook *hostile = profile, *loaded;
        size_t size;
        memcpy(hostile->info.costs, cases[i].costs, cases[i].n * sizeof *cases[i].costs);
        hostile->info.n_costs = cases[i].n;
        uint8_t *file = codebook_sample_build(hostile, &size);
        assert_int_equal(terse_codebook_load_memory(file, size, "hostile", &loaded, &error), TERSE_E_FORMAT);
        memory_free(file);
        hostile->info.n_costs = 0;
    }
    if (codebook_sample_new(&info, &other, &error)) fail_msg("%s", error.message);
    assert_int_equal(terse_codebook_set_rate_costs(other, negative, 0, "", 1, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "for a profile of terse-N"));
    terse_codebook_free(other);
    terse_codebook_free(profile);
}

/* The parameters reach the layer, the KV head and the side that they were given for, in the order
 * [layer][head][part][code][channel], rounded to half precision. */
static void test_order(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    enum { WIDTH = 8, CODES = 16, HEAD_DIM = 32, PART = WIDTH * CODES, SET = HEAD_DIM * CODES, LAYERS = 2, HEADS = 3 };
    static _Alignas(64) uint8_t block[PAGE_TOKENS * HEAD_DIM * 2];
    static float parameters[2][LAYERS * HEADS * SET], rows[PAGE_TOKENS * HEAD_DIM], decoded[PAGE_TOKENS * HEAD_DIM];
    struct terse_codebook *codebook;
    info.key = (struct coding){.codec = &codec_pq, .width = WIDTH, .bits = 4};
    info.value = (struct coding){.codec = &codec_vq, .width = WIDTH, .bits = 4};
    info.layers = LAYERS;
    info.kv_heads = HEADS;
    assert_int_equal(codebook_floats(&info, CODEC_KEYS), LAYERS * HEADS * SET);
    for (int s = 0; s < 2; s++) codebook_sample_fill(parameters[s], LAYERS * HEADS * SET, 7 + (uint64_t)s);
    assert_int_equal(codebook_new(&info, parameters[0], parameters[1], &codebook, NULL), TERSE_OK);
    for (int s = 0; s < 2; s++) {
        const struct codec *codec = s ? info.value.codec : info.key.codec;
        for (uint32_t set = 0; set < LAYERS * HEADS; set++) {
            struct codec_shape shape = codebook_shape(&info, sides[s]);
            shape.learned = prepared_learned(codebook, sides[s], set / HEADS, set % HEADS);
            for (int t = 0; t < PAGE_TOKENS; t++) /* token t: in part m the centroid t + m */
                for (int c = 0; c < HEAD_DIM; c++) {
                    int part = c / WIDTH, code = (t + part) % CODES;
                    float value = parameters[s][set * SET + (unsigned)(part * PART + code * WIDTH + c % WIDTH)];
                    rows[t * HEAD_DIM + c] = half_to_float(half_from_float(value));
                    assert_true(value != rows[t * HEAD_DIM + c]);
                }
            cpu_codec_of(codec)->encode(shape, sides[s], rows, PAGE_TOKENS, block);
            cpu_codec_of(codec)->decode(shape, sides[s], block, decoded);
            assert_memory_equal(rows, decoded, sizeof rows);
        }
    }
    terse_codebook_free(codebook);
}

/* The parameters that a codec keeps beside the centroids lie in a tensor of their own: parameters are [set][centroids, frame]. */
static void test_frames(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    enum { HEAD_DIM = 32, CENTROIDS = HEAD_DIM << 4, FRAME = HEAD_DIM + 1, SETS = 2 };
    static float parameters[SETS * (CENTROIDS + FRAME)];
    struct terse_codebook *codebook;
    struct gguf *gguf;
    size_t size;
    info.key = (struct coding){.codec = &codec_gain_shape, .width = 8, .bits = 4};
    info.value.codec = NULL;
    assert_int_equal(codebook_floats(&info, CODEC_KEYS), SETS * (CENTROIDS + FRAME));
    codebook_sample_fill(parameters, SETS * (CENTROIDS + FRAME), 5);
    for (int i = 0; i < SETS * (CENTROIDS + FRAME); i++) parameters[i] = fabsf(parameters[i]);
    assert_int_equal(codebook_new(&info, parameters, NULL, &codebook, NULL), TERSE_OK);
    void *file = codebook_sample_build(codebook, &size);
    assert_int_equal(gguf_open(file, size, "frames", &gguf, NULL), TERSE_OK);
    const struct gguf_tensor *centroids = gguf_find_tensor(gguf, "keys"), *frames = gguf_find_tensor(gguf, "keys.frame");
    assert_memory_equal(centroids->dims, ((uint64_t[]){8, 16, 4, SETS}), sizeof centroids->dims);
    assert_memory_equal(frames->dims, ((uint64_t[]){FRAME, SETS, 1, 1}), sizeof frames->dims);
    assert_int_equal(gguf_tensor_count(gguf), 2);
    const uint16_t *centroid = centroids->data, *frame = frames->data;
    for (int set = 0; set < SETS; set++)
        for (int i = 0; i < CENTROIDS + FRAME; i++) {
            uint16_t half = i < CENTROIDS ? centroid[set * CENTROIDS + i] : frame[set * FRAME + i - CENTROIDS];
            assert_int_equal(half, half_from_float(parameters[set * (CENTROIDS + FRAME) + i]));
        }
    gguf_free(gguf);
    memory_free(file);
    const size_t firsts[] = {0, 3, CENTROIDS - 1, CENTROIDS, CENTROIDS + 5, CENTROIDS + FRAME};
    for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
        const size_t first = firsts[f];
        float from[CENTROIDS + FRAME];
        for (size_t i = 0; i < CENTROIDS + FRAME; i++) from[i] = -1;
        codebook_parameters_from(codebook, CODEC_KEYS, 1, first, from);
        for (size_t i = 0; i < CENTROIDS + FRAME; i++) {
            const float own = half_to_float(half_from_float(parameters[CENTROIDS + FRAME + i]));
            assert_true(from[i] == (i < first ? -1 : own));
        }
    }
    terse_codebook_free(codebook);

    parameters[SETS * (CENTROIDS + FRAME) - 1] = -1; /* the codec has its say */
    assert_int_equal(codebook_new(&info, parameters, NULL, &codebook, NULL), TERSE_E_FORMAT);
    parameters[SETS * (CENTROIDS + FRAME) - 2] = NAN;
    struct terse_error error = {0};
    assert_int_equal(codebook_new(&info, parameters, NULL, &codebook, &error), TERSE_E_FORMAT);
    assert_non_null(strstr(error.message, "number 31 of the frame of layer 1"));
}

static void test_answers(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook_info shown;
    assert_null(prepared_learned(NULL, CODEC_KEYS, 0, 0));
    info.shared = true;
    info.kv_heads = 3;
    snprintf(info.model, sizeof info.model, "tab\t\x1b \xe2\x82\xac");
    memset(info.corpus, 'x', sizeof info.corpus);
    info.value.codec = NULL;
    assert_int_equal(codebook_floats(&info, CODEC_KEYS), 32 << 4);
    assert_int_equal(codebook_floats(&info, CODEC_VALUES), 0);
    struct terse_codebook *codebook = make(&info);
    terse_codebook_describe(codebook, &shown);
    assert_string_equal(shown.method, "sample-0.2");
    assert_string_equal(shown.model, "tab\\t\\x1b \xe2\x82\xac");
    assert_int_equal(strlen(shown.corpus), sizeof info.corpus - 1);
    assert_string_equal(shown.weighting, info.weighting);
    assert_true(shown.fingerprint == info.fingerprint && shown.tokens == info.tokens && shown.seed == info.seed && shown.shared);
    assert_true(shown.bytes == codebook_bytes(codebook) && shown.bytes > (32 << 4) * sizeof(uint16_t));
    const void *learned = prepared_learned(codebook, CODEC_KEYS, 0, 0);
    assert_non_null(learned);
    assert_ptr_equal(prepared_learned(codebook, CODEC_KEYS, 1, 2), learned);
    assert_null(prepared_learned(codebook, CODEC_VALUES, 0, 0));
    terse_codebook_free(codebook);
    terse_codebook_free(NULL);
    round_trip(&info);
}

static void refuses_new(const struct codebook_info *info, const char *words) {
    struct terse_error error = {0};
    struct terse_codebook *codebook;
    enum terse_status status = codebook_new(info, NULL, NULL, &codebook, &error); /* before it looks at the parameters */
    assert_true(status == TERSE_E_FORMAT || status == TERSE_E_UNSUPPORTED);
    assert_null(codebook);
    if (!strstr(error.message, words)) fail_msg("'%s' lacks '%s'", error.message, words);
}

static void test_impossible(void **state) {
    (void)state;
    static const uint32_t widths[] = {0, 3, 33, 64, UINT32_MAX}, bits[] = {0, 1, 3, 13, 16, 17, 32, 64, UINT32_MAX};
    static const uint32_t counts[] = {0, 5000, 1u << 31, UINT32_MAX};
    struct codebook_info good = codebook_sample_info(), info = good;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        info = good;
        info.key.width = widths[i];
        refuses_new(&info, "channels");
        info = good;
        info.value.width = widths[i];
        refuses_new(&info, "channels");
    }
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        info = good;
        info.value.bits = bits[i];
        refuses_new(&info, "bits");
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        info = good;
        info.layers = counts[i];
        refuses_new(&info, "layers");
        info = good;
        info.kv_heads = counts[i];
        refuses_new(&info, "KV heads");
        info = good;
        info.head_dim = counts[i];
        refuses_new(&info, "channels");
    }
    info = good;
    info.key = info.value = (struct coding){.codec = &codec_f16};
    refuses_new(&info, "neither keys nor values");
}

static void test_not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 65520, -1e30f};
    struct codebook_info info = codebook_sample_info();
    size_t n = codebook_floats(&info, CODEC_KEYS);
    float *floats = calloc(n, sizeof *floats);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct terse_codebook *codebook;
        struct terse_error error = {0};
        floats[n - 1 - i] = bad[i];
        assert_int_equal(codebook_new(&info, floats, floats, &codebook, &error), TERSE_E_FORMAT);
        assert_null(codebook);
        assert_non_null(strstr(error.message, "layer 1, KV head 0 in the codebook's keys"));
        floats[n - 1 - i] = 0;
    }
    free(floats);
}

/* ---- For which model and method ------------------------------------------------------------------------------------------- */

static void test_check(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *codebook = make(&info);
    struct terse_error error = {0};
    struct coding f16 = {.codec = &codec_f16, .width = 0, .bits = 0}, other = info.key, other_value = info.value;
    uint64_t f[CODEBOOK_FINGERPRINTS] = {info.fingerprint, 12345}, own = info.fingerprint;
    other.bits = 5;
    other_value.codec = &codec_vq;
    assert_int_equal(codebook_check(codebook, "sample-0.2", info.key, info.value, f, 2, 1, 32, &error), TERSE_OK);
    /* A side that the session keeps by a codec that learns nothing is not asked for. */
    assert_int_equal(codebook_check(codebook, "sample-0.2", f16, info.value, f, 2, 1, 32, &error), TERSE_OK);
    assert_int_equal(codebook_check(codebook, "sample-0.2", info.key, f16, f, 2, 1, 32, &error), TERSE_OK);

    const struct {
        const char *method;
        struct coding key, value;
        uint64_t fingerprint;
        uint32_t layers, kv_heads, head_dim;
        const char *words[3];
    } wrong[] = {
        {"sample-0.2", info.key, info.value, 0xabc, 2, 1, 32, {"'sample model'", "fedcba9876543210", "0000000000000abc"}},
        {"sample-1", info.key, info.value, own, 2, 1, 32, {"sample-0.2", "--kv sample-1", "terse calibrate"}},
        {"sample-0.2", info.key, info.value, own, 3, 1, 32, {"2 layers", "has 3, 1 and 32", "terse calibrate"}},
        {"sample-0.2", info.key, info.value, own, 2, 2, 32, {"1 KV head", "has 2, 2 and 32", ""}},
        {"sample-0.2", info.key, info.value, own, 2, 1, 64, {"32 channels", "has 2, 1 and 64", ""}},
        {"sample-0.2", other, info.value, own, 2, 1, 32, {"keys as vq of 32 channels and 4 bits", "vq of 32 and 5", ""}},
        {"sample-0.2", info.key, other_value, own, 2, 1, 32, {"values as pq", "vq of 16", ""}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(codebook_check(codebook, wrong[i].method, wrong[i].key, wrong[i].value,
                                        (uint64_t[]){wrong[i].fingerprint, info.fingerprint}, wrong[i].layers, wrong[i].kv_heads,
                                        wrong[i].head_dim, &error),
                         TERSE_E_ARGUMENT);
        for (int w = 0; w < 3; w++)
            if (!strstr(error.message, wrong[i].words[w])) fail_msg("'%s' lacks '%s'", error.message, wrong[i].words[w]);
        assert_null(strchr(error.message, '\n'));
    }
    terse_codebook_free(codebook);

    /* Learned whatever the weights' quantization: the other fingerprint counts. */
    info.fingerprint_of = CODEBOOK_OF_NORMS;
    codebook = make(&info);
    assert_int_equal(codebook_check(codebook, "sample-0.2", info.key, info.value, f, 2, 1, 32, &error), TERSE_E_ARGUMENT);
    f[CODEBOOK_OF_NORMS] = own;
    f[CODEBOOK_OF_WEIGHTS] = 0;
    assert_int_equal(codebook_check(codebook, "sample-0.2", info.key, info.value, f, 2, 1, 32, &error), TERSE_OK);
    terse_codebook_free(codebook);

    info.value.codec = NULL; /* only keys were learned */
    codebook = make(&info);
    assert_int_equal(codebook_check(codebook, "sample-0.2", info.key, f16, f, 2, 1, 32, &error), TERSE_OK);
    assert_int_equal(codebook_check(codebook, "sample-0.2", info.key, other_value, f, 2, 1, 32, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "values as nothing"));
    terse_codebook_free(codebook);
}

/* ---- Files ---------------------------------------------------------------------------------------------------------------- */

/* Written by a program that has nothing of terse but the page on the format: tests/fixtures/make_codebook.py. */
static void test_fixture(void **state) {
    (void)state;
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    if (terse_codebook_load(FIXTURE, &codebook, &error)) fail_msg("%s", error.message);
    const struct codebook_info *info = codebook_info(codebook);
    struct codebook_info wanted = {.method = "fixture",
                                   .key = {.codec = &codec_vq, .width = 8, .bits = 4},
                                   .value = {.codec = &codec_vq, .width = 8, .bits = 4},
                                   .layers = 2,
                                   .kv_heads = 2,
                                   .head_dim = 32,
                                   .fingerprint = info->fingerprint, /* test_fingerprint.c */
                                   .model = "llama",
                                   .corpus = "none",
                                   .tokens = UINT64_C(1) << 40,
                                   .seed = UINT64_MAX,
                                   .weighting = "none",
                                   .effective_samples = 0.1};
    same_info(info, &wanted);
    assert_int_equal(codebook_floats(info, CODEC_VALUES), 2048);
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < 2048; i++)
            assert_true(half_to_float(codebook->halves[s][CODEBOOK_CENTROIDS][i]) == (float)((i * 37 + 11 * s) % 1000 - 500) / 64);
    terse_codebook_free(codebook);
}

static void test_memory_need_not_be_aligned_or_stay(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *fresh = make(&info);
    size_t size;
    uint8_t *file = codebook_sample_build(fresh, &size), *moved = malloc(size + 33);
    for (int shift = 0; shift <= 33; shift += 11) {
        memcpy(moved + shift, file, size);
        struct terse_codebook *loaded = load(moved + shift, size);
        memset(moved, 0xff, size + 33);
        same_codebook(fresh, loaded);
        terse_codebook_free(loaded);
    }
    free(moved);
    memory_free(file);
    terse_codebook_free(fresh);
}

static void read_file(const char *path, uint8_t *bytes, size_t size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, size, file), size);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

static void test_save(void **state) {
    (void)state;
    char folder[] = P_tmpdir "/terse-test-codebook-XXXXXX", path[64], missing[96];
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *fresh = make(&info), *loaded;
    struct terse_error error = {0};
    size_t size;
    uint8_t *file = codebook_sample_build(fresh, &size), *saved = malloc(size);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.codebook", folder);
    for (int i = 0; i < 2; i++) { /* the second time over the first */
        assert_int_equal(terse_codebook_save(fresh, path, &error), TERSE_OK);
        read_file(path, saved, size);
        assert_memory_equal(file, saved, size);
    }
    assert_int_equal(terse_codebook_load(path, &loaded, &error), TERSE_OK);
    same_codebook(fresh, loaded);
    terse_codebook_free(loaded);

    unlink(path);
    snprintf(missing, sizeof missing, "%s/none/a.codebook", folder);
    assert_int_equal(terse_codebook_save(fresh, missing, &error), TERSE_E_IO);
    assert_int_equal(terse_codebook_load(missing, &loaded, &error), TERSE_E_IO);
    assert_null(loaded);
    assert_non_null(strstr(error.message, missing));
    assert_int_equal(terse_codebook_load(folder, &loaded, &error), TERSE_E_IO);
    assert_null(loaded);
    assert_int_equal(rmdir(folder), 0);
    free(saved);
    memory_free(file);
    terse_codebook_free(fresh);
}

/* ---- The hash ------------------------------------------------------------------------------------------------------------- */

/* From the reference implementation, libxxhash 0.8.1; the pieces it comes in do not matter. */
static void test_hash(void **state) {
    (void)state;
    static const struct {
        size_t n;
        uint64_t hash;
    } known[] = {{3, 0x9ff70a635a6209ab},
                 {31, 0x0f187c62b1e722b7},
                 {32, 0x91b0cb0931a8c629},
                 {33, 0x931b043cf8d65b94},
                 {100, 0x8e2272c08247d5db}};
    uint8_t data[100];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    XXH64_state_t empty;
    XXH64_reset(&empty, 0);
    assert_true(XXH64_digest(&empty) == 0xef46db3751d8e999);
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        for (size_t piece = 1; piece <= known[k].n; piece++) {
            XXH64_state_t hash;
            XXH64_reset(&hash, 0);
            for (size_t at = 0; at < known[k].n; at += piece)
                XXH64_update(&hash, data + at, known[k].n - at < piece ? known[k].n - at : piece);
            assert_true(XXH64_digest(&hash) == known[k].hash);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips), cmocka_unit_test(test_profile_round_trips),
        cmocka_unit_test(test_rate_costs),  cmocka_unit_test(test_impossible_rate_costs),
        cmocka_unit_test(test_order),       cmocka_unit_test(test_frames),
        cmocka_unit_test(test_answers),     cmocka_unit_test(test_impossible),
        cmocka_unit_test(test_not_finite),  cmocka_unit_test(test_check),
        cmocka_unit_test(test_fixture),     cmocka_unit_test(test_memory_need_not_be_aligned_or_stay),
        cmocka_unit_test(test_save),        cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
