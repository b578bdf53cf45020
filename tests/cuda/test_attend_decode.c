/* A decoding step's attention on the GPU against the same in double precision over what the CPU's codecs decode: all codecs and pairs of them,
 * head sizes and groups; rows of several sequences of different lengths in one launch, read in one part and in many; exact rows, windows that
 * wrap, pages of which a part is evicted or was never filled; ALiBi. What must not be read is NaN. */
#include "attend_sample.h"
#include "no_device.h"
#include "plain_codecs.h"

/* The bound of the relative error of a head's result as a whole: the length of the difference over the length of the result. Queries are rounded to
 * halves, by at most 2^-12 of a channel, and one channel times a key's largest makes up most of a logit of some units; then weights and their
 * products with scales are. With keys of kivi it is queries times scales, whose products with codes are larger than the key: a zero takes much of
 * them back. Codes and sums are exact but for fp32. */
#define BOUND 2.5e-3
#define BOUND_KIVI_KEYS 6e-3

static double bound_of(const struct codec *keys) {
    return keys == &codec_kivi_4 || keys == &codec_kivi_2 ? BOUND_KIVI_KEYS : BOUND;
}

/* Rows of keys have a channel far larger than the others, as models' have. */
static void random_rows(const struct attend_sample *sample, uint32_t sequence, uint32_t head, enum codec_side side, float *rows) {
    (void)sequence;
    (void)head;
    for (size_t i = 0; i < PAGE_TOKENS * (size_t)sample->head_dim; i++) {
        rows[i] = (float)random_normal() * (side == CODEC_KEYS && i % sample->head_dim == 5 ? 8 : 1);
        rows[i] = half_to_float(half_from_float(rows[i]));
    }
}

#ifdef TERSE_EMULATED_CUDA
#define MANY_PAGES 17 /* the host takes its time */
#define KV_HEADS 1
#else
#define MANY_PAGES 41
#define KV_HEADS 2
#endif

/* A sequence without pages, one with some, one with many, of which the first and the last are read in part, one whose KV heads have
 * lists of their own, and one whose query comes before the end of its last page. */
static const struct sequence SOME[SEQUENCES] = {
    {.exact = 4, .evicted = 0, .pages = 0, .window = 37, .origin = 0, .splits = 1},
    {.exact = 0, .evicted = 0, .pages = 11, .begin = 0, .end = 64, .window = 1, .origin = 100, .splits = 3},
    {.exact = 20, .evicted = 77, .pages = MANY_PAGES, .begin = 23, .end = 51, .window = 90, .origin = 70, .splits = 7},
    {.exact = 4, .evicted = 9, .pages = 14, .begin = 5, .end = 60, .window = 20, .origin = 3, .splits = 2, .by_head = true},
    {.exact = 4, .evicted = 0, .pages = 3, .begin = 0, .end = 64, .window = 20, .origin = 0, .splits = 1, .behind = 40},
};

static void report(struct attend_sample *sample) {
    double error = check_attention(sample);
    if (!(error <= bound_of(sample->codec[0])))
        fail_msg("keys %s, values %s, head_dim %u, group %u: %g", sample->codec[0]->name, sample->codec[1]->name, sample->head_dim,
                 sample->group, error);
}

static struct attend_sample sample_of(const struct codec *keys, const struct codec *values, uint32_t hd, uint32_t group) {
    struct attend_sample sample = {
        .codec = {keys, values}, .head_dim = hd, .kv_heads = KV_HEADS, .group = group, .random_rows = random_rows};
    for (uint32_t i = 0; i < 2 * KV_HEADS; i++) sample.shape[i / 2][i % 2] = (struct codec_shape){.head_dim = hd, .group = group};
    memcpy(sample.sequences, SOME, sizeof SOME);
    return sample;
}

static const uint32_t head_dims[] = {64, 96, 128, 256}, groups[] = {1, 2, 4, 7, 8, 16};

static bool supported(const struct codec *keys, const struct codec *values, uint32_t hd) {
    struct head_view view = {.query_heads = 2, .kv_heads = 2, .head_dim = hd};
    return attend_decode_supports(&view, (enum codec_id[2]){keys->id, values->id}, NULL);
}

static void codecs_heads_and_groups(void **unused) {
    const struct codec *codecs[CODEC_COUNT];
    (void)unused;
    for (size_t c = 0, n = plain_codecs(codecs); c < n; c++) {
        const struct codec *codec = codecs[c];
        double worst = 0;
        for (size_t d = 0; d < 4; d++) {
            for (size_t g = 0; g < 6; g++) {
                if (!supported(codec, codec, head_dims[d])) continue;
                struct attend_sample sample = sample_of(codec, codec, head_dims[d], groups[g]);
                sample.in_place = g % 2;
                double error = check_attention(&sample);
                if (!(error <= bound_of(codec)))
                    print_message("%s, head_dim %u, group %u: %g\n", codec->name, head_dims[d], groups[g], error);
                if (!(error <= worst)) worst = error;
            }
        }
        print_message("%s: %.2g\n", codec->name, worst);
        assert_true(worst <= bound_of(codec));
    }
}

static void pairs_of_codecs(void **unused) {
    const struct codec *codecs[CODEC_COUNT];
    (void)unused;
    for (size_t i = 0, n = 0, all = plain_codecs(codecs); i < all; i++) {
        for (size_t j = 0; j < all; j++) {
            for (size_t d = 0; d < 4; d++, n++) {
                if (i == j || !supported(codecs[i], codecs[j], head_dims[d])) continue;
                struct attend_sample sample = sample_of(codecs[i], codecs[j], head_dims[d], n % 3 ? groups[n % 5] : 16);
                report(&sample);
            }
        }
    }
}

static void slopes(void **unused) {
    const struct codec *codecs[CODEC_COUNT];
    (void)unused;
    for (size_t c = 0, n = plain_codecs(codecs); c < n; c++) {
        struct attend_sample sample = sample_of(codecs[c], codecs[c], 128, codecs[c] == &codec_f16 ? 12 : 3);
        sample.slopes = true;
        report(&sample);
    }
}

/* From one part to more than there are pages. */
static void parts(void **unused) {
    static const struct codec *const codecs[] = {&codec_f16, &codec_q8_0, &codec_q4_0};
    (void)unused;
    for (uint32_t n = 1; n <= 90; n += n < 4 ? 1 : 17) {
        for (size_t c = 0; c < 3; c++) {
            struct attend_sample sample = sample_of(codecs[c], codecs[c], 128, 4);
            for (uint32_t i = 0; i < SEQUENCES; i++) sample.sequences[i].splits = 1 + (n - 1) * (i + 1) / SEQUENCES;
            report(&sample);
        }
    }
}

static void splits_are_chosen(void **unused) {
    (void)unused;
    struct head_view view = {.query_heads = 32, .kv_heads = 8, .head_dim = 128};
    assert_int_equal(attend_decode_splits(&view, CODEC_F16, 132, 1, 0), 1);
    assert_true(attend_decode_splits(&view, CODEC_F16, 132, 1, 512) > attend_decode_splits(&view, CODEC_F16, 132, 8, 512));
    assert_int_equal(attend_decode_splits(&view, CODEC_F16, 132, 1000, 512), 1);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codecs_heads_and_groups),
        cmocka_unit_test(pairs_of_codecs),
        cmocka_unit_test(slopes),
        cmocka_unit_test(parts),
        cmocka_unit_test(splits_are_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
