/* Packing: tokens copied out of pages decode to the same bits in the page that they are packed into, and change nothing else there; the kernel of every tier
 * moves codes of all widths as a plain loop over bits does. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/commvq.h"
#include "backend/cpu/codec/index.h"
#include "support/kernel_check.h"
#include "train/codec_learning.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST_HD 128

/* ---- The kernel */

/* Bit `b` of the code of slot t in set m: planes of 16, 8, 4, 2, 1 bits one after another. */
static size_t bit_at(unsigned bits, size_t m, size_t t, unsigned b) {
    size_t at = m * 64 * bits;
    for (unsigned part = 16; part; part /= 2) {
        if (!(bits & part)) continue;
        if (b < part) return at + t * part + b;
        at += 64 * part;
        b -= part;
    }
    return 0;
}

static bool get(const uint8_t *bytes, size_t bit) { return bytes[bit / 8] >> bit % 8 & 1; }

static size_t some_slots(struct random *random, size_t most, uint8_t *slots) {
    size_t n = 0;
    for (uint8_t t = 0; t < 64 && n < most; t++)
        if (random_bits(random) % 64 < 2 * most) slots[n++] = t;
    return n;
}

static void check_codes(const struct tier *k, struct random *random, unsigned bits, size_t parts, size_t most,
                        enum guard_side side) {
    size_t bytes = parts * bits * 8;
    uint8_t *from = guard_bytes(bytes, side), *to = guard_bytes(bytes, side), *before = malloc(bytes), slots[64];
    size_t n = some_slots(random, most, slots), at = random_bits(random) % (65 - n);
    fill_bytes(random, from, bytes);
    fill_bytes(random, to, bytes);
    memcpy(before, to, bytes);
    k->select->gather_codes(from, parts, bits, slots, n, to, at);
    for (size_t m = 0; m < parts; m++)
        for (size_t t = 0; t < 64; t++)
            for (unsigned b = 0; b < bits; b++) {
                bool taken = t >= at && t < at + n;
                const uint8_t *source = taken ? from : before;
                if (get(to, bit_at(bits, m, t, b)) != get(source, bit_at(bits, m, taken ? slots[t - at] : t, b)))
                    fail_msg("%s: %u bits, %zu sets, %zu slots from %zu on: slot %zu bit %u", k->name, bits, parts, n, at, t, b);
            }
    free(before);
    guard_release();
}

static void kernels_move_codes_of_all_widths(void **state) {
    (void)state;
    static const size_t most[] = {0, 1, 3, 5, 12, 33, 64};
    struct random random = {1};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++)
        for (unsigned bits = 1; bits <= 16; bits += bits == 12 ? 4 : 1)
            for (size_t m = 0; m < sizeof most / sizeof most[0]; m++)
                for (size_t parts = 1; parts <= 16; parts *= 2)
                    check_codes(k, &random, bits, parts, most[m], parts % 2 ? GUARD_END : GUARD_START);
}

/* ---- The codecs */

struct side_of {
    const struct codec *codec;
    enum codec_side side;
    uint32_t width, bits;
};

/* Those of codecs that have a width and bits or learn; the plain ones' follow from the table of codecs. */
static const struct side_of sides[] = {
    {&codec_sign, CODEC_KEYS, 0, 0},       {&codec_sign, CODEC_VALUES, 0, 0},        {&codec_pq, CODEC_KEYS, 4, 8},
    {&codec_pq, CODEC_VALUES, 8, 12},      {&codec_vq, CODEC_KEYS, 16, 7},           {&codec_vq, CODEC_VALUES, 2, 4},
    {&codec_gain_shape, CODEC_KEYS, 8, 8}, {&codec_gain_shape, CODEC_VALUES, 16, 5}, {&codec_commvq, CODEC_KEYS, 32, 24},
};

/* Learned or fitted, of random numbers. */
static void *learn(struct random *random, const struct side_of *s, struct codec_shape *shape, const float *rows) {
    void *learned = NULL;
    struct terse_error error;
    if (s->codec->fitted && codec_fitted_bytes(s->codec, *shape, s->side)) {
        struct index_options options = index_options_defaults();
        learned = malloc(codec_fitted_bytes(s->codec, *shape, s->side));
        cpu_codec_of(s->codec)->fit(*shape, s->side, rows, 128, shape->head_dim, &options, learned);
    }
    if (codec_learns(s->codec)) {
        size_t n = codec_parameters(s->codec, *shape);
        float *floats = malloc(n * sizeof *floats);
        fill_floats(random, FILL_NORMAL, floats, n);
        if (s->codec == &codec_commvq) commvq_set_pairing(*shape, floats, shape->head_dim / 2, true);
        if (s->codec->normalized) codec_fit_normalization(s->codec, *shape, rows, 128, floats);
        assert_int_equal(cpu_codec_of(s->codec)->learned->make(*shape, s->side, floats, &learned, &error), TERSE_OK);
        free(floats);
    }
    if (s->codec->fitted)
        shape->fitted = learned;
    else
        shape->learned = learned;
    return learned;
}

