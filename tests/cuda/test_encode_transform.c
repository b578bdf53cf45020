/* Pages of codec transform on the GPU: the codes that the CPU finds, but for a few where two are nearly as near, and the rows that it reads; by
 * a profile and by a sequence's own transforms, which come to the device as caches bring them there. */
#include "backend/cpu/codec/transform.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cuda/kv/transforms.h"
#include "base/memory.h"
#include "encode_sample.h"
#include "format/transform_fit.h"
#include "kv/pre_rope.h"
#include "method/method.h"
#include "no_device.h"
#include "support/prepared.h"

#include <stdio.h>
#include <terse.h>

#define FINGERPRINT 5
#define RUNS 254       /* of positions that pages have */
#define HALF_STEP 6e-8 /* of the smallest halves */

static const uint32_t head_dims[] = {64, 96, 128, 256};

/* ---- A profile: orthogonal bases, sizes that fall */

static void make_parameters(enum codec_side side, size_t hd, size_t set, float *floats) {
    float *mean = floats, *pre_rope_mean = mean + hd, *size = pre_rope_mean + hd, *basis = size + hd, *rest = basis + hd * hd;
    double square = 0, own = 1, fall = 1 - (3 + (double)(set % 4)) / (double)hd;
    for (size_t c = 0; c < hd; c++, own *= fall) {
        mean[c] = (float)sample_normal();
        pre_rope_mean[c] = side == CODEC_KEYS ? (float)(3 * sample_normal()) : 0;
        size[c] = (float)own;
        square += own * own;
        for (size_t ch = 0; ch < hd; ch++) basis[c * hd + ch] = c == ch;
    }
    for (size_t c = 0; c < hd; c++) size[c] *= (float)sqrt((double)hd / square);
    for (int reflection = 0; reflection < 5; reflection++) {
        double v[CODEC_HEAD_DIM_MAX], norm = 0;
        for (size_t ch = 0; ch < hd; ch++) {
            v[ch] = sample_normal();
            norm += v[ch] * v[ch];
        }
        for (size_t c = 0; c < hd; c++) {
            double dot = 0;
            for (size_t ch = 0; ch < hd; ch++) dot += v[ch] * (double)basis[c * hd + ch];
            for (size_t ch = 0; ch < hd; ch++) basis[c * hd + ch] -= (float)(2 * dot / norm * v[ch]);
        }
    }
    rest[0] = 0.1f, rest[1] = 4, rest[2] = 1, rest[3] = 0, rest[4] = (float)(set % 3) * 0.5f;
}

struct transform_sample {
    struct encode_sample s;
    struct method method;
    struct terse_codebook *codebook;
    struct rope rope;
    float frequency[CODEC_HEAD_DIM_MAX / 2];
    float *runs_device, *offsets_device; /* angles */
    struct pre_rope pre_rope;
    void *views[2];   /* by side, of the device */
    uint8_t *records; /* [layers][Hk][2][record bytes] of transforms that are a sequence's own; NULL */
    uint8_t *tables;  /* and the device's views of them; NULL */
};

static void make_codebook(struct transform_sample *x, uint32_t hd) {
    struct codebook_info info = {.key = x->method.key,
                                 .value = x->method.value,
                                 .layers = SAMPLE_LAYERS,
                                 .kv_heads = SAMPLE_HEADS,
                                 .head_dim = hd,
                                 .fingerprint = FINGERPRINT};
    size_t own = transform_parameter_floats(hd);
    float *floats = malloc(2 * SAMPLE_HEADS_ALL * own * sizeof *floats);
    struct terse_error error;
    assert_non_null(floats);
    info.key.codec = info.value.codec = &codec_transform;
    info.key.rate = info.value.rate = 0;
    snprintf(info.method, sizeof info.method, "%s", x->method.codebook);
    for (size_t set = 0; set < 2 * SAMPLE_HEADS_ALL; set++)
        make_parameters(set < SAMPLE_HEADS_ALL ? CODEC_KEYS : CODEC_VALUES, hd, set, floats + set * own);
    if (codebook_new(&info, floats, floats + SAMPLE_HEADS_ALL * own, &x->codebook, &error)) fail_msg("%s", error.message);
    free(floats);
}

