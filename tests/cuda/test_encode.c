/* Pages of the codecs that need no codebook (f16, q8_0, q4_0, kivi) on the GPU: the bytes that the CPU's codecs write, and the rows that they read, rounded to halves. */
#include "encode_sample.h"
#include "no_device.h"
#include "plain_codecs.h"

#include <stdio.h>

static const size_t head_dims[] = {32, 64, 96, 128, 256};
static const struct codec *codecs[CODEC_COUNT];
static size_t n_codecs;

/* ---- Rows */

static float random_number(size_t t, size_t c) {
    if (t % 16 == 3) return 0;                                          /* rows of zeros, */
    if (t % 16 == 5) return 1.25f;                                      /* of one number, */
    if (t % 16 == 7) return (float)(60000 * (sample_unit() - 0.5) * 2); /* of huge ones, */
    if (t % 16 == 9) return (float)(1e-7 * sample_normal());            /* of subnormal ones */
    return (float)(sample_normal() * (c % 19 == 2 ? 20 : 1));           /* and with outliers */
}

static float infinite_number(size_t t, size_t c) {
    if (t % 5 == 1 && c % 37 == 3) return INFINITY;
    if (t % 7 == 2 && c % 41 == 5) return -INFINITY;
    return random_number(t, c);
}

static float not_a_number(size_t t, size_t c) { return t % 3 == 1 && c % 7 == 3 ? NAN : infinite_number(t, c); }

/* ---- Checks */

static void make(struct encode_sample *s, const struct codec *key, const struct codec *value, size_t hd,
                 float (*number)(size_t, size_t)) {
    *s = (struct encode_sample){.hd = hd, .codec = {key, value}};
    for (size_t place = 0; place < SAMPLE_HEADS_ALL; place++)
        for (int side = 0; side < 2; side++) s->shape[place][side] = (struct codec_shape){.head_dim = (uint32_t)hd, .group = 1};
    sample_fill(s, number);
}