static void *zero_page(size_t bytes) {
    void *page = aligned_alloc(64, bytes);
    assert_non_null(page);
    return memset(page, 0, bytes);
}

/* Gathers tokens of two pages alternately until a third is full, and once more over what is there. */
static void check_side(struct random *random, const struct side_of *s, size_t hd) {
    struct codec_shape shape = {.head_dim = (uint32_t)hd, .group = 2, .width = s->width, .bits = s->bits};
    float *rows = malloc(128 * hd * sizeof *rows), *decoded = malloc(3 * 64 * hd * sizeof *decoded);
    fill_floats(random, FILL_NORMAL, rows, 128 * hd);
    void *learned = learn(random, s, &shape, rows);
    size_t bytes = codec_page_bytes(s->codec, shape, s->side);
    void *pages[3];
    for (size_t i = 0; i < 3; i++) pages[i] = zero_page(bytes);
    for (size_t i = 0; i < 2; i++) {
        cpu_codec_of(s->codec)->encode(shape, s->side, rows + i * 64 * hd, 64, pages[i]);
        cpu_codec_of(s->codec)->decode(shape, s->side, pages[i], decoded + i * 64 * hd);
    }
    for (int times = 0; times < 2; times++) {
        uint8_t slots[64], origin[64];
        size_t at = 0;
        for (size_t i = 0; at < 64; i++) {
            size_t n = some_slots(random, 64 - at < 5 ? 64 - at : 5, slots);
            if (cpu_codec_of(s->codec)->prefetch_tokens)
                cpu_codec_of(s->codec)->prefetch_tokens(shape, s->side, pages[i % 2], slots, n);
            cpu_codec_of(s->codec)->gather_tokens(shape, s->side, pages[i % 2], slots, n, pages[2], at);
            for (size_t j = 0; j < n; j++) origin[at + j] = (uint8_t)(i % 2 * 64 + slots[j]);
            at += n;
            cpu_codec_of(s->codec)->decode(shape, s->side, pages[2], decoded + 128 * hd);
            for (size_t t = 0; t < at; t++)
                if (memcmp(decoded + (128 + t) * hd, decoded + origin[t] * hd, hd * sizeof *decoded))
                    fail_msg("%s, side %d, %u x %u, hd %zu: slot %zu", s->codec->name, s->side, s->width, s->bits, hd, t);
        }
    }
    for (size_t i = 0; i < 3; i++) free(pages[i]);
    if (cpu_codec_of(s->codec)->learned)
        cpu_codec_of(s->codec)->learned->free(learned);
    else
        free(learned);
    free(rows);
    free(decoded);
}

static void taken_tokens_decode_to_the_same_bits(void **state) {
    (void)state;
    struct random random = {2};
    for (size_t i = 0; i < sizeof sides / sizeof sides[0]; i++)
        for (size_t hd = 64; hd <= MOST_HD; hd += 32)
            if (hd != 96 || !sides[i].width || (sides[i].width <= 8 && sides[i].codec != &codec_commvq))
                check_side(&random, &sides[i], hd);
}

static void plain_codecs_too(void **state) {
    (void)state;
    struct random random = {3};
    const struct codec *codec;
    for (size_t i = 0; (codec = codec_at(i)); i++) {
        if (codec_learns(codec) || codec->fitted) continue;
        for (size_t hd = 64; hd <= MOST_HD; hd += 32) {
            if (codec->gather == CODEC_GATHERS_BOTH) check_side(&random, &(struct side_of){codec, CODEC_KEYS, 0, 0}, hd);
            if (codec->gather != CODEC_GATHERS_NOTHING) check_side(&random, &(struct side_of){codec, CODEC_VALUES, 0, 0}, hd);
        }
    }
}

/* A codec that does not say so has every side that it serves tried above. */
static void keys_of_kivi_stay(void **state) {
    (void)state;
    for (size_t i = 0; codec_at(i); i++) {
        const struct codec *codec = codec_at(i);
        assert_true(!(codec->gather == CODEC_GATHERS_VALUES) == (codec != &codec_kivi_4 && codec != &codec_kivi_2));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_move_codes_of_all_widths),
        cmocka_unit_test(taken_tokens_decode_to_the_same_bits),
        cmocka_unit_test(plain_codecs_too),
        cmocka_unit_test(keys_of_kivi_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
