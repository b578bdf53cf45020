/* A decoding step over pages of codec transform (attend_sample.h): parameters of a profile and those fitted to a sequence, and rows
 * that are as they say. */
#ifndef TERSE_TESTS_CUDA_TRANSFORM_SAMPLE_H
#define TERSE_TESTS_CUDA_TRANSFORM_SAMPLE_H

#include "attend_sample.h"
#include "backend/cpu/codec/transform.h"
#include "backend/cuda/kv/pre_rope_fragments.h"
#include "backend/cuda/kv/transforms.h"
#include "kv/pre_rope.h"

#define HEADS 2
#define PRE_ROPE_SIZE \
    10 /* of keys' mean before rotation: as large as biases make it, which products of halves alone would not bear */

/* A side has the parameters and the layout of one side of a layer's head. */
struct side {
    float *parameters;
    struct transform_layout layout;
};

struct setup {
    double rate[2];
    uint32_t head_dim, group, n_rot;
    enum rope_pairing pairing;
    struct sequence sequences[SEQUENCES];
    bool slopes, in_place, fitted;
    void (*prepare)(struct attend_sample *sample, struct query_row_view *rows); /* as of attend_sample */
    void (*choose)(struct attend_sample *sample, const float *q);
};

/* A basis that is a product of reflections, each row of a length of its own; sizes that fall. */
static inline void make_parameters(enum codec_side side, uint32_t hd, float *floats) {
    float *mean = floats, *pre_rope_mean = mean + hd, *size = pre_rope_mean + hd, *basis = size + hd,
          *rest = basis + (size_t)hd * hd;
    double square = 0, own = 1, v[CODEC_HEAD_DIM_MAX];
    for (size_t c = 0; c < hd; c++, own *= pow(0.02, 1.0 / hd)) {
        mean[c] = (float)random_normal();
        pre_rope_mean[c] = side == CODEC_KEYS ? (float)(PRE_ROPE_SIZE * random_normal()) : 0;
        size[c] = (float)own;
        square += own * own;
        for (size_t ch = 0; ch < hd; ch++) basis[c * hd + ch] = c == ch ? (float)(1 + 0.3 * random_normal() / 3) : 0;
    }
    for (size_t c = 0; c < hd; c++) size[c] *= (float)sqrt(hd / square);
    for (int reflection = 0; reflection < 5; reflection++) {
        double norm = 0;
        for (size_t ch = 0; ch < hd; ch++) v[ch] = random_normal(), norm += v[ch] * v[ch];
        for (size_t c = 0; c < hd; c++) {
            double dot = 0;
            for (size_t ch = 0; ch < hd; ch++) dot += v[ch] * (double)basis[c * hd + ch];
            for (size_t ch = 0; ch < hd; ch++) basis[c * hd + ch] -= (float)(2 * dot / norm * v[ch]);
        }
    }
    rest[0] = 0.1f, rest[1] = 4, rest[2] = 1, rest[3] = rest[4] = 0;
}

/* Returns the kernels' view of a record, without a metric, which attention does not read. */
static inline struct transform_view view_of(struct attend_sample *sample, const void *record, const struct transform_layout *layout,
                                            enum codec_side side) {
    const uint32_t hd = sample->head_dim;
    const struct transform_fitted own = transform_fitted_at(record, hd);
    int16_t *integers = allocated((size_t)hd * hd * sizeof *integers);
    uint32_t readers[2 * TRANSFORM_PLANES_MAX];
    float step[CODEC_HEAD_DIM_MAX];
    for (size_t c = 0; c < hd; c++) {
        step[c] = own.size[c] * own.unit[c];
        transform_record_integers(&own, hd, c, integers + c * hd);
    }
    transform_readers(layout, side, readers);
    struct transform_view view = {.layout = *layout,
                                  .gain_zero = transform_gain_zero(&own),
                                  .gain_step = transform_gain_step(&own),
                                  .gain = own.gain,
                                  .mean = take(sample, own.mean, hd * sizeof(float)),
                                  .pre_rope_mean = take(sample, own.pre_rope_mean, hd * sizeof(float)),
                                  .step = take(sample, step, hd * sizeof(float)),
                                  .basis = take(sample, integers, (size_t)hd * hd * sizeof *integers),
                                  .readers = take(sample, readers, transform_reader_words(layout) * sizeof *readers)};
    transform_quads(layout, view.quad);
    transform_set_scored(hd, &view);
    free(integers);
    return view;
}

