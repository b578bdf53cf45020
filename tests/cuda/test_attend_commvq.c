/* A decoding step's attention over pages of CommVQ on the GPU against the same in double precision over what the CPU's codecs decode:
 * bits, head sizes and groups, ropes, parts, ALiBi; CTAs that read one part each, and several. */
#include "attend_sample.h"
#include "commvq_sample.h"
#include "kv/pre_rope.h"
#include "no_device.h"

/* Keys are rotated in halves, and queries, weights and weights times gains are rounded to halves, by at most 2^-12 of themselves. */
#define BOUND 2.5e-3

#define HEADS 2

struct setup {
    uint32_t bits, head_dim, group, n_rot;
    enum rope_pairing pairing;
    float magnitude;
    bool slopes, in_place;
    uint32_t splits; /* of the longest sequence; 0: as SOME says */
};

/* A sequence without pages, one with a page that is read in several parts, one with many pages, one whose KV heads have lists of
 * their own, and one whose query comes before the end of its last page. */
static const struct sequence SOME[SEQUENCES] = {
    {.exact = 4, .evicted = 0, .pages = 0, .window = 37, .origin = 0, .splits = 1},
    {.exact = 0, .evicted = 0, .pages = 1, .begin = 0, .end = 64, .window = 1, .origin = 100, .splits = 5},
    {.exact = 20, .evicted = 77, .pages = 19, .begin = 23, .end = 51, .window = 90, .origin = 70, .splits = 2},
    {.exact = 4, .evicted = 9, .pages = 7, .begin = 5, .end = 60, .window = 20, .origin = 3, .splits = 2, .by_head = true},
    {.exact = 4, .evicted = 0, .pages = 3, .begin = 0, .end = 64, .window = 20, .origin = 0, .splits = 1, .behind = 40},
};

static void random_rows(const struct attend_sample *sample, uint32_t sequence, uint32_t head, enum codec_side side, float *rows) {
    const struct commvq_sample *own = sample->parameters;
    (void)sequence;
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        double gain = exp(2 * random_uniform(random_next(&attend_state)) - 1);
        for (size_t c = 0; c < sample->head_dim; c++)
            rows[t * sample->head_dim + c] = (float)(gain * random_normal()) + own[2 * head + side].mean[c];
    }
}

static double check(const struct setup *setup) {
    static struct commvq_sample sides[HEADS][2];
    static struct commvq_view keys[LAYERS][HEADS];
    static struct additive_view values[LAYERS][HEADS];
    struct attend_sample sample = {.codec = {&codec_commvq, &codec_additive},
                                   .head_dim = setup->head_dim,
                                   .kv_heads = HEADS,
                                   .group = setup->group,
                                   .n_rot = setup->n_rot,
                                   .pairing = setup->pairing,
                                   .magnitude = setup->magnitude,
                                   .slopes = setup->slopes,
                                   .in_place = setup->in_place,
                                   .random_rows = random_rows,
                                   .parameters = sides};
    memcpy(sample.sequences, SOME, sizeof SOME);
    if (setup->splits) sample.sequences[2].splits = setup->splits;
    for (uint32_t head = 0; head < HEADS; head++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct codec_shape *shape = &sample.shape[head][side];
            *shape = (struct codec_shape){.head_dim = setup->head_dim, .group = setup->group};
            commvq_make(&sides[head][side], setup->bits, side, setup->n_rot / 2, setup->pairing == ROPE_ADJACENT, &attend_state,
                        shape);
            sample.attend.centroid[side] = (struct centroid_shape){shape->width, shape->bits};
        }
        keys[LAYER][head] = sides[head][0].view.key;
        values[LAYER][head] = sides[head][1].view.value;
    }
    sample.attend.learned[0] = take(&sample, keys, sizeof keys);
    sample.attend.learned[1] = take(&sample, values, sizeof values);
    sample.attend.pre_rope.offsets = make_angles(&sample, PRE_ROPE_OFFSETS, 1);
    double worst = check_attention(&sample);
    for (uint32_t i = 0; i < 2 * HEADS; i++) commvq_free_sample(&sides[i / 2][i % 2], (enum codec_side)(i % 2));
    return worst;
}

static struct setup setup_of(uint32_t bits, uint32_t hd, uint32_t group) {
    return (struct setup){.bits = bits, .head_dim = hd, .group = group, .n_rot = hd};
}

static void report(const struct setup *setup) {
    double error = check(setup);
    print_message("%u bits, head_dim %u, %u queries, %u channels rotated, %u parts: %.2e\n", setup->bits, setup->head_dim,
                  setup->group, setup->n_rot, setup->splits, error);
    assert_true(error <= BOUND);
}

static void head_sizes_and_groups(void **unused) {
    static const uint32_t shapes[][3] = {{1, 64, 3}, {2, 64, 16}, {1, 128, 4}, {2, 128, 8}, {1, 256, 1}, {2, 256, 2}};
    (void)unused;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct setup setup = setup_of(shapes[i][0], shapes[i][1], shapes[i][2]);
        setup.pairing = i % 2 ? ROPE_ADJACENT : ROPE_HALF_SPLIT;
        report(&setup);
    }
}

static void ropes(void **unused) {
    (void)unused;
    for (uint32_t n_rot = 0; n_rot <= 48; n_rot += 24) {
        struct setup setup = setup_of(1, 64, 2);
        setup.n_rot = n_rot;
        setup.pairing = n_rot % 48 ? ROPE_ADJACENT : ROPE_HALF_SPLIT;
        setup.magnitude = 1.2f;
        setup.slopes = setup.in_place = n_rot == 0;
        report(&setup);
    }
}

static void parts(void **unused) {
    (void)unused;
    for (uint32_t splits = 1; splits <= 21; splits += 10) {
        struct setup setup = setup_of(1, 64, 4);
        setup.splits = splits;
        report(&setup);
    }
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(head_sizes_and_groups), cmocka_unit_test(ropes), cmocka_unit_test(parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
