/* Codebooks and their files: what is learned comes back bit by bit, a file written by another program reads as documented, and
 * whatever is damaged, foreign or impossible is refused in one line. Refused memory: test_codebook_memory.c. */
#include "base/gguf_writer.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/memory.h"
#include "codec/codebook_private.h"
#include "support/codebook_sample.h"

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

/* One line that begins with the file's name. */
static void check_message(const struct terse_error *error, enum terse_status status, const char *words) {
    assert_int_equal(error->code, status);
    assert_int_equal(strncmp(error->message, "bad.codebook: ", 14), 0);
    assert_null(strpbrk(error->message, "\n\r\x1b"));
    if (strstr(error->message + 14, "bad.codebook")) fail_msg("'%s' names the file twice", error->message);
    if (words && !strstr(error->message, words)) fail_msg("'%s' lacks '%s'", error->message, words);
}

/* From a copy of exactly `size` bytes, so that a memory checker sees a read past the end. */
static enum terse_status load_copy(const void *data, size_t size, struct terse_codebook **codebook, struct terse_error *error) {
    uint8_t *copy = memory_array(size, 1);
    assert_non_null(copy);
    if (size) memcpy(copy, data, size);
    enum terse_status status = terse_codebook_load_memory(copy, size, "bad.codebook", codebook, error);
    assert_int_equal(*codebook != NULL, status == TERSE_OK);
    memory_free(copy);
    return status;
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
    assert_true(a->fingerprint == b->fingerprint);
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
    shape.learned = codebook_learned(codebook, side, layer, head);
    assert_non_null(shape.learned);
    codebook_sample_fill(rows, BLOCK_TOKENS * info->head_dim, 3);
    codec->encode(shape, side, rows, BLOCK_TOKENS, block);
    codec->decode(shape, side, block, rows);
}