/* Sides of all heads; shapes hold what the CPU's codec has learned. */
static inline void make_sides(const struct setup *setup, struct attend_sample *sample, struct side sides[HEADS][2]) {
    const uint32_t hd = setup->head_dim;
    static struct transform_view views[2][LAYERS][HEADS];
    for (uint32_t head = 0; head < HEADS; head++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            struct side *own = &sides[head][side];
            struct codec_shape *shape = &sample->shape[head][side];
            uint8_t bits[TRANSFORM_QUADS_MAX] = {0};
            void *learned;
            own->parameters = allocated(transform_parameter_floats(hd) * sizeof(float));
            make_parameters(side, hd, own->parameters);
            struct transform_parameters parameters = transform_parameters_at(own->parameters, hd);
            struct transform_share share = {.size = parameters.size, .quad_bits = bits};
            assert_int_equal(transform_share_bits(&share, 1, hd, setup->rate[side] * (head ? 0.75 : 1), NULL), TERSE_OK);
            transform_layout_set(bits, hd, &own->layout);
            *shape = (struct codec_shape){.head_dim = hd, .group = setup->group, .layout = &own->layout};
            assert_int_equal(cpu_codec_transform.learned->make(*shape, side, own->parameters, &learned, NULL), TERSE_OK);
            shape->learned = learned;
            views[side][LAYER][head] = view_of(sample, ((const struct transform_learned *)learned)->record, &own->layout, side);
        }
    }
    for (int side = 0; side < 2; side++) sample->attend.learned[side] = take(sample, views[side], sizeof views[side]);
}

/* Gives a sequence transforms of its own, of the launch's layouts, and places that it alone has; returns its records. */
static inline uint8_t *make_fitted(struct attend_sample *sample, struct side sides[HEADS][2], uint32_t number) {
    const uint32_t hd = sample->head_dim;
    const size_t own = TRANSFORM_RECORD_BYTES(hd);
    static struct transform_view views[2][LAYERS][HEADS];
    uint8_t *records = allocated(own * HEADS * 2);
    float *parameters = allocated(transform_parameter_floats(hd) * sizeof *parameters);
    for (uint32_t head = 0; head < HEADS; head++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            uint8_t *record = records + (2 * head + (size_t)side) * own;
            make_parameters(side, hd, parameters);
            for (size_t c = 0; c < hd; c++) parameters[c] = (float)random_normal();
            transform_record_set(transform_parameters_at(parameters, hd), hd, record);
            views[side][LAYER][head] = view_of(sample, record, &sides[head][side].layout, side);
        }
    }
    for (int side = 0; side < 2; side++)
        sample->views[number].rates[0].transforms[side] = take(sample, views[side], sizeof views[side]);
    sample->views[number].rates[0].places = sample->attend.places;
    sample->records[number] = records, sample->record_bytes = own;
    free(parameters);
    return records;
}