static void make_method(struct transform_sample *x, const char *name, const char *value, uint32_t hd) {
    static const uint64_t fingerprints[CODEBOOK_FINGERPRINTS] = {FINGERPRINT, FINGERPRINT};
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_error error;
    options.method = name;
    options.value_type = value;
    if (method_resolve(&options, hd, &x->method, &error)) fail_msg("%s", error.message);
    make_codebook(x, hd);
    x->method.learned = x->codebook;
    if (method_check_codebook(&x->method, fingerprints, SAMPLE_LAYERS, SAMPLE_HEADS, hd, &error)) fail_msg("%s", error.message);
}

/* Returns the angles of positions 0, step, ... on the device. */
static float *send_angles(const struct transform_sample *x, size_t n, int64_t step) {
    size_t pairs = x->rope.n_rot / 2;
    float *host = malloc(n * 2 * pairs * sizeof *host), cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2];
    assert_non_null(host);
    for (size_t t = 0; t < n; t++) {
        rope_angles(&x->rope, (int64_t)t * step, cosine, sine);
        for (size_t i = 0; i < pairs; i++) {
            host[(t * pairs + i) * 2] = cosine[i];
            host[(t * pairs + i) * 2 + 1] = sine[i];
        }
    }
    float *there = sample_send(host, n * 2 * pairs * sizeof *host);
    free(host);
    return there;
}

static void make_angles(struct transform_sample *x) {
    struct terse_error error;
    x->runs_device = send_angles(x, RUNS, ROPE_RUN_TOKENS);
    x->offsets_device = send_angles(x, PRE_ROPE_OFFSETS, 1);
    if (pre_rope_new(&x->rope, &x->pre_rope, &error)) fail_msg("%s", error.message);
}

/* ---- Rows */

/* Rotates by the position of the page's run, or back. */
static void rotate(const struct transform_sample *x, size_t item, int side, bool back, float *rows, size_t n) {
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2];
    int64_t position = (int64_t)run_of(x->s.items[item].set.first);
    if (side == CODEC_VALUES || x->s.codec[side] != &codec_transform) return;
    rope_angles(&x->rope, back ? -position : position, cosine, sine);
    vector_ops()->rotate(rows, n, x->s.hd, cosine, sine, x->rope.n_rot / 2, x->rope.pairing == ROPE_ADJACENT);
}

/* Adds factor times the mean before rotation to keys as their run has them. */
static void add_mean(const struct transform_sample *x, size_t item, int side, float factor, const float *mean, float *rows,
                     size_t n) {
    if (side == CODEC_KEYS && x->s.codec[side] == &codec_transform)
        pre_rope_add(&x->pre_rope, factor, mean, x->s.items[item].set.first, rows, n, (uint32_t)x->s.hd);
}

/* The first of four tokens of pages with odd rows that have nearly one component, which is cut off at all but large sizes. */
#define LONE 20

/* Makes a page's rows as the profile describes them, but `stretch` times as far from the mean. */
static void make_page(struct transform_sample *x, size_t place, int side, size_t item, float stretch, bool odd) {
    size_t hd = x->s.hd;
    float *floats = malloc(transform_parameter_floats((uint32_t)hd) * sizeof *floats),
          *rows = malloc(PAGE_TOKENS * hd * sizeof *rows);
    assert_true(floats && rows);
    codebook_parameters(x->codebook, (enum codec_side)side, place, floats);
    struct transform_parameters own = transform_parameters_at(floats, (uint32_t)hd);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        double gain = (double)stretch * exp(sample_unit() - 0.5);
        float *row = rows + t * hd;
        memcpy(row, own.mean, hd * sizeof *row);
        for (size_t c = 0; c < hd; c++) {
            float y = (float)(gain * sample_normal()) * own.size[c];
            if (odd && t >= LONE && t < LONE + 4) y = c == hd / 8 * (t - LONE) ? 0.7f * sqrtf((float)hd) : 0.2f * y;
            for (size_t ch = 0; ch < hd; ch++) row[ch] += y * own.basis[c * hd + ch];
        }
    }
    add_mean(x, item, side, 1, own.pre_rope_mean, rows, PAGE_TOKENS);
    rotate(x, item, side, false, rows, PAGE_TOKENS);
    for (size_t i = 0; i < PAGE_TOKENS * hd; i++) sample_row(&x->s, place, side, item, 0)[i] = half_from_float(rows[i]);
    free(floats);
    free(rows);
}

