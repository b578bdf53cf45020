/* The codecs that learn nothing: blocks of f16, q8_0, q4_0 and kivi equal an independent conversion bit for bit, those of q8_0 and
 * q4_0 gguf-py's too, and what reads codes equals what reads decoded rows. */
#include "backend/cpu/codec/codec.h"
#include "base/half.h"
#include "support/scaled_codecs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 7;

static double random_unit(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(random_state >> 11) + 0.5) * 0x1p-53;
}

/* Normal numbers in groups of very different sizes, with some groups of zeros, equal numbers, ties and outliers. */
static void make_rows(float *rows, size_t n, size_t hd) {
    for (size_t i = 0; i < n * hd / 32; i++) {
        double size = exp(6 * random_unit() - 3);
        unsigned kind = (unsigned)(random_unit() * 12);
        for (size_t j = 0; j < 32; j++) {
            double x = size * sqrt(-2 * log(random_unit())) * cos(2 * M_PI * random_unit());
            if (kind == 0) x = 0;
            if (kind == 1) x = -size;
            if (kind == 2) x = ((double)j - 16) * 0.5; /* half way between codes */
            if (kind == 3 && j == 5) x *= 100;
            if (kind == 4) x = j % 2 ? size : -size; /* two of largest magnitude */
            if (kind == 5) x *= 1e-7;                /* the scale is a subnormal half */
            rows[i * 32 + j] = (float)x;
        }
    }
}

/* ---- Codes and a scale of 32 channels, by an independent conversion */

/* Stops the test where the codec has none. */
static const struct scaled_codec *conversion_of(const struct codec *codec) {
    const struct scaled_codec *own = scaled_codec_of(codec);
    if (!own) fail_msg("no conversion for %s: tests/support/scaled_codecs.c has to learn it", codec->name);
    return own;
}

/* The value that codec and side give channel c of token t. */
static float reference_value(const struct codec *codec, const float *rows, size_t hd, size_t t, size_t c) {
    uint16_t scale;
    int codes[32];
    if (codec == &codec_f16) return half_to_float(half_from_float(rows[t * hd + c]));
    conversion_of(codec)->convert(rows + t * hd + c / 32 * 32, &scale, codes);
    return (float)codes[c % 32] * half_to_float(scale);
}

/* Reads the scale and the code of channel c of token t from where page_layout.h puts them. */
static void page_element(const struct codec *codec, enum codec_side side, const uint8_t *page, size_t hd, size_t t, size_t c,
                         uint16_t *scale, int *code) {
    const uint16_t *scales = (const uint16_t *)page;
    *scale = scales[c / 32 * 64 + t];
    *code = conversion_of(codec)->code_at(side, page + hd / 32 * 64 * 2, hd, t, c);
}

/* ---- kivi: number i of n in a group of `count` that lie `apart`, by the definition in double precision. A slot without a
 * token may hold anything. */

static bool is_kivi(const struct codec *codec) { return codec == &codec_kivi_4 || codec == &codec_kivi_2; }

static void reference_kivi(unsigned bits, const float *x, size_t count, size_t apart, uint16_t *scale, uint16_t *zero, int *codes) {
    double least = INFINITY, most = -INFINITY, levels = bits == 4 ? 15 : 3;
    for (size_t i = 0; i < count; i++) {
        least = fmin(least, (double)x[i * apart]);
        most = fmax(most, (double)x[i * apart]);
    }
    *zero = half_from_float((float)least);
    *scale = half_from_float(((float)most - (float)least) / (float)levels);
    double s = (double)half_to_float(*scale);
    for (size_t i = 0; i < count; i++) {
        double code = s > 0 ? ((double)x[i * apart] - (double)half_to_float(*zero)) / s : 0;
        codes[i] = (int)fmin(fmax(floor(code + 0.5), 0), levels);
    }
}