/* Draws rows with the distribution that the parameters are made for. */
static inline void random_rows(const struct attend_sample *sample, uint32_t sequence, uint32_t head, enum codec_side side,
                               float *rows) {
    const struct side *sides = sample->parameters; /* [HEADS][2] */
    const uint32_t hd = sample->head_dim;
    const struct transform_parameters own = transform_parameters_at(sides[2 * head + side].parameters, hd);
    const uint8_t *records = sample->records[sequence];
    const float *mean = own.mean;
    if (records) mean = transform_fitted_at(records + (2 * head + (size_t)side) * sample->record_bytes, hd).mean;
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        double gain = exp(random_uniform(random_next(&attend_state)) - 0.5);
        for (size_t ch = 0; ch < hd; ch++) rows[t * hd + ch] = mean[ch];
        for (size_t c = 0; c < hd; c++) {
            float y = (float)(gain * random_normal()) * own.size[c];
            for (size_t ch = 0; ch < hd; ch++) rows[t * hd + ch] += y * own.basis[c * hd + ch];
        }
        for (size_t ch = 0; side == CODEC_VALUES && t % 16 == 5 && ch < hd; ch++) rows[t * hd + ch] *= 0.05f; /* less no mean */
    }
}

/* Angles of offsets, and the products' fragments, of as many pairs as have a part in the mean. */
static inline void make_positions(struct attend_sample *sample) {
    float frequency[CODEC_HEAD_DIM_MAX];
    struct rope rope;
    rope_of(sample, frequency, &rope);
    const size_t pairs = pre_rope_pairs(&rope), words = pre_rope_fragment_words(pairs);
    uint32_t *fragments = allocated(words * sizeof *fragments);
    pre_rope_fragments(&rope, pairs, fragments);
    sample->attend.pre_rope = (struct pre_rope_view){.pairs = (uint32_t)pairs,
                                                     .offsets = make_angles(sample, PRE_ROPE_OFFSETS, 1),
                                                     .fragments = take(sample, fragments, words * sizeof *fragments)};
    free(fragments);
}

/* Adds the mean before rotation to keys as their run has them: in double precision, by the channels of pairs. */
static inline void add_pre_rope_mean(const struct attend_sample *sample, const float *mean, uint32_t first, float *rows) {
    float frequency[CODEC_HEAD_DIM_MAX];
    struct rope rope;
    rope_of(sample, frequency, &rope);
    const bool adjacent = rope.pairing == ROPE_ADJACENT;
    for (size_t i = 0; i < pre_rope_pairs(&rope); i++) {
        const size_t a = adjacent ? 2 * i : i, b = adjacent ? a + 1 : a + rope.n_rot / 2;
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            const double angle = (double)(first % ROPE_RUN_TOKENS + t) * (double)frequency[i], c = cos(angle), s = sin(angle);
            float *row = rows + t * sample->head_dim;
            row[a] += (float)((double)mean[a] * c - (double)mean[b] * s);
            row[b] += (float)((double)mean[a] * s + (double)mean[b] * c);
        }
    }
}

/* Completes the decoded keys of a page. */
static inline void complete_keys(const struct attend_sample *sample, struct codec_shape shape, uint32_t first, float *rows) {
    add_pre_rope_mean(sample, cpu_codec_transform.pre_rope_mean(shape), first, rows);
}

static inline double check_transform(const struct setup *setup) {
    struct side sides[HEADS][2];
    uint8_t *fitted[SEQUENCES] = {NULL};
    struct attend_sample sample = {.codec = {&codec_transform, &codec_transform},
                                   .head_dim = setup->head_dim,
                                   .kv_heads = HEADS,
                                   .group = setup->group,
                                   .n_rot = setup->n_rot,
                                   .pairing = setup->pairing,
                                   .slopes = setup->slopes,
                                   .in_place = setup->in_place,
                                   .random_rows = random_rows,
                                   .complete_keys = complete_keys,
                                   .parameters = sides,
                                   .prepare = setup->prepare,
                                   .choose = setup->choose};
    memcpy(sample.sequences, setup->sequences, sizeof sample.sequences);
    make_sides(setup, &sample, sides);
    make_positions(&sample);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        if (setup->fitted && i != 1) fitted[i] = make_fitted(&sample, sides, i);
    double worst = check_attention(&sample);
    for (uint32_t i = 0; i < 2 * HEADS; i++) {
        cpu_codec_transform.learned->free((void *)sample.shape[i / 2][i % 2].learned);
        free(sides[i / 2][i % 2].parameters);
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) free(fitted[i]);
    return worst;
}

#endif
