/* Pages of codecs with centroids on the GPU: the bytes that the CPU's codecs write, and the rows that they read, rounded to halves. */
#include "centroids_sample.h"
#include "encode_sample.h"
#include "model/rope.h"
#include "no_device.h"

#include <stdio.h>

#define POSITIONS (64 * 1002)

struct made {
    struct encode_sample s;
    struct centroids_sample centroids[SAMPLE_HEADS_ALL][2];
    float *angles; /* [runs][hd / 2][cosine, sine] */
};

static uint64_t state = 3;

static float number(size_t t, size_t c) {
    if (t % 16 == 3) return 0;
    const float x = (float)(sample_normal() * (t % 16 == 5 ? 8 : 1) + (c % 19 == 2 ? 3 : 0));
    if (centroids_grid <= 0) return x;
    return t % 16 == 7 ? copysignf(60000, x) : centroids_grid * roundf(2 * x); /* some are beyond the scores' range */
}

/* Numbers of all sizes; those that widen a bound for a whole page's sub-vector, or are beyond the scores' range, are in every other 32 channels. */
static float number_of_any_size(size_t t, size_t c) {
    const float x = (float)sample_normal();
    if (t % 8 == 1) return 0;
    if (t % 8 == 2) return 0x1p-24f * roundf(3 * x);
    if (c / 32 % 2 == 0) return x;
    return t % 8 == 3 ? copysignf(60000, x) : t % 8 == 4 ? 100 * x : t % 8 == 5 && c % 16 == 3 ? 5000 : x;
}

static float number_between(size_t t, size_t c) {
    (void)t, (void)c;
    return 0.625f;
}

/* Numbers as large as the centroids; some rows have infinities. */
static float number_of_size(size_t t, size_t c) {
    const float x = centroids_form.size * (float)sample_normal();
    return t % 16 == 9 && c % 8 == 1 ? copysignf(INFINITY, x) : x;
}

static void rope_of(uint32_t hd, float *frequency, struct rope *rope) {
    for (uint32_t i = 0; i < hd / 2; i++) frequency[i] = (float)pow(10000, -2.0 * i / hd);
    *rope = (struct rope){ROPE_HALF_SPLIT, hd, hd, frequency, 1};
}

static void make(struct made *made, struct coding key, struct coding value, size_t hd, float (*numbers)(size_t t, size_t c)) {
    float frequency[CODEC_HEAD_DIM_MAX], cosine[CODEC_HEAD_DIM_MAX], sine[CODEC_HEAD_DIM_MAX];
    struct centroid_view views[2][SAMPLE_HEADS_ALL];
    struct encode_sample *s = &made->s;
    struct rope rope;
    *s = (struct encode_sample){.hd = hd, .codec = {key.codec, value.codec}};
    for (size_t place = 0; place < SAMPLE_HEADS_ALL; place++) {
        for (int side = 0; side < 2; side++) {
            s->shape[place][side] = (struct codec_shape){.head_dim = (uint32_t)hd, .group = 1};
            centroids_make(&made->centroids[place][side], side ? value : key, (enum codec_side)side, &state,
                           &s->shape[place][side]);
            views[side][place] = made->centroids[place][side].view;
        }
    }
    sample_fill(s, numbers);
    s->encode.heads.n_rot = (uint32_t)hd, s->encode.heads.pairing = ROPE_HALF_SPLIT;
    for (int side = 0; side < 2; side++) s->encode.learned[side] = sample_send(views[side], sizeof views[side]);
    size_t runs = POSITIONS / ROPE_RUN_TOKENS + 2;
    made->angles = malloc(runs * hd * sizeof *made->angles);
    assert_non_null(made->angles);
    rope_of((uint32_t)hd, frequency, &rope);
    for (size_t run = 0; run < runs; run++) {
        rope_angles(&rope, (int64_t)(run * ROPE_RUN_TOKENS), cosine, sine);
        for (size_t i = 0; i < hd / 2; i++)
            made->angles[run * hd + 2 * i] = cosine[i], made->angles[run * hd + 2 * i + 1] = sine[i];
    }
    s->encode.run_angles = sample_send(made->angles, runs * hd * sizeof *made->angles);
}

static void unmake(struct made *made) {
    for (size_t i = 0; i < 2 * SAMPLE_HEADS_ALL; i++) centroids_free_sample(&made->centroids[i / 2][i % 2]);
    for (int side = 0; side < 2; side++) device_free(NULL, (void *)made->s.encode.learned[side], 0);
    device_free(NULL, (void *)made->s.encode.run_angles, 0);
    free(made->angles);
    sample_free(&made->s);
}