/* The chunk as the CPU fills it. */
static void encode_here(struct encode_sample *s, size_t first_layer) {
    float rows[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    for (size_t place = first_layer * SAMPLE_HEADS; place < SAMPLE_HEADS_ALL; place++)
        for (int side = 0; side < 2; side++)
            for (size_t item = 0; item < SAMPLE_ITEMS; item++)
                cpu_codec_of(s->codec[side])
                    ->encode(s->shape[place][side], (enum codec_side)side, rows, sample_floats(s, place, side, item, rows),
                             sample_page(s, place, side, item));
}

static void check_bytes(const struct encode_sample *s, const uint8_t *chunk) {
    for (size_t i = 0; i < s->chunk_bytes; i++)
        if (chunk[i] != s->chunk[i])
            fail_msg("%s/%s, head_dim %zu: byte %zu is %u, the CPU's %u", s->codec[0]->name, s->codec[1]->name, s->hd, i, chunk[i],
                     s->chunk[i]);
}

static bool is_nan(uint16_t half) { return (half & 0x7fff) > 0x7c00; }

static void check_rows(const struct encode_sample *s, const uint16_t *rows, size_t first_layer) {
    float decoded[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    for (size_t place = 0; place < SAMPLE_HEADS_ALL; place++) {
        for (int side = 0; side < 2; side++) {
            for (size_t item = 0; item < SAMPLE_ITEMS; item++) {
                bool coded = place >= first_layer * SAMPLE_HEADS;
                const uint16_t *own = rows + (sample_row(s, place, side, item, 0) - s->rows);
                if (coded)
                    cpu_codec_of(s->codec[side])
                        ->decode(s->shape[place][side], (enum codec_side)side, sample_page(s, place, side, item), decoded);
                for (size_t i = 0; i < PAGE_TOKENS * s->hd; i++) {
                    uint16_t expected = UNTOUCHED << 8 | UNTOUCHED;
                    if (coded && i / s->hd < s->items[item].set.count) expected = half_from_float(decoded[i]);
                    if (own[i] != expected && !(is_nan(own[i]) && is_nan(expected)))
                        fail_msg("%s, side %d, head_dim %zu, slot %zu, channel %zu: %04x, the CPU's %04x", s->codec[side]->name,
                                 side, s->hd, i / s->hd, i % s->hd, own[i], expected);
                }
            }
        }
    }
}

static void check(const struct codec *key, const struct codec *value, size_t hd, float (*number)(size_t, size_t),
                  uint32_t first_layer) {
    struct encode_sample s;
    make(&s, key, value, hd, number);
    s.encode.layer = first_layer;
    s.encode.n_layers = SAMPLE_LAYERS - first_layer;
    struct encode_item items[SAMPLE_ITEMS];
    for (size_t i = 0; i < SAMPLE_ITEMS; i++) { /* rows are those of the launch's layers */
        items[i] = s.items[i];
        for (int side = 0; side < 2; side++) items[i].rows[side] += first_layer * s.encode.layer_stride;
    }
    assert_cuda(device_send((void *)s.encode.items, items, sizeof items));
    assert_cuda(encode_pages(&s.encode, device_stream()));
    uint8_t *chunk = sample_fetch(s.chunk_device, s.chunk_bytes);
    encode_here(&s, first_layer);
    check_bytes(&s, chunk);
    uint16_t *rows = sample_decode(&s);
    check_rows(&s, rows, first_layer);
    free(rows);
    free(chunk);
    sample_free(&s);
}

/* ---- Tests */

static void pages_and_rows_are_those_of_the_cpu(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++)
        for (size_t c = 0; c < n_codecs; c++) check(codecs[c], codecs[c], head_dims[i], random_number, 0);
}

static void sides_may_be_of_two_codecs(void **state) {
    (void)state;
    for (size_t c = 0; c < n_codecs; c++) check(codecs[c], codecs[(c + 1) % n_codecs], 128, random_number, 0);
}

static void a_launch_may_be_of_some_layers(void **state) {
    (void)state;
    for (size_t c = 0; c < n_codecs; c++) check(codecs[c], codecs[c], 64, random_number, 1);
}

static void infinities_come_out_alike(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++)
        for (size_t c = 0; c < n_codecs; c++) check(codecs[c], codecs[c], head_dims[i], infinite_number, 0);
}

static void what_is_not_a_number_does_no_harm(void **state) {
    (void)state;
    for (size_t c = 0; c < n_codecs; c++) {
        struct encode_sample s;
        make(&s, codecs[c], codecs[c], 128, not_a_number);
        assert_cuda(encode_pages(&s.encode, device_stream()));
        uint8_t *chunk = sample_fetch(s.chunk_device, s.chunk_bytes);
        for (size_t i = 0; i < SAMPLE_HEADS_ALL * 2 * SAMPLE_ITEMS; i++) {
            size_t place = i / (2 * SAMPLE_ITEMS), item = i % SAMPLE_ITEMS;
            int side = (int)(i / SAMPLE_ITEMS % 2);
            memset(sample_page(&s, place, side, item), 0, s.places[place].bytes[side]);
        }
        for (size_t i = 0; i < s.chunk_bytes; i++) /* what is no page of an item's stays */
            if (s.chunk[i] == UNTOUCHED) assert_int_equal(chunk[i], UNTOUCHED);
        uint16_t *rows = sample_decode(&s);
        free(rows);
        free(chunk);
        sample_free(&s);
    }
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    n_codecs = plain_codecs(codecs);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_and_rows_are_those_of_the_cpu), cmocka_unit_test(sides_may_be_of_two_codecs),
        cmocka_unit_test(a_launch_may_be_of_some_layers), cmocka_unit_test(infinities_come_out_alike),
        cmocka_unit_test(what_is_not_a_number_does_no_harm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
