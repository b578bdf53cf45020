/* A decoding step's attention over pages of codecs with centroids (pq, vq, gain-shape) on the GPU against the same in double precision over what
 * the CPU's codecs decode: widths and bits, one beside another; head sizes and groups; runs of keys; ALiBi; CTAs that read one part each, and
 * several; the kernel that has tables of a query's products, with caps and learned sinks. */
#include "attend_sample.h"
#include "centroids_sample.h"
#include "no_device.h"

/* Queries, weights and weights times gains are rounded to halves, by at most 2^-12 of themselves. */
#define BOUND 2.5e-3

#define HEADS 2

struct setup {
    struct coding key, value;
    uint32_t head_dim, group, n_rot;
    enum rope_pairing pairing;
    bool slopes, sinks, in_place;
    float cap;
    uint32_t splits, pages; /* of the longest sequence; 0: as SOME says */
    uint32_t short_splits;  /* of the sequence with one page; 0: the same */
};

/* A sequence without pages, one with a page that is read in several parts, one with many pages, one whose KV heads have lists of their own, and one
 * whose query comes before the end of its last page. Read in one part, the third has more rows of halves than there is room for at once beside
 * centroids of 128 channels. */
static const struct sequence SOME[SEQUENCES] = {
    {.exact = 4, .evicted = 0, .pages = 0, .window = 37, .origin = 0, .splits = 1},
    {.exact = 0, .evicted = 0, .pages = 1, .begin = 0, .end = 64, .window = 1, .origin = 100, .splits = 5},
    {.exact = 20, .evicted = 77, .pages = 27, .begin = 23, .end = 51, .window = 128, .origin = 70, .splits = 2},
    {.exact = 4, .evicted = 9, .pages = 14, .begin = 5, .end = 60, .window = 20, .origin = 3, .splits = 2, .by_head = true},
    {.exact = 4, .evicted = 0, .pages = 3, .begin = 0, .end = 64, .window = 20, .origin = 0, .splits = 1, .behind = 40},
};

static void random_rows(const struct attend_sample *sample, uint32_t sequence, uint32_t head, enum codec_side side, float *rows) {
    const struct centroids_sample *own = sample->parameters;
    const bool normalized = sample->codec[side]->normalized;
    const float *mean = own[2 * head + side].parameters + codec_parameters(&codec_vq, sample->shape[head][side]);
    (void)sequence;
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        double gain = normalized ? exp(2 * random_uniform(random_next(&attend_state)) - 1) : 1;
        for (size_t c = 0; c < sample->head_dim; c++)
            rows[t * sample->head_dim + c] = (float)(gain * random_normal()) + (normalized ? mean[c] : 0);
    }
}

static double check(const struct setup *setup) {
    struct centroids_sample sides[HEADS][2];
    struct centroid_view views[2][LAYERS][HEADS] = {0};
    struct attend_sample sample = {.codec = {setup->key.codec, setup->value.codec},
                                   .head_dim = setup->head_dim,
                                   .kv_heads = HEADS,
                                   .group = setup->group,
                                   .n_rot = setup->n_rot,
                                   .pairing = setup->pairing,
                                   .slopes = setup->slopes,
                                   .sinks = setup->sinks,
                                   .cap = setup->cap,
                                   .in_place = setup->in_place,
                                   .random_rows = random_rows,
                                   .parameters = sides};
    memcpy(sample.sequences, SOME, sizeof SOME);
    if (setup->splits) sample.sequences[2].splits = setup->splits;
    if (setup->pages) sample.sequences[2].pages = setup->pages;
    if (setup->short_splits) sample.sequences[1].splits = setup->short_splits;
    for (uint32_t head = 0; head < HEADS; head++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct codec_shape *shape = &sample.shape[head][side];
            *shape = (struct codec_shape){.head_dim = setup->head_dim, .group = setup->group};
            centroids_make(&sides[head][side], side ? setup->value : setup->key, side, &attend_state, shape);
            views[side][LAYER][head] = sides[head][side].view;
            sample.attend.centroid[side] = centroid_shape_of(&sides[head][side].coding);
        }
    }
    for (int side = 0; side < 2; side++) sample.attend.learned[side] = take(&sample, views[side], sizeof views[side]);
    double worst = check_attention(&sample);
    for (uint32_t i = 0; i < 2 * HEADS; i++) centroids_free_sample(&sides[i / 2][i % 2]);
    return worst;
}

static struct coding pq(uint32_t width, uint32_t bits) { return (struct coding){&codec_pq, width, bits, 0}; }
static struct coding vq(uint32_t width, uint32_t bits) { return (struct coding){&codec_vq, width, bits, 0}; }
static struct coding gain_shape(uint32_t width, uint32_t bits) { return (struct coding){&codec_gain_shape, width, bits, 0}; }

static struct setup setup_of(struct coding key, struct coding value, uint32_t hd, uint32_t group) {
    return (struct setup){.key = key, .value = value, .head_dim = hd, .group = group, .n_rot = hd};
}