static void make_odd_rows(struct transform_sample *x, size_t place, int side, size_t item) {
    for (size_t c = 0; c < x->s.hd; c++) {
        sample_row(&x->s, place, side, item, 0)[c] = 0;
        sample_row(&x->s, place, side, item, 3)[c] = half_from_float(3);
        sample_row(&x->s, place, side, item, 5)[c] = half_from_float(c % 2 ? 65504 : -65504);
        sample_row(&x->s, place, side, item, 7)[c] = half_from_float(c == 5 ? -INFINITY : 6e-8f);
        sample_row(&x->s, place, side, item, 16)[c] = half_from_float(c == 6 ? NAN : c == 9 ? INFINITY : 1);
    }
}

static float zero(size_t t, size_t c) { return (void)t, (void)c, 0; }

static void send_rows(struct transform_sample *x) { assert_cuda(device_send(x->s.rows_device, x->s.rows, x->s.row_bytes)); }

static struct transform_sample *make(const char *method, const char *value, uint32_t hd, enum rope_pairing pairing, uint32_t n_rot,
                                     float stretch, bool odd) {
    struct transform_sample *x = calloc(1, sizeof *x);
    struct terse_error error;
    assert_non_null(x);
    make_method(x, method, value, hd);
    for (uint32_t i = 0; i < n_rot / 2; i++) x->frequency[i] = (float)pow(10000, -2.0 * i / n_rot);
    x->rope = (struct rope){.pairing = pairing, .head_dim = hd, .n_rot = n_rot, .frequency = x->frequency, .magnitude = 1};
    x->s = (struct encode_sample){.hd = hd, .codec = {x->method.key.codec, x->method.value.codec}};
    for (uint32_t place = 0; place < SAMPLE_HEADS_ALL; place++)
        for (int side = 0; side < 2; side++) {
            struct codec_shape *shape = &x->s.shape[place][side];
            *shape = method_shape(&x->method, (enum codec_side)side, place / SAMPLE_HEADS, place % SAMPLE_HEADS, hd, 1);
            if (x->s.codec[side] == &codec_transform)
                shape->learned = prepared_learned(x->codebook, (enum codec_side)side, place / SAMPLE_HEADS, place % SAMPLE_HEADS);
        }
    sample_fill(&x->s, zero);
    make_angles(x);
    for (size_t i = 0; i < SAMPLE_HEADS_ALL * 2 * SAMPLE_ITEMS; i++) {
        size_t place = i / (2 * SAMPLE_ITEMS), item = i % SAMPLE_ITEMS;
        int side = (int)(i / SAMPLE_ITEMS % 2);
        make_page(x, place, side, item, stretch, odd);
        if (odd) make_odd_rows(x, place, side, item);
    }
    send_rows(x);
    struct cache_shape shape = {
        .layers = SAMPLE_LAYERS, .query_heads = SAMPLE_HEADS, .kv_heads = SAMPLE_HEADS, .head_dim = hd, .rope = &x->rope};
    for (int side = 0; side < 2; side++) {
        if (x->s.codec[side] != &codec_transform) continue;
        if (transforms_new(&shape, &x->method, (enum codec_side)side, &x->views[side], &error)) fail_msg("%s", error.message);
        assert_non_null(x->views[side]);
        x->s.encode.learned[side] = x->views[side];
    }
    x->s.encode.heads.n_rot = n_rot;
    x->s.encode.heads.pairing = pairing;
    x->s.encode.run_angles = x->runs_device;
    x->s.encode.pre_rope = (struct pre_rope_view){.pairs = (uint32_t)x->pre_rope.pairs, .offsets = x->offsets_device};
    return x;
}