static void check_kivi(const struct codec *codec, enum codec_side side, const uint8_t *page, const float *rows,
                       const float *decoded, size_t hd, size_t n) {
    unsigned bits = codec == &codec_kivi_4 ? 4 : 2;
    bool keys = side == CODEC_KEYS;
    for (size_t t = 0; t < n; t++) {
        for (size_t c = 0; c < hd; c++) {
            size_t first = keys ? t / 32 * 32 : c / 32 * 32, i = (keys ? t : c) - first;
            size_t row = keys ? 64 : hd, at = keys ? t : c, stripe = row * bits / 8;
            const float *x = keys ? rows + first * hd + c : rows + t * hd + first;
            uint16_t scale, zero;
            const uint8_t *packed = page + (keys ? 8 * hd + c * stripe : t * (stripe + hd / 8));
            const uint16_t *scales = (const uint16_t *)(keys ? page : packed + stripe);
            size_t group = keys ? t / 32 * hd + c : c / 32 * 2;
            int codes[32], byte = packed[at % stripe], code = byte >> at / stripe * bits & ((1 << bits) - 1);
            reference_kivi(bits, x, keys && n - first < 32 ? n - first : 32, keys ? hd : 1, &scale, &zero, codes);
            assert_int_equal(scales[group], scale);
            assert_int_equal(scales[group + (keys ? 2 * hd : 1)], zero);
            if (abs(code - codes[i]) > 1) fail_msg("%s code %d, not %d", codec->name, code, codes[i]);
            float s = half_to_float(scale), z = half_to_float(zero), got = decoded[t * hd + c];
            assert_true(fabsf(got - (z + s * (float)code)) <= 1e-6f * (fabsf(z) + s * (float)code));
            float best = fabsf(x[i * (keys ? hd : 1)] - (z + s * (float)codes[i]));
            assert_true(fabsf(x[i * (keys ? hd : 1)] - got) <= best + 1e-5f * (fabsf(z) + 16 * s)); /* at a tie either code */
        }
    }
}

static const size_t head_dims[] = {32, 64, 96, 128, 256};
static const size_t counts[] = {1, 17, 63, 64};

struct pages {
    struct codec_shape shape;
    float *rows, *decoded;
    uint8_t *page;
    size_t bytes;
};

static struct pages make_pages(const struct codec *codec, enum codec_side side, size_t hd, size_t n) {
    struct pages b = {.shape = {.head_dim = (uint32_t)hd, .group = 4}};
    b.bytes = codec_page_bytes(codec, b.shape, side);
    b.rows = malloc(n * hd * sizeof *b.rows);
    b.decoded = malloc(64 * hd * sizeof *b.decoded);
    assert_int_equal(posix_memalign((void **)&b.page, 64, b.bytes), 0);
    memset(b.page, 0xa5, b.bytes);
    make_rows(b.rows, n, hd);
    cpu_codec_of(codec)->encode(b.shape, side, b.rows, n, b.page);
    cpu_codec_of(codec)->decode(b.shape, side, b.page, b.decoded);
    return b;
}

static void free_pages(struct pages *b) {
    free(b->rows);
    free(b->decoded);
    free(b->page);
}

static bool learns_nothing(const struct codec *codec) { return !codec_learns(codec) && !codec->fitted; }

static void for_all_pages(void (*check)(const struct codec *codec, enum codec_side side, const struct pages *b, size_t hd,
                                        size_t n)) {
    for (size_t i = 0; codec_at(i); i++)
        for (size_t h = 0; learns_nothing(codec_at(i)) && h < sizeof head_dims / sizeof head_dims[0]; h++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
                    struct pages b = make_pages(codec_at(i), side, head_dims[h], counts[c]);
                    check(codec_at(i), side, &b, head_dims[h], counts[c]);
                    free_pages(&b);
                }
}

static void check_bits(const struct codec *codec, enum codec_side side, const struct pages *b, size_t hd, size_t n) {
    assert_int_equal(b->bytes % 64, 0);
    if (is_kivi(codec)) {
        check_kivi(codec, side, b->page, b->rows, b->decoded, hd, n);
        return;
    }
    const uint16_t *halves = (const uint16_t *)b->page;
    for (size_t i = 0; codec == &codec_f16 && i < n * hd; i++)
        assert_int_equal(halves[side == CODEC_KEYS ? i % hd * 64 + i / hd : i], half_from_float(b->rows[i]));
    for (size_t t = 0; codec != &codec_f16 && t < n; t++) {
        for (size_t c = 0; c < hd; c += 32) {
            uint16_t scale, got_scale;
            int codes[32], got;
            conversion_of(codec)->convert(b->rows + t * hd + c, &scale, codes);
            for (size_t j = 0; j < 32; j++) {
                page_element(codec, side, b->page, hd, t, c + j, &got_scale, &got);
                assert_int_equal(got_scale, scale);
                assert_int_equal(got, codes[j]);
            }
        }
    }
}