static void same_codebook(const struct terse_codebook *a, const struct terse_codebook *b) {
    static _Alignas(64) uint8_t blocks[2][BLOCK_TOKENS * CODEC_HEAD_DIM_MAX * 2];
    static float rows[2][BLOCK_TOKENS * CODEC_HEAD_DIM_MAX];
    const struct codebook_info *info = codebook_info(a);
    same_info(info, codebook_info(b));
    assert_true(codebook_bytes(a) == codebook_bytes(b));
    for (int s = 0; s < 2; s++) {
        const struct codec *codec = codebook_coding(info, sides[s]).codec;
        for (uint32_t head = 0; head < info->layers * info->kv_heads; head++) {
            uint32_t layer = head / info->kv_heads;
            if (!codec) {
                assert_null(codebook_learned(a, sides[s], layer, head % info->kv_heads));
                assert_null(codebook_learned(b, sides[s], layer, head % info->kv_heads));
                continue;
            }
            size_t bytes = codec->block_bytes(codebook_shape(info, sides[s]), sides[s]);
            assert_true(bytes <= sizeof blocks[0]);
            use(a, sides[s], layer, head % info->kv_heads, blocks[0], rows[0]);
            use(b, sides[s], layer, head % info->kv_heads, blocks[1], rows[1]);
            assert_memory_equal(blocks[0], blocks[1], bytes);
            assert_memory_equal(rows[0], rows[1], BLOCK_TOKENS * info->head_dim * sizeof(float));
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
    static const struct coding codings[] = {
        {&codec_vq, 2, 8}, {&codec_gain_shape, 8, 8},  {&codec_pq, 2, 4}, {&codec_pq, 16, 10}, {&codec_vq, 32, 12},
        {&codec_pq, 4, 5}, {&codec_gain_shape, 32, 4}, {NULL, 0, 0},      {&codec_q8_0, 0, 0}};
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

/* The parameters reach the layer, the KV head and the side that they were given for, in the order [layer][head][part][code][channel],
 * rounded to half precision. */
static void test_order(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    enum { WIDTH = 8, CODES = 16, HEAD_DIM = 32, PART = WIDTH * CODES, SET = HEAD_DIM * CODES, LAYERS = 2, HEADS = 3 };
    static _Alignas(64) uint8_t block[BLOCK_TOKENS * HEAD_DIM * 2];
    static float parameters[2][LAYERS * HEADS * SET], rows[BLOCK_TOKENS * HEAD_DIM], decoded[BLOCK_TOKENS * HEAD_DIM];
    struct terse_codebook *codebook;
    info.key = (struct coding){&codec_pq, WIDTH, 4};
    info.value = (struct coding){&codec_vq, WIDTH, 4};
    info.layers = LAYERS;
    info.kv_heads = HEADS;
    assert_int_equal(codebook_floats(&info, CODEC_KEYS), LAYERS * HEADS * SET);
    for (int s = 0; s < 2; s++) codebook_sample_fill(parameters[s], LAYERS * HEADS * SET, 7 + (uint64_t)s);
    assert_int_equal(codebook_new(&info, parameters[0], parameters[1], &codebook, NULL), TERSE_OK);
    for (int s = 0; s < 2; s++) {
        const struct codec *codec = s ? info.value.codec : info.key.codec;
        for (uint32_t set = 0; set < LAYERS * HEADS; set++) {
            struct codec_shape shape = codebook_shape(&info, sides[s]);
            shape.learned = codebook_learned(codebook, sides[s], set / HEADS, set % HEADS);
            for (int t = 0; t < BLOCK_TOKENS; t++) /* token t: in part m the centroid t + m */
                for (int c = 0; c < HEAD_DIM; c++) {
                    int part = c / WIDTH, code = (t + part) % CODES;
                    float value = parameters[s][set * SET + (unsigned)(part * PART + code * WIDTH + c % WIDTH)];
                    rows[t * HEAD_DIM + c] = half_to_float(half_from_float(value));
                    assert_true(value != rows[t * HEAD_DIM + c]);
                }
            codec->encode(shape, sides[s], rows, BLOCK_TOKENS, block);
            codec->decode(shape, sides[s], block, decoded);
            assert_memory_equal(rows, decoded, sizeof rows);
        }
    }
    terse_codebook_free(codebook);
}

/* What a codec keeps beside the centroids lies in a tensor of its own: parameters are [set][centroids, frame]. */
static void test_frames(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    enum { HEAD_DIM = 32, CENTROIDS = HEAD_DIM << 4, FRAME = HEAD_DIM + 1, SETS = 2 };
    static float parameters[SETS * (CENTROIDS + FRAME)];
    struct terse_codebook *codebook;
    struct gguf *gguf;
    size_t size;
    info.key = (struct coding){&codec_gain_shape, 8, 4};
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
    assert_null(codebook_learned(NULL, CODEC_KEYS, 0, 0));
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
    const void *learned = codebook_learned(codebook, CODEC_KEYS, 0, 0);
    assert_non_null(learned);
    assert_ptr_equal(codebook_learned(codebook, CODEC_KEYS, 1, 2), learned);
    assert_null(codebook_learned(codebook, CODEC_VALUES, 0, 0));
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
    info.key = info.value = (struct coding){&codec_f16, 0, 0};
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
    struct coding f16 = {&codec_f16, 0, 0}, other = info.key, other_value = info.value;
    uint64_t f = info.fingerprint;
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
        {"sample-1", info.key, info.value, f, 2, 1, 32, {"sample-0.2", "--kv sample-1", "terse calibrate"}},
        {"sample-0.2", info.key, info.value, f, 3, 1, 32, {"2 layers", "has 3, 1 and 32", "terse calibrate"}},
        {"sample-0.2", info.key, info.value, f, 2, 2, 32, {"1 KV head", "has 2, 2 and 32", ""}},
        {"sample-0.2", info.key, info.value, f, 2, 1, 64, {"32 channels", "has 2, 1 and 64", ""}},
        {"sample-0.2", other, info.value, f, 2, 1, 32, {"keys as vq of 32 channels and 4 bits", "vq of 32 and 5", ""}},
        {"sample-0.2", info.key, other_value, f, 2, 1, 32, {"values as pq", "vq of 16", ""}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(codebook_check(codebook, wrong[i].method, wrong[i].key, wrong[i].value, wrong[i].fingerprint,
                                        wrong[i].layers, wrong[i].kv_heads, wrong[i].head_dim, &error),
                         TERSE_E_ARGUMENT);
        for (int w = 0; w < 3; w++)
            if (!strstr(error.message, wrong[i].words[w])) fail_msg("'%s' lacks '%s'", error.message, wrong[i].words[w]);
        assert_null(strchr(error.message, '\n'));
    }
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
                                   .key = {&codec_vq, 8, 4},
                                   .value = {&codec_vq, 8, 4},
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
    char folder[] = "/tmp/terse-test-codebook-XXXXXX", path[64], part[96], missing[96];
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *fresh = make(&info), *loaded;
    struct terse_error error = {0};
    size_t size;
    uint8_t *file = codebook_sample_build(fresh, &size), *saved = malloc(size);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.codebook", folder);
    snprintf(part, sizeof part, "%s.part", path);
    for (int i = 0; i < 2; i++) { /* the second time over the first */
        assert_int_equal(terse_codebook_save(fresh, path, &error), TERSE_OK);
        assert_int_not_equal(access(part, F_OK), 0);
        read_file(path, saved, size);
        assert_memory_equal(file, saved, size);
    }
    assert_int_equal(terse_codebook_load(path, &loaded, &error), TERSE_OK);
    same_codebook(fresh, loaded);
    terse_codebook_free(loaded);

    /* A disk without room: what was there stays, nothing else is left. */
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(symlink("/dev/full", part), 0);
        assert_int_equal(terse_codebook_save(fresh, path, &error), TERSE_E_IO);
        assert_non_null(strstr(error.message, strerror(ENOSPC)));
        assert_non_null(strstr(error.message, path));
        assert_int_equal(unlink(part), -1);
        read_file(path, saved, size);
        assert_memory_equal(file, saved, size);
    }
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

/* ---- Damage --------------------------------------------------------------------------------------------------------------- */

static void refused(const void *file, size_t size, enum terse_status wanted, const char *words) {
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    enum terse_status status = load_copy(file, size, &codebook, &error);
    if (status != wanted) fail_msg("status %d, not %d: '%s'; wanted '%s'", status, wanted, error.message, words ? words : "");
    check_message(&error, wanted, words);
}

static void test_truncated(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *codebook = make(&info);
    size_t size;
    uint8_t *file = codebook_sample_build(codebook, &size);
    for (size_t cut = 0; cut < size; cut++) refused(file, cut, TERSE_E_FORMAT, NULL);
    uint8_t *longer = calloc(size + 64, 1);
    memcpy(longer, file, size);
    refused(longer, size + 1, TERSE_E_FORMAT, "checksum");
    refused(longer, size + 64, TERSE_E_FORMAT, "checksum");
    free(longer);
    memory_free(file);
    terse_codebook_free(codebook);
}

static void test_bits_flipped(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *codebook = make(&info);
    size_t size, mismatches = 0;
    uint8_t *file = codebook_sample_build(codebook, &size);
    for (size_t bit = 0; bit < size * 8; bit++) {
        struct terse_codebook *loaded;
        struct terse_error error = {0};
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
        enum terse_status status = load_copy(file, size, &loaded, &error);
        if (status == TERSE_OK) fail_msg("bit %zu flipped and not noticed", bit);
        check_message(&error, status, NULL);
        mismatches += strstr(error.message, "checksum does not match") != NULL;
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(mismatches > size * 4); /* most of it is data */
    memory_free(file);
    terse_codebook_free(codebook);
}

/* Changes that the checksum agrees with: refused for what they are, or a codebook like any other. */
static void test_bytes_forged(void **state) {
    (void)state;
    struct codebook_info info = codebook_sample_info();
    struct terse_codebook *codebook = make(&info);
    size_t size, loaded_ones = 0;
    uint8_t *file = codebook_sample_build(codebook, &size), *changed = malloc(size);
    for (size_t at = 0; at < size; at += at < 2000 ? 1 : 37) {
        const uint8_t values[] = {0, 0xff, 0x7f, file[at] ^ 1, file[at] ^ 0x80, file[at] + 1, file[at] * 2};
        for (size_t v = 0; v < sizeof values; v++) {
            struct terse_codebook *loaded;
            struct terse_error error = {0};
            memcpy(changed, file, size);
            changed[at] = values[v];
            codebook_sample_seal(changed, size);
            enum terse_status status = load_copy(changed, size, &loaded, &error);
            if (status) {
                check_message(&error, status, NULL);
                continue;
            }
            size_t again_size;
            uint8_t *again = codebook_sample_build(loaded, &again_size);
            struct terse_codebook *reloaded = load(again, again_size);
            same_info(codebook_info(loaded), codebook_info(reloaded));
            loaded_ones++;
            terse_codebook_free(reloaded);
            memory_free(again);
            terse_codebook_free(loaded);
        }
    }
    assert_true(loaded_ones > 500);
    free(changed);
    memory_free(file);
    terse_codebook_free(codebook);
}

/* ---- Files of others ------------------------------------------------------------------------------------------------------ */

enum { LEFT_OUT = 99 }; /* no GGUF type */

struct key {
    const char *name;
    uint32_t type;
    const char *text;
    uint64_t number;
};

static const struct key keys[] = {
    {"general.architecture", GGUF_STRING, "terse-codebook", 0},
    {"codebook.version", GGUF_U32, NULL, 1},
    {"codebook.method", GGUF_STRING, "m", 0},
    {"codebook.keys.codec", GGUF_STRING, "pq", 0},
    {"codebook.keys.width", GGUF_U32, NULL, 16},
    {"codebook.keys.bits", GGUF_U32, NULL, 4},
    {"codebook.keys.rope", GGUF_STRING, "after", 0},
    {"codebook.values.codec", GGUF_STRING, "vq", 0},
    {"codebook.values.width", GGUF_U32, NULL, 8},
    {"codebook.values.bits", GGUF_U32, NULL, 5},
    {"codebook.scope", GGUF_STRING, "head", 0},
    {"codebook.layers", GGUF_U32, NULL, 1},
    {"codebook.kv_heads", GGUF_U32, NULL, 2},
    {"codebook.head_dim", GGUF_U32, NULL, 32},
    {"codebook.model.name", GGUF_STRING, "", 0},
    {"codebook.model.fingerprint", GGUF_U64, NULL, 1},
    {"codebook.corpus.name", GGUF_STRING, "", 0},
    {"codebook.corpus.tokens", GGUF_U64, NULL, 0},
    {"codebook.seed", GGUF_U64, NULL, 0},
    {"codebook.weighting", GGUF_STRING, "", 0},
    {"codebook.effective_samples", GGUF_F64, NULL, 0},
};
enum { N_KEYS = sizeof keys / sizeof *keys, NUMBERS = 2 * 32 << 5 };

static uint16_t numbers[NUMBERS]; /* zeros but for what a test puts there */

static void write_key(struct gguf_writer *w, const struct key *key) {
    if (key->type == GGUF_STRING) gguf_writer_string(w, key->name, key->text);
    if (key->type == GGUF_U32) gguf_writer_u32(w, key->name, (uint32_t)key->number);
    if (key->type == GGUF_U64 || key->type == GGUF_F64 || key->type == GGUF_I64)
        gguf_writer_value(w, key->name, key->type, &key->number, 8);
}

/* All keys, `changes[n]` in the place of those of their names. */
static void write_keys(struct gguf_writer *w, const struct key *changes, size_t n) {
    *w = (struct gguf_writer){0};
    for (size_t i = 0; i < N_KEYS; i++) {
        const struct key *key = &keys[i];
        for (size_t c = 0; c < n; c++)
            if (strcmp(changes[c].name, key->name) == 0) key = &changes[c];
        write_key(w, key);
    }
    gguf_writer_checksum(w, "codebook.checksum");
}

static void write_tensors(struct gguf_writer *w) {
    gguf_writer_tensor(w, "keys", TENSOR_F16, 4, (uint64_t[]){16, 16, 2, 2}, numbers);
    gguf_writer_tensor(w, "values", TENSOR_F16, 4, (uint64_t[]){8, 32, 4, 2}, numbers);
}

static void *finish(struct gguf_writer *w, size_t *size) {
    void *file = gguf_writer_build(w, size);
    assert_non_null(file);
    gguf_writer_free(w);
    return file;
}

static void refused_writer(struct gguf_writer *w, enum terse_status status, const char *words) {
    size_t size;
    void *file = finish(w, &size);
    refused(file, size, status, words);
    memory_free(file);
}

static void accepted(struct gguf_writer *w) {
    size_t size;
    void *file = finish(w, &size);
    terse_codebook_free(load(file, size));
    memory_free(file);
}

static void refused_key(const char *name, uint32_t type, const char *text, uint64_t number, enum terse_status status,
                        const char *words) {
    struct gguf_writer w;
    write_keys(&w, &(struct key){name, type, text, number}, 1);
    write_tensors(&w);
    refused_writer(&w, status, words);
}

static void test_keys(void **state) {
    (void)state;
    struct gguf_writer w;
    write_keys(&w, NULL, 0);
    write_tensors(&w);
    accepted(&w);
    write_keys(&w, NULL, 0); /* an unknown key does not matter, nor do smaller or larger integers */
    gguf_writer_string(&w, "codebook.news", "x");
    write_tensors(&w);
    accepted(&w);
    write_keys(&w, (struct key[]){{"codebook.layers", GGUF_U64, NULL, 1}, {"codebook.seed", GGUF_U32, NULL, 1}}, 2);
    write_tensors(&w);
    accepted(&w);

    for (size_t i = 0; i < N_KEYS; i++) {
        if (strstr(keys[i].name, ".codec")) continue; /* such a side learns nothing: test_tensors */
        refused_key(keys[i].name, LEFT_OUT, NULL, 0, TERSE_E_FORMAT, keys[i].name);
    }
    for (size_t i = 0; i < N_KEYS; i++) { /* strings for numbers and numbers for strings */
        bool string = keys[i].type == GGUF_STRING;
        refused_key(keys[i].name, string ? GGUF_U32 : GGUF_STRING, "1", 1, TERSE_E_FORMAT, keys[i].name);
    }
    uint64_t nan_bits = UINT64_C(0x7ff8000000000000);
    refused_key("codebook.effective_samples", GGUF_F64, NULL, nan_bits, TERSE_E_FORMAT, "finite");
    refused_key("codebook.seed", GGUF_F64, NULL, 0, TERSE_E_FORMAT, "codebook.seed");
    refused_key("codebook.seed", GGUF_I64, NULL, UINT64_MAX, TERSE_E_FORMAT, "codebook.seed");
    refused_key("codebook.layers", GGUF_U64, NULL, UINT64_C(1) << 32, TERSE_E_FORMAT, "codebook.layers");

    refused_key("general.architecture", GGUF_STRING, "llama", 0, TERSE_E_FORMAT,
                "a model of architecture \"llama\", not a codebook");
    refused_key("general.architecture", GGUF_STRING, "\x1b[2J\n", 0, TERSE_E_FORMAT, "not a codebook");
    refused_key("codebook.version", GGUF_U32, NULL, 0, TERSE_E_UNSUPPORTED, "version 0");
    refused_key("codebook.version", GGUF_U32, NULL, 2, TERSE_E_UNSUPPORTED, "version 2");
    refused_key("codebook.keys.codec", GGUF_STRING, "zq\n", 0, TERSE_E_UNSUPPORTED, "the codec \"zq\\n\"");
    refused_key("codebook.keys.codec", GGUF_STRING, "q8_0", 0, TERSE_E_UNSUPPORTED, "\"q8_0\"");
    refused_key("codebook.keys.codec", GGUF_STRING, "", 0, TERSE_E_UNSUPPORTED, "\"\"");
    refused_key("codebook.keys.rope", GGUF_STRING, "before", 0, TERSE_E_FORMAT, "before rotation");
    refused_key("codebook.keys.rope", GGUF_STRING, "between", 0, TERSE_E_FORMAT, "\"between\"");
    refused_key("codebook.scope", GGUF_STRING, "heads", 0, TERSE_E_FORMAT, "\"heads\"");
    refused_key("codebook.scope", GGUF_STRING, "model", 0, TERSE_E_FORMAT,
                "16 x 16 x 2 x 2, the keys ask for F16 of 16 x 16 x 2 x 1");
}

/* Shapes that do not fit each other, or whose sizes would overflow. */
static void test_shapes(void **state) {
    (void)state;
    static const char *const names[] = {"codebook.keys.width",  "codebook.keys.bits", "codebook.values.width",
                                        "codebook.values.bits", "codebook.layers",    "codebook.kv_heads",
                                        "codebook.head_dim"};
    static const uint32_t values[] = {0, 3, 64, 1u << 16, 1u << 31, UINT32_MAX};
    struct gguf_writer w;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            struct terse_codebook *codebook;
            struct terse_error error = {0};
            size_t size;
            write_keys(&w, &(struct key){names[i], GGUF_U32, NULL, values[v]}, 1);
            write_tensors(&w);
            void *file = finish(&w, &size);
            enum terse_status status = load_copy(file, size, &codebook, &error);
            assert_true(status == TERSE_E_FORMAT || status == TERSE_E_UNSUPPORTED);
            check_message(&error, status, NULL);
            memory_free(file);
        }
    /* The largest shape that is possible costs nothing before the tensors are looked at. */
    write_keys(&w,
               (struct key[]){{"codebook.layers", GGUF_U32, NULL, 1024},
                              {"codebook.kv_heads", GGUF_U32, NULL, 4096},
                              {"codebook.head_dim", GGUF_U32, NULL, 256},
                              {"codebook.keys.bits", GGUF_U32, NULL, 12}},
               4);
    write_tensors(&w);
    refused_writer(&w, TERSE_E_FORMAT, "ask for F16 of 16 x 4096 x 16 x 4194304");
}

static void test_tensors(void **state) {
    (void)state;
    struct gguf_writer w;
    const struct key no_keys = {"codebook.keys.codec", LEFT_OUT, NULL, 0}, no_values = {"codebook.values.codec", LEFT_OUT, NULL, 0};
    const uint64_t key_dims[4] = {16, 16, 2, 2}, value_dims[4] = {8, 32, 4, 2};

    write_keys(&w, &no_values, 1); /* one side alone */
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
    accepted(&w);
    write_keys(&w, &no_keys, 1);
    gguf_writer_tensor(&w, "values", TENSOR_F16, 4, value_dims, numbers);
    accepted(&w);
    write_keys(&w, &no_keys, 1); /* a tensor that no key speaks of */
    write_tensors(&w);
    refused_writer(&w, TERSE_E_FORMAT, "2 tensors where its keys ask for 1");
    write_keys(&w, (struct key[]){no_keys, no_values}, 2);
    refused_writer(&w, TERSE_E_FORMAT, "neither keys nor values");
    write_keys(&w, NULL, 0);
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
    refused_writer(&w, TERSE_E_FORMAT, "'values' is missing");
    write_keys(&w, NULL, 0);
    write_tensors(&w);
    gguf_writer_tensor(&w, "more", TENSOR_F16, 1, (uint64_t[]){1}, numbers);
    refused_writer(&w, TERSE_E_FORMAT, "3 tensors");

    static const uint64_t others[][4] = {{16, 16, 2, 1}, {16, 16, 4, 1}, {32, 16, 2, 2},
                                         {16, 16, 2, 3}, {16, 32, 2, 2}, {2, 2, 16, 16}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_keys(&w, NULL, 0);
        gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, others[i], NULL);
        gguf_writer_tensor(&w, "values", TENSOR_F16, 4, value_dims, numbers);
        refused_writer(&w, TERSE_E_FORMAT, "the tensor 'keys' is F16 of");
    }
    write_keys(&w,
               (struct key[]){no_values,
                              {"codebook.keys.codec", GGUF_STRING, "gain-shape", 0},
                              {"codebook.keys.rope", GGUF_STRING, "before", 0}},
               3);
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
    refused_writer(&w, TERSE_E_FORMAT, "'keys.frame' is missing");
    write_keys(&w, &no_values, 1);
    gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
    gguf_writer_tensor(&w, "keys.frame", TENSOR_F16, 2, (uint64_t[]){33, 2}, numbers);
    refused_writer(&w, TERSE_E_FORMAT, "2 tensors where its keys ask for 1");

    static const uint32_t types[] = {TENSOR_F32, TENSOR_BF16, 27 /* I64 */, 4000000000u};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        write_keys(&w, NULL, 0);
        gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
        gguf_writer_tensor(&w, "values", types[i], 4, value_dims, NULL);
        refused_writer(&w, TERSE_E_FORMAT, "the tensor 'values' is");
    }
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0xffff};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_keys(&w, &no_values, 1);
        gguf_writer_tensor(&w, "keys", TENSOR_F16, 4, key_dims, numbers);
        numbers[600] = bad[i];
        refused_writer(&w, TERSE_E_FORMAT, "number 88 of the centroids of layer 0, KV head 1 in the codebook's keys");
        numbers[600] = 0;
    }
}