static void discard(struct transform_sample *x) {
    sample_free(&x->s);
    for (int side = 0; side < 2; side++) device_free(NULL, x->views[side], 0);
    device_free(NULL, x->runs_device, 0);
    device_free(NULL, x->offsets_device, 0);
    pre_rope_free(&x->pre_rope);
    device_free(NULL, x->tables, 0);
    free(x->records);
    terse_codebook_free(x->codebook);
    free(x);
}

/* ---- Pages */

/* The mean before rotation that a page of keys goes by; NULL of other codecs. */
static const float *mean_of(const struct transform_sample *x, size_t place, int side) {
    const struct cpu_codec *codec = cpu_codec_of(x->s.codec[side]);
    return codec->pre_rope_mean ? codec->pre_rope_mean(x->s.shape[place][side]) : NULL;
}

/* A side of a page as the codec takes it. */
static size_t load(const struct transform_sample *x, size_t place, int side, size_t item, const float *mean, float *rows) {
    size_t n = sample_floats(&x->s, place, side, item, rows);
    rotate(x, item, side, true, rows, n);
    add_mean(x, item, side, -1, mean, rows, n);
    return n;
}

struct difference {
    size_t bytes, differing;
    double device, host; /* squared errors of pages as the GPU has written them, and the CPU */
};