static void pages_equal_an_independent_conversion(void **state) {
    (void)state;
    for_all_pages(check_bits);
}

static void check_decoded(const struct codec *codec, enum codec_side side, const struct pages *b, size_t hd, size_t n) {
    (void)side;
    if (is_kivi(codec)) return; /* check_bits has decoded too */
    for (size_t t = 0; t < 64; t++)
        for (size_t c = 0; c < hd; c++) {
            float expected = t < n ? reference_value(codec, b->rows, hd, t, c) : 0, got = b->decoded[t * hd + c];
            if (got != expected)
                fail_msg("%s hd %zu n %zu token %zu channel %zu: %g, not %g", codec->name, hd, n, t, c, (double)got,
                         (double)expected);
        }
}

static void decoding_gives_the_reference_values_and_zeros(void **state) {
    (void)state;
    for_all_pages(check_decoded);
}

static void check_reading(const struct codec *codec, enum codec_side side, const struct pages *b, size_t hd, size_t n) {
    static const uint32_t groups[] = {1, 3, 4, 11};
    double largest = 0; /* of the block: what kivi's zeros and codes may come to */
    if (n < 63) return;
    for (size_t i = 0; i < 64 * hd; i++) largest = fmax(largest, fabs((double)b->decoded[i]));
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        uint32_t G = groups[g];
        size_t wide = hd > 64 ? hd : 64;
        struct codec_shape shape = {.head_dim = (uint32_t)hd, .group = G};
        float *in = malloc(G * wide * sizeof *in), *out = malloc(G * wide * sizeof *out);
        for (size_t i = 0; i < G * wide; i++) in[i] = (float)(2 * random_unit() - 1);
        for (size_t i = 0; i < G * wide; i++) out[i] = 3;
        if (side == CODEC_KEYS)
            cpu_codec_of(codec)->score(shape, in, NULL, b->page, out);
        else
            cpu_codec_of(codec)->accumulate_values(shape, in, b->page, out);
        size_t outputs = side == CODEC_KEYS ? 64 : hd, inputs = side == CODEC_KEYS ? hd : 64;
        for (size_t m = 0; m < G; m++)
            for (size_t o = 0; o < outputs; o++) {
                double sum = 0, magnitude = 1;
                for (size_t i = 0; i < inputs; i++) {
                    double x = (double)in[m * inputs + i] * (double)b->decoded[side == CODEC_KEYS ? o * hd + i : i * hd + o];
                    sum += x;
                    magnitude += fabs(x) + (is_kivi(codec) ? fabs((double)in[m * inputs + i]) * largest : 0);
                }
                if (side == CODEC_VALUES) sum += 3;
                double got = (double)out[m * outputs + o];
                double part = side == CODEC_VALUES || codec == &codec_q8_0 ? 65000 : 253;     /* of fixed point */
                double fixed = codec == &codec_f16 ? 0 : 2 * largest * (double)inputs / part; /* kivi is twice as wide */
                if (!(fabs(got - sum) <= 1e-6 * magnitude + fixed))
                    fail_msg("%s side %d hd %zu G %u: %g, not %g", codec->name, side, hd, G, got, sum);
            }
        free(in);
        free(out);
    }
}

static void check_channels(const struct codec *codec, enum codec_side side, const struct pages *b, size_t hd, size_t n) {
    (void)n;
    if (side == CODEC_VALUES) return;
    float *channels = malloc(64 * hd * sizeof *channels);
    cpu_codec_of(codec)->channels(b->shape, b->page, channels);
    for (size_t t = 0; t < 64; t++)
        for (size_t c = 0; c < hd; c++) assert_true(channels[c * 64 + t] == b->decoded[t * hd + c]);
    free(channels);
}

static void channels_are_decoded_keys(void **state) {
    (void)state;
    for_all_pages(check_channels);
}