static void test_other_files(void **state) {
    (void)state;
    struct terse_codebook *codebook;
    struct terse_error error = {0};
    struct gguf_writer w = {0};
    refused("", 0, TERSE_E_FORMAT, "empty");
    refused("GGU", 3, TERSE_E_FORMAT, "not a codebook");
    refused("# A text\n", 9, TERSE_E_FORMAT, "not a codebook (it does not begin with \"GGUF\")");
    refused_writer(&w, TERSE_E_FORMAT, "no general.architecture");
    write_keys(&w, NULL, 0); /* without a checksum */
    w.checksum_at = 0;
    write_tensors(&w);
    refused_writer(&w, TERSE_E_FORMAT, "checksum does not match");
    assert_int_equal(terse_codebook_load(TESTS_DIR "/fixtures/models/llama.gguf", &codebook, &error), TERSE_E_FORMAT);
    assert_null(codebook);
    assert_non_null(strstr(error.message, "llama.gguf: it is a model of architecture \"llama\", not a codebook"));
    /* Names as long as a path can be, or that are no text, leave room for the reason. */
    char name[4001] = "";
    memset(name, 'x', sizeof name - 1);
    memcpy(name + 2000, "\n\x1b", 2);
    assert_int_equal(terse_codebook_load_memory("abc", 3, name, &codebook, &error), TERSE_E_FORMAT);
    assert_non_null(strstr(error.message, "x: not a codebook"));
    assert_int_equal(terse_codebook_load_memory("abc", 3, "n", &codebook, &error), TERSE_E_FORMAT); /* as "not a codebook" begins */
    assert_int_equal(strncmp(error.message, "n: not a codebook", 17), 0);
    assert_int_equal(terse_codebook_load_memory("abc", 3, "new\nline", &codebook, &error), TERSE_E_FORMAT);
    assert_int_equal(strncmp(error.message, "new\\nline: not a codebook", 25), 0);
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
    struct hash64 empty = hash64_begin();
    assert_true(hash64_end(&empty) == 0xef46db3751d8e999);
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        for (size_t piece = 1; piece <= known[k].n; piece++) {
            struct hash64 hash = hash64_begin();
            for (size_t at = 0; at < known[k].n; at += piece)
                hash64_put(&hash, data + at, known[k].n - at < piece ? known[k].n - at : piece);
            assert_true(hash64_end(&hash) == known[k].hash);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_impossible),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_fixture),
        cmocka_unit_test(test_memory_need_not_be_aligned_or_stay),
        cmocka_unit_test(test_save),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_bits_flipped),
        cmocka_unit_test(test_bytes_forged),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