static void compare_page(const struct transform_sample *x, const uint8_t *chunk, size_t place, int side, size_t item,
                         struct difference *difference) {
    const struct encode_sample *s = &x->s;
    const struct cpu_codec *codec = cpu_codec_of(s->codec[side]);
    float rows[PAGE_TOKENS * CODEC_HEAD_DIM_MAX], decoded[2][PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    uint8_t *own = sample_page(s, place, side, item);
    const uint8_t *page = chunk + (own - s->chunk);
    size_t n = load(x, place, side, item, mean_of(x, place, side), rows);
    codec->encode(s->shape[place][side], (enum codec_side)side, rows, n, own);
    codec->decode(s->shape[place][side], (enum codec_side)side, page, decoded[0]);
    codec->decode(s->shape[place][side], (enum codec_side)side, own, decoded[1]);
    for (size_t i = 0; i < s->places[place].bytes[side]; i++) difference->differing += page[i] != own[i];
    difference->bytes += s->places[place].bytes[side];
    for (size_t i = 0; i < n * s->hd; i++) {
        if (!(fabsf(rows[i]) < 1000)) continue; /* an error of what is huge would hide all others */
        difference->device += pow((double)(decoded[0][i] - rows[i]), 2);
        difference->host += pow((double)(decoded[1][i] - rows[i]), 2);
    }
}

/* Compares pages with the CPU's. A few bytes may differ: where a coefficient lies nearly between two levels, rounding decides between them. */
static void check_pages(struct transform_sample *x) {
    struct encode_sample *s = &x->s;
    struct difference all = {0};
    assert_cuda(encode_pages(&s->encode, device_stream()));
    uint8_t *chunk = sample_fetch(s->chunk_device, s->chunk_bytes);
    for (size_t i = 0; i < SAMPLE_HEADS_ALL * 2 * SAMPLE_ITEMS; i++)
        compare_page(x, chunk, i / (2 * SAMPLE_ITEMS), (int)(i / SAMPLE_ITEMS % 2), i % SAMPLE_ITEMS, &all);
    size_t outside = 0, changed = 0;
    for (size_t i = 0; i < s->chunk_bytes; i++) {
        outside += s->chunk[i] == UNTOUCHED;
        changed += s->chunk[i] == UNTOUCHED && chunk[i] != UNTOUCHED;
    }
    if (changed > all.differing) fail_msg("%zu bytes outside of the pages were written", changed);
    if (all.differing > all.bytes / 1000)
        fail_msg("%s, head_dim %zu: %zu of %zu bytes are not the CPU's", x->method.name, s->hd, all.differing, all.bytes);
    if (!(fabs(all.device - all.host) <= 1e-4 * all.host))
        fail_msg("%s, head_dim %zu: squared error %g, the CPU's %g", x->method.name, s->hd, all.device, all.host);
    printf("%s, head_dim %zu: %zu of %zu bytes differ, squared error %.6g instead of %.6g\n", x->method.name, s->hd, all.differing,
           all.bytes, all.device, all.host);
    memcpy(s->chunk, chunk, s->chunk_bytes); /* for check_rows */
    free(chunk);
}

/* Compares the decoded rows of the pages that check_pages left with the CPU's. Where a row's mean and what is added to it nearly
 * cancel, its error goes by the larger of them. */
static void check_rows(struct transform_sample *x) {
    struct encode_sample *s = &x->s;
    uint16_t *rows = sample_decode(s);
    float decoded[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    for (size_t i = 0; i < SAMPLE_HEADS_ALL * 2 * SAMPLE_ITEMS; i++) {
        size_t place = i / (2 * SAMPLE_ITEMS), item = i % SAMPLE_ITEMS, hd = s->hd;
        int side = (int)(i / SAMPLE_ITEMS % 2);
        const uint16_t *own = rows + (sample_row(s, place, side, item, 0) - s->rows);
        double mean = 0;
        cpu_codec_of(s->codec[side])
            ->decode(s->shape[place][side], (enum codec_side)side, sample_page(s, place, side, item), decoded);
        const void *fitted = s->shape[place][side].fitted;
        for (size_t c = 0; c < hd && fitted; c++)
            mean = fmax(mean, fabs((double)transform_fitted_at(fitted, (uint32_t)hd).mean[c]));
        add_mean(x, item, side, 1, mean_of(x, place, side), decoded, PAGE_TOKENS);
        rotate(x, item, side, false, decoded, PAGE_TOKENS);
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            double most = mean;
            for (size_t c = 0; c < hd; c++) most = fmax(most, fabs((double)decoded[t * hd + c]));
            for (size_t c = 0; c < hd; c++) {
                uint16_t half = own[t * hd + c];
                double expected = (double)decoded[t * hd + c];
                if (t >= s->items[item].set.count)
                    assert_int_equal(half, UNTOUCHED << 8 | UNTOUCHED);
                else if (fabs(expected) < 65504 &&
                         !(fabs((double)half_to_float(half) - expected) <= 5e-4 * fabs(expected) + 1e-5 * most + HALF_STEP))
                    fail_msg("%s, side %d, head_dim %zu, slot %zu, channel %zu: %g, the CPU's %g", x->method.name, side, hd, t, c,
                             (double)half_to_float(half), expected);
            }
        }
    }
    free(rows);
}

static void check(const char *method, const char *value, uint32_t hd, enum rope_pairing pairing, uint32_t n_rot, bool odd) {
    struct transform_sample *x = make(method, value, hd, pairing, n_rot, 1, odd);
    check_pages(x);
    check_rows(x);
    discard(x);
}

/* ---- A sequence's own transforms */

static uint8_t *record_at(const struct transform_sample *x, size_t place, int side) {
    return x->records + (place * 2 + (size_t)side) * memory_round_up(TRANSFORM_RECORD_BYTES(x->s.hd), MEMORY_ALIGN);
}

/* Fits a record to all rows of the items, less a mean before rotation that is not quite the profile's. */
static void fit(const struct transform_sample *x, size_t place, int side) {
    const size_t hd = x->s.hd;
    const struct transform_learned *profile = x->s.shape[place][side].learned;
    float *rows = malloc(SAMPLE_ITEMS * PAGE_TOKENS * hd * sizeof *rows), mean[CODEC_HEAD_DIM_MAX];
    size_t n = 0;
    assert_non_null(rows);
    for (size_t c = 0; c < hd; c++) mean[c] = mean_of(x, place, side)[c] + (float)(0.2 * sample_normal());
    for (size_t item = 0; item < SAMPLE_ITEMS; item++) n += load(x, place, side, item, mean, rows + n * hd);
    assert_int_equal(transform_fit_rows(transform_multiply, profile->record, profile->metric, (uint32_t)hd, rows, n,
                                        side == CODEC_KEYS ? mean : NULL, record_at(x, place, side), NULL),
                     TERSE_OK);
    free(rows);
}

/* From here on pages go by what is fitted to the rows, in the layouts of the profile. */
static void use_fit(struct transform_sample *x) {
    const size_t hd = x->s.hd, record = memory_round_up(TRANSFORM_RECORD_BYTES(hd), MEMORY_ALIGN);
    struct cache_base base = {.shape = {.layers = SAMPLE_LAYERS, .kv_heads = SAMPLE_HEADS, .head_dim = (uint32_t)hd},
                              .method = x->method};
    const size_t bytes = transforms_fitted_bytes(&base.shape);
    uint8_t *host = calloc(2, bytes);
    assert_non_null(x->records = calloc(2 * SAMPLE_HEADS_ALL, record));
    assert_non_null(host);
    x->tables = sample_send(host, 2 * bytes);
    for (size_t i = 0; i < 2 * SAMPLE_HEADS_ALL; i++) fit(x, i / 2, (int)(i % 2));
    base.fitted = (struct fitted){.records = x->records, .record_bytes = record};
    for (int side = 0; side < 2; side++) {
        uint8_t *to = x->tables + (size_t)side * bytes;
        transforms_fitted_set(&base, (enum codec_side)side, x->views[side], host + (size_t)side * bytes, to);
        for (size_t i = 0; i < SAMPLE_ITEMS; i++)
            x->s.items[i].rate.transforms[side] = (const struct transform_view *)(const void *)to;
        for (size_t place = 0; place < SAMPLE_HEADS_ALL; place++) x->s.shape[place][side].fitted = record_at(x, place, side);
    }
    assert_cuda(device_send(x->tables, host, 2 * bytes));
    assert_cuda(device_send((void *)x->s.encode.items, x->s.items, sizeof x->s.items));
    free(host);
}

/* ---- Tests */

static void pages_and_rows_are_nearly_those_of_the_cpu(void **state) {
    (void)state;
    static const char *const methods[] = {"terse-1", "terse-2", "terse-3", "terse-4"};
    for (size_t h = 0; h < sizeof head_dims / sizeof *head_dims; h++)
        for (size_t m = 0; m < 4; m++)
            check(methods[m], NULL, head_dims[h], h % 2 ? ROPE_ADJACENT : ROPE_HALF_SPLIT, head_dims[h] / (m % 2 + 1), false);
    check("terse-7", NULL, 128, ROPE_HALF_SPLIT, 128, false);
    check("terse-2", NULL, 128, ROPE_HALF_SPLIT, 0, false);
    check("terse-4", NULL, 128, ROPE_HALF_SPLIT, 72, false);
    check("terse-4", NULL, 64, ROPE_HALF_SPLIT, 36, false); /* not by tiles */
}

static void one_side_may_be_of_another_codec(void **state) {
    (void)state;
    check("q8_0", "terse-2", 128, ROPE_HALF_SPLIT, 128, false);
    check("terse-3", "kivi-4", 64, ROPE_HALF_SPLIT, 64, false);
}

static void odd_rows_come_out_alike(void **state) {
    (void)state;
    for (size_t h = 0; h < sizeof head_dims / sizeof *head_dims; h++) {
        check("terse-2", NULL, head_dims[h], ROPE_HALF_SPLIT, head_dims[h], true);
        check("terse-4", NULL, head_dims[h], ROPE_HALF_SPLIT, head_dims[h], true);
    }
}

static void pages_go_by_transforms_of_their_sequence(void **state) {
    (void)state;
    for (size_t h = 0; h < sizeof head_dims / sizeof *head_dims; h++) {
        for (int odd = 0; odd < 2; odd++) {
            struct transform_sample *x =
                make("terse-2", NULL, head_dims[h], h % 2 ? ROPE_ADJACENT : ROPE_HALF_SPLIT, head_dims[h], 3, odd);
            use_fit(x);
            check_pages(x);
            check_rows(x);
            discard(x);
        }
    }
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_and_rows_are_nearly_those_of_the_cpu), cmocka_unit_test(one_side_may_be_of_another_codec),
        cmocka_unit_test(odd_rows_come_out_alike), cmocka_unit_test(pages_go_by_transforms_of_their_sequence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