static void scores_and_accumulates_equal_decoded_rows(void **state) {
    (void)state;
    for_all_pages(check_reading);
}

static void read_fixture(const char *name, void *data, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, TESTS_DIR "/fixtures/quant_blocks/%s", name);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    assert_int_equal(fread(data, 1, bytes, file), bytes);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

/* rows.q8_0 and rows.q4_0: 64 rows of 32 channels as gguf-py quantizes them, ggml's blocks {half scale, codes} in a row. */
static void pages_equal_ggufs(void **state) {
    (void)state;
    static float rows[64 * 32];
    static uint8_t q8_0[64 * 34], q4_0[64 * 18];
    read_fixture("rows.f32", rows, sizeof rows);
    read_fixture("rows.q8_0", q8_0, sizeof q8_0);
    read_fixture("rows.q4_0", q4_0, sizeof q4_0);
    for (size_t hd = 32; hd <= 128; hd *= 2) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct codec_shape shape = {.head_dim = (uint32_t)hd, .group = 1};
            size_t tokens = 64 * 32 / hd;
            uint16_t block8[PAGE_BYTES_Q8_0(128) / 2], block4[PAGE_BYTES_Q4_0(128) / 2], want_scale, scale;
            cpu_codec_q8_0.encode(shape, side, rows, tokens, block8);
            cpu_codec_q4_0.encode(shape, side, rows, tokens, block4);
            for (size_t i = 0; i < 64 * 32; i++) { /* channel i % hd of token i / hd */
                size_t group = i / 32, channel = i % 32;
                int code, byte = q4_0[group * 18 + 2 + channel % 16];
                page_element(&codec_q8_0, side, (uint8_t *)block8, hd, i / hd, i % hd, &scale, &code);
                memcpy(&want_scale, q8_0 + group * 34, 2);
                assert_int_equal(scale, want_scale);
                assert_int_equal(code, (int8_t)q8_0[group * 34 + 2 + channel]);
                page_element(&codec_q4_0, side, (uint8_t *)block4, hd, i / hd, i % hd, &scale, &code);
                memcpy(&want_scale, q4_0 + group * 18, 2);
                assert_int_equal(scale, want_scale);
                assert_int_equal(code, (channel < 16 ? byte & 15 : byte >> 4) - 8);
            }
        }
    }
}

/* Numbers no scale can hold must not be undefined behaviour (the sanitizers' part of this test). */
static void infinities_and_nan_are_survived(void **state) {
    (void)state;
    float rows[3 * 32];
    uint8_t page[PAGE_BYTES_F16(32)];
    for (size_t i = 0; i < 32; i++) {
        rows[i] = i == 3 ? INFINITY : (float)i;
        rows[32 + i] = i == 4 ? NAN : (float)i;
        rows[64 + i] = i == 5 ? 3e38f : 1e-40f;
    }
    const struct codec_shape shape = {.head_dim = 32, .group = 1};
    for (size_t i = 0; codec_at(i); i++)
        for (enum codec_side side = CODEC_KEYS; learns_nothing(codec_at(i)) && side <= CODEC_VALUES; side++) {
            assert_true(codec_page_bytes(codec_at(i), shape, side) <= sizeof page);
            cpu_codec_of(codec_at(i))->encode(shape, side, rows, 3, page);
        }
}

static void codecs_are_found_by_name(void **state) {
    (void)state;
    size_t n = 0;
    for (; codec_at(n); n++) /* those that learn cannot be had by name alone */
        assert_ptr_equal(codec_find(codec_at(n)->name), learns_nothing(codec_at(n)) ? codec_at(n) : NULL);
    assert_int_equal(n, CODEC_COUNT); /* none is without a row */
    assert_null(codec_find("q5_0"));
    assert_null(codec_find(""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_equal_ggufs),
        cmocka_unit_test(pages_equal_an_independent_conversion),
        cmocka_unit_test(decoding_gives_the_reference_values_and_zeros),
        cmocka_unit_test(channels_are_decoded_keys),
        cmocka_unit_test(scores_and_accumulates_equal_decoded_rows),
        cmocka_unit_test(infinities_and_nan_are_survived),
        cmocka_unit_test(codecs_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