static void report(const struct setup *setup, double *worst) {
    double error = check(setup);
    if (!(error <= BOUND))
        print_message("%s %u x %u, %s %u x %u, head_dim %u, group %u, n_rot %u: %g\n", setup->key.codec->name, setup->key.width,
                      setup->key.bits, setup->value.codec->name, setup->value.width, setup->value.bits, setup->head_dim,
                      setup->group, setup->n_rot, error);
    if (!(error <= *worst)) *worst = error;
}

static void finish(const char *what, double worst) {
    print_message("%s: %.2g\n", what, worst);
    assert_true(worst <= BOUND);
}

static const uint32_t head_dims[] = {64, 96, 128, 256};

static void widths_and_bits(void **unused) {
    static const struct {
        uint32_t width, bits;
    } codes[] = {{2, 8}, {4, 8}, {8, 8}, {16, 8}, {4, 12}, {16, 12}, {32, 12}, {2, 4}, {2, 5}, {4, 6}, {8, 7}, {4, 9}, {8, 11}};
    double worst = 0;
    (void)unused;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct setup setup = setup_of(pq(codes[i].width, codes[i].bits), pq(codes[i].width, codes[i].bits), 128, 4);
        setup.in_place = i % 2;
        report(&setup, &worst);
    }
    finish("widths and bits", worst);
}

static void head_sizes_and_groups(void **unused) {
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 8, 12, 16};
    double worst = 0;
    (void)unused;
    for (size_t d = 0; d < 4; d++) {
        for (size_t w = 0; w < 3; w++) {
            struct coding coding = (d + w) % 2 ? gain_shape(2u << w, 8) : vq(2u << w, 8);
            struct setup setup = setup_of(coding, coding, head_dims[d], groups[(2 * d + 3 * w) % 8]);
            report(&setup, &worst);
        }
    }
    finish("head sizes and groups", worst);
}

static void sides_of_two_kinds(void **unused) {
    double worst = 0;
    (void)unused;
    struct setup setups[] = {setup_of(pq(2, 8), vq(8, 8), 128, 4),
                             setup_of(gain_shape(8, 8), pq(4, 12), 64, 2),
                             setup_of(vq(32, 12), gain_shape(16, 12), 128, 8),
                             setup_of(gain_shape(4, 8), gain_shape(4, 8), 128, 4),
                             setup_of(gain_shape(2, 8), gain_shape(2, 8), 128, 4), /* sides in two pieces, with gains */
                             setup_of(gain_shape(2, 8), gain_shape(64, 8), 128, 3),
                             setup_of(gain_shape(32, 8), pq(4, 8), 128, 2),
                             setup_of(pq(16, 8), gain_shape(2, 8), 96, 4)};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        setups[i].slopes = i % 2;
        report(&setups[i], &worst);
    }
    finish("sides of two kinds", worst);
}

static void ropes(void **unused) {
    double worst = 0;
    (void)unused;
    for (uint32_t n_rot = 0; n_rot <= 128; n_rot += 32) {
        for (int adjacent = 0; adjacent < 2; adjacent++) {
            struct coding coding = n_rot % 64 ? vq(8, 8) : gain_shape(4, 8);
            struct setup setup = setup_of(coding, coding, 128, 4);
            setup.n_rot = n_rot, setup.pairing = adjacent ? ROPE_ADJACENT : ROPE_HALF_SPLIT;
            report(&setup, &worst);
        }
    }
    finish("ropes", worst);
}

static void parts(void **unused) {
    double worst = 0;
    (void)unused;
    for (uint32_t splits = 1; splits <= 40; splits += 13) {
        struct setup setup = setup_of(gain_shape(8, 8), gain_shape(8, 8), 128, 4);
        setup.splits = splits;
        report(&setup, &worst);
    }
    finish("parts", worst);
}

/* With one query head of 128 or 64 channels a KV head: pages fewer than warps and more than a chunk has, parts without pages, logits in all their forms. */
static void tables(void **unused) {
    static const struct setup forms[] = {
        {.splits = 1},
        {.splits = 1, .pages = 145, .slopes = true},
        {.splits = 2, .pages = 263, .short_splits = 12}, /* a CTA reads both parts, of two chunks each */
        {.splits = 3, .sinks = true},
        {.splits = 14, .cap = 1.5f, .in_place = true},
        {.splits = 40, .slopes = true, .sinks = true, .cap = 3}};
    double worst = 0;
    (void)unused;
    for (size_t i = 0; i < 2 * (sizeof forms / sizeof *forms); i++) {
        struct setup setup = forms[i / 2];
        setup.key = setup.value = pq(2, 8), setup.head_dim = setup.n_rot = i % 2 ? 64 : 128, setup.group = 1;
        report(&setup, &worst);
    }
    finish("tables", worst);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(widths_and_bits),
                                       cmocka_unit_test(head_sizes_and_groups),
                                       cmocka_unit_test(sides_of_two_kinds),
                                       cmocka_unit_test(ropes),
                                       cmocka_unit_test(parts),
                                       cmocka_unit_test(tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