/* Keys of a page that lie in a run: rotated back by its position, or forth. */
static void turn(const void *user, int side, size_t item, bool back, float *rows) {
    const struct made *made = user;
    float frequency[CODEC_HEAD_DIM_MAX], cosine[CODEC_HEAD_DIM_MAX], sine[CODEC_HEAD_DIM_MAX];
    const size_t hd = made->s.hd;
    struct rope rope;
    if (side == CODEC_VALUES || made->s.codec[side]->rope != CODEC_ROPE_IN_RUN) return;
    rope_of((uint32_t)hd, frequency, &rope);
    rope_angles(&rope, run_of(made->s.items[item].set.first), cosine, sine);
    for (size_t i = 0; back && i < hd / 2; i++) sine[i] = -sine[i];
    rope_rotate(&rope, cosine, sine, rows, PAGE_TOKENS, hd);
}

/* Bytes that differ from the CPU's, of how many. */
struct difference {
    size_t bytes, of;
};

/* Encodes what the sample's launch says and compares it; the host's pages are then the GPU's. */
static struct difference compare(struct made *made) {
    static float rows[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    static uint8_t page[1 << 15];
    struct difference d = {0, 0};
    struct encode_sample *s = &made->s;
    assert_cuda(encode_pages(&s->encode, device_stream()));
    uint8_t *chunk = sample_fetch(s->chunk_device, s->chunk_bytes);
    for (size_t place = 0; place < s->encode.n_layers * SAMPLE_HEADS; place++)
        for (int side = 0; side < 2; side++)
            for (size_t item = 0; item < s->encode.n; item++) {
                size_t n = sample_floats(s, place, side, item, rows), bytes = s->places[place].bytes[side];
                turn(made, side, item, true, rows);
                cpu_codec_of(s->codec[side])->encode(s->shape[place][side], (enum codec_side)side, rows, n, page);
                uint8_t *own = sample_page(s, place, side, item);
                const uint8_t *written = chunk + (own - s->chunk);
                for (size_t i = 0; i < bytes; i++) d.bytes += written[i] != page[i];
                d.of += bytes;
                memcpy(own, written, bytes);
            }
    assert_memory_equal(chunk, s->chunk, s->chunk_bytes); /* nothing else was written */
    free(chunk);
    return d;
}

static struct difference check(struct coding key, struct coding value, size_t hd) {
    struct made made;
    make(&made, key, value, hd, number);
    struct difference d = compare(&made);
    sample_check_decoded(&made.s, turn, &made);
    unmake(&made);
    return d;
}

static void report(struct coding coding, size_t hd, double bound) {
    struct difference d = check(coding, coding, hd);
    print_message("%s %u x %u, head_dim %zu: %zu of %zu bytes differ\n", coding.codec->name, coding.width, coding.bits, hd, d.bytes,
                  d.of);
    assert_true((double)d.bytes <= bound * (double)d.of);
}

static const size_t head_dims[] = {64, 96, 128, 256};

/* Keys as they come, the same numbers in the same order: the same codes. */
static void codes_are_those_of_the_cpu(void **unused) {
    (void)unused;
    static const uint32_t codes[][2] = {{2, 8}, {4, 8}, {8, 8}, {16, 8}, {4, 12}, {32, 12}, {2, 4}, {4, 5}, {8, 7}, {16, 11}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        report((struct coding){&codec_pq, codes[i][0], codes[i][1], 0}, head_dims[i % 4], 0);
    report((struct coding){&codec_pq, 3, 6, 0}, 96, 0);
    report((struct coding){&codec_pq, 32, 6, 0}, 64, 0);
    report((struct coding){&codec_pq, 16, 7, 0}, 128, 0);
}

/* Rows and centroids on a coarse grid: many centroids are equal, and rows lie midway between others, so that roundings of the exact
 * sums decide. */
static void of_equal_centroids_the_first_is_taken(void **unused) {
    (void)unused;
    static const uint32_t codes[][2] = {{4, 12}, {2, 8}, {8, 8}, {4, 8}, {2, 4}};
    centroids_grid = 0x1p-5f;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        report((struct coding){&codec_pq, codes[i][0], codes[i][1], 0}, head_dims[i % 3], 0);
    centroids_grid = 0;
}

/* A many_centroids is how 4,096 centroids of a sub-vector lie, and of how many pages. */
struct many_centroids {
    size_t hd;
    uint32_t width, pages;
    size_t period;
    bool flat;
    float grid, size;
};

static void check_many(const struct many_centroids *shapes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const struct many_centroids *shape = &shapes[i];
        const struct coding coding = {&codec_pq, shape->width, 12, 0};
        struct made made;
        centroids_form.period = shape->period, centroids_form.flat = shape->flat, centroids_form.size = shape->size;
        centroids_grid = shape->grid;
        make(&made, coding, coding, shape->hd,
             shape->size > 0 ? number_of_size
             : shape->flat   ? number_between
                             : number_of_any_size);
        made.s.encode.n_layers = 1, made.s.encode.n = shape->pages;
        struct difference d = compare(&made);
        unmake(&made);
        print_message("%u x 12, shape %zu, head_dim %zu: %zu of %zu bytes differ\n", coding.width, i, shape->hd, d.bytes, d.of);
        assert_int_equal(d.bytes, 0);
    }
    centroids_form.period = 0, centroids_form.flat = false, centroids_form.size = 0, centroids_grid = 0;
}

/* Of 4,096 centroids: equal and nearly equal ones, in runs that one lane keeps (512 apart) or several, for rows of all sizes; two of which rows lie in
 * the middle, so that rounding all numbers of a row the same way changes which one scores less. A page of each head of a layer. */
static void codes_of_many_centroids_are_those_of_the_cpu(void **unused) {
    (void)unused;
    static const struct many_centroids shapes[] = {{64, 16, 1, 1500, false, 0, 0},     {64, 32, 1, 512, false, 0, 0},
                                                   {64, 16, 1, 0, true, 0, 0},         {64, 32, 1, 0, true, 0, 0},
                                                   {128, 16, 1, 512, false, 0, 0},     {128, 32, 1, 1500, false, 0, 0},
                                                   {256, 16, 1, 0, false, 0x1p-5f, 0}, {256, 32, 1, 1500, false, 0, 0}};
    check_many(shapes, sizeof shapes / sizeof *shapes);
}

/* The same of 4 channels, for one page and for several; and of centroids and rows of other sizes: smaller than normal halves, many times one, and
 * beyond the scores' range. */
static void codes_of_many_narrow_centroids_are_those_of_the_cpu(void **unused) {
    (void)unused;
    static const struct many_centroids shapes[] = {{64, 4, 1, 1500, false, 0, 0},     {64, 4, 3, 1500, false, 0, 0},
                                                   {64, 4, 2, 512, false, 0, 0},      {64, 4, 2, 128, false, 0, 0},
                                                   {64, 4, 2, 0, true, 0, 0},         {96, 4, 2, 0, false, 0, 64},
                                                   {64, 4, 2, 0, false, 0, 0x1p-16f}, {64, 4, 2, 0, false, 0, 0x1p13f}};
    check_many(shapes, sizeof shapes / sizeof *shapes);
}

/* Keys that are rotated back to a run, or rows that are normalized, may differ in a last place: now and then another centroid is nearest. */
static void codes_of_runs_and_shapes_are_nearly(void **unused) {
    (void)unused;
    for (size_t i = 0; i < 4; i++) {
        report((struct coding){&codec_vq, 2u << i, 8, 0}, head_dims[i], 1e-3);
        report((struct coding){&codec_gain_shape, 2u << i, 8, 0}, head_dims[i], 1e-3);
    }
    report((struct coding){&codec_gain_shape, 16, 12, 0}, 128, 1e-3);
    report((struct coding){&codec_vq, 4, 12, 0}, 64, 1e-3);
}

static void sides_may_be_of_two_codecs(void **unused) {
    (void)unused;
    struct difference d = check((struct coding){&codec_pq, 4, 8, 0}, (struct coding){&codec_gain_shape, 8, 8, 0}, 128);
    assert_true((double)d.bytes <= 1e-3 * (double)d.of);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes_are_those_of_the_cpu),
                                       cmocka_unit_test(of_equal_centroids_the_first_is_taken),
                                       cmocka_unit_test(codes_of_many_centroids_are_those_of_the_cpu),
                                       cmocka_unit_test(codes_of_many_narrow_centroids_are_those_of_the_cpu),
                                       cmocka_unit_test(codes_of_runs_and_shapes_are_nearly),
                                       cmocka_unit_test(sides_may_be_of_two_codecs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
