/* Implements the codec transform: reads pages on their codes (format/transform.h).
 *
 * Keys: a query's product with a key is its product with the mean and, times the gain, the sum over components of y_c times the
 * query's product with size_c basis_c. Those are found once for a run of pages whose keys share a position (CODEC_ROPE_IN_RUN) and
 * taken as integers, with a step for each 8 planes, whose components are of like size. Values: weights are summed by component,
 * over all pages, and are multiplied by the basis once at the end: sum w_t value_t = mean sum w_t + sum_c (sum_t w_t gain_t y_tc)
 * size_c basis_c. So the transform costs nothing per token. Rows that are less no mean are left out of the first sum.
 *
 * Values' weights are bytes where every one of them is small against what its query has seen, else two bytes. */
#include "backend/cpu/codec/transform.h"

#include "backend/cpu/kernels/transform/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"
#include "format/transform_codes.h"
#include "format/transform_fit.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define GAIN_BYTES PAGE_TOKENS

static const uint8_t *codes_of(const void *page) { return (const uint8_t *)page + GAIN_BYTES; }

/* Returns how many components a layout stores, rounded up to a multiple of what `multiply` takes together; sizes and sums of the
 * others are 0. */
static size_t columns_of(const struct transform_layout *layout) { return ((size_t)layout->quads * TRANSFORM_QUAD + 15) / 16 * 16; }

/* ---- What is learned */

static void learned_free(void *opened) {
    struct transform_learned *learned = opened;
    if (!learned) return;
    memory_free(learned->record);
    memory_free(learned);
}

static size_t learned_size(size_t hd) { return TRANSFORM_RECORD_BYTES(hd) + hd * hd * sizeof(float); }

static size_t learned_bytes(const void *opened) {
    const struct transform_learned *learned = opened;
    return sizeof *learned + learned_size(learned->head_dim);
}

static size_t predict_learned_bytes(struct codec_shape shape, enum codec_side side, const uint16_t *halves) {
    (void)side, (void)halves;
    return sizeof(struct transform_learned) + learned_size(shape.head_dim);
}

_Static_assert(TRANSFORM_STRIP == I16_STRIP && CODEC_HEAD_DIM_MAX <= I16_DEPTH, "a record's basis is what multiply_i16 takes");

static enum terse_status fill(struct transform_learned *learned, const float *floats, struct terse_error *error) {
    size_t hd = learned->head_dim;
    struct transform_parameters own = transform_parameters_at(floats, learned->head_dim);
    learned->record = memory_array(learned_size(hd), 1);
    if (!learned->record) return status_no_memory(error, learned_size(hd), "a profile");
    transform_record_set(own, learned->head_dim, learned->record);
    learned->metric = (float *)(void *)((uint8_t *)learned->record + TRANSFORM_RECORD_BYTES(hd));
    return transform_metric(own.basis, learned->head_dim, learned->metric, error);
}

static enum terse_status learned_new(struct codec_shape shape, enum codec_side side, const float *floats, void **opened,
                                     struct terse_error *error) {
    (void)side;
    *opened = NULL;
    struct transform_learned *learned = memory_zeros(1, sizeof *learned);
    if (!learned) return status_no_memory(error, sizeof *learned, "a profile");
    learned->head_dim = shape.head_dim;
    enum terse_status status = fill(learned, floats, error);
    if (status)
        learned_free(learned);
    else
        *opened = learned;
    return status;
}

static const float *pre_rope_mean(struct codec_shape shape) { return transform_of(shape).pre_rope_mean; }

static void gains_of(struct codec_shape shape, const void *page, float *gains) {
    const struct transform_fitted own = transform_of(shape);
    transform_ops()->gains(page, transform_gain_zero(&own), transform_gain_step(&own), gains);
}

_Static_assert(TRANSFORM_NO_MEAN_GAINS == 8, "a mask tells the codes of gains of rows that are less no mean");

/* Returns the tokens of a page of values whose rows are less no mean, a bit each. Most pages have none, which words of eight codes
 * tell: a byte's upper bit is set, or its lower bits carry into it, unless it is zero. */
static uint64_t no_mean_tokens(const uint8_t *codes) {
    const uint64_t lower = 0x7f7f7f7f7f7f7f7f, mask = 0xf8f8f8f8f8f8f8f8;
    uint64_t all = ~(uint64_t)0, no_mean = 0;
    for (size_t t = 0; t < PAGE_TOKENS; t += 8) {
        uint64_t eight;
        memcpy(&eight, codes + t, sizeof eight);
        eight &= mask;
        all &= ((eight & lower) + lower) | eight;
    }
    if (!(~all & ~lower)) return 0;
    for (size_t t = 0; t < PAGE_TOKENS; t++) no_mean |= (uint64_t)(codes[t] < TRANSFORM_NO_MEAN_GAINS) << t;
    return no_mean;
}

/* Returns gains, and the tokens whose rows are less no mean, a bit each. Keys' pages have none. */
static uint64_t value_gains_of(struct codec_shape shape, const void *page, float *gains) {
    const uint8_t *codes = page;
    const uint64_t no_mean = no_mean_tokens(codes);
    gains_of(shape, page, gains);
    if (no_mean) {
        const float gain = transform_of(shape).gain;
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            if (no_mean >> t & 1) gains[t] = TRANSFORM_NO_MEAN_GAIN(gain, codes[t]);
    }
    return no_mean;
}

/* ---- Decoding, gathering */

/* Computes y[64][columns], components times sizes and gains. */
static void read_components(struct codec_shape shape, enum codec_side side, const void *page, const float *gains, float *y) {
    const struct transform_layout *layout = shape.layout;
    const float *size = transform_of(shape).size;
    size_t columns = columns_of(layout);
    memset(y, 0, PAGE_TOKENS * columns * sizeof *y);
    for (size_t p = 0; p < layout->planes; p++) {
        const struct transform_plane *plane = &layout->plane[p];
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            for (size_t i = 0; i < TRANSFORM_QUAD; i++)
                y[t * columns + plane->quad * TRANSFORM_QUAD + i] +=
                    plane->scale * (float)transform_level(plane, codes_of(page), side, t, i);
    }
    for (size_t t = 0; t < PAGE_TOKENS; t++)
        for (size_t c = 0; c < (size_t)layout->quads * TRANSFORM_QUAD; c++) y[t * columns + c] *= gains[t] * size[c];
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    const struct transform_fitted own = transform_of(shape);
    size_t hd = shape.head_dim, columns = columns_of(shape.layout);
    float gains[PAGE_TOKENS], y[PAGE_TOKENS * CODEC_HEAD_DIM_MAX], basis[CODEC_HEAD_DIM_MAX * CODEC_HEAD_DIM_MAX];
    const uint64_t no_mean = value_gains_of(shape, page, gains);
    read_components(shape, side, page, gains, y);
    vector_ops()->columns_to_float(own.basis, hd, columns, own.unit, basis, hd);
    vector_ops()->multiply(y, PAGE_TOKENS, columns, columns, basis, hd, hd, rows, hd);
    for (size_t t = 0; t < PAGE_TOKENS; t++)
        if (!(no_mean >> t & 1)) vector_ops()->axpy(1, own.mean, rows + t * hd, hd);
}

static void channels(struct codec_shape shape, const void *page, float *to) {
    float rows[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    decode(shape, CODEC_KEYS, page, rows);
    for (size_t c = 0; c < shape.head_dim; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) to[c * PAGE_TOKENS + t] = rows[t * shape.head_dim + c];
}

static void gather_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at) {
    for (size_t k = 0; k < n; k++) ((uint8_t *)to)[at + k] = ((const uint8_t *)from)[slots[k]];
    transform_ops()->gather(shape.layout, side, codes_of(from), slots, n, (uint8_t *)to + GAIN_BYTES, at);
}

/* Prefetches the whole page, since tokens lie in every line of it. */
static void prefetch_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n) {
    (void)side, (void)slots, (void)n;
    for (size_t b = 0; b < PAGE_BYTES_TRANSFORM(shape.layout->nibbles); b += 64) __builtin_prefetch((const char *)from + b, 0, 2);
}

/* ---- Keys: tables of G queries are offsets[G], then for each query steps[groups], bias[groups], weights[8 groups][4]. */

static size_t step_groups(const struct transform_layout *layout) {
    return ((size_t)layout->planes + TRANSFORM_STEP_PLANES - 1) / TRANSFORM_STEP_PLANES;
}
/* Returns how many floats a query takes: the weights of whole steps. */
static size_t floats_of_query(const struct transform_layout *layout) { return (2 + TRANSFORM_STEP_PLANES) * step_groups(layout); }

static size_t query_floats(struct codec_shape shape) { return shape.group * (1 + floats_of_query(shape.layout)); }

static struct transform_query query_at(struct codec_shape shape, const float *tables, size_t g) {
    const float *own = tables + shape.group + g * floats_of_query(shape.layout);
    size_t groups = step_groups(shape.layout);
    return (struct transform_query){.offset = tables[g],
                                    .steps = own,
                                    .bias = (const int32_t *)(const void *)(own + groups),
                                    .weights = (const int8_t *)(const void *)(own + 2 * groups)};
}

void transform_prepare_queries(struct codec_shape shape, const float *q, size_t stride, float *tables) {
    const struct transform_fitted from = transform_of(shape);
    const struct transform_layout *layout = shape.layout;
    size_t hd = shape.head_dim, columns = columns_of(layout), groups = step_groups(layout);
    float products[TRANSFORM_TOGETHER * CODEC_HEAD_DIM_MAX];
    for (size_t g = 0; g < shape.group; g++) {
        size_t left = shape.group - g < TRANSFORM_TOGETHER ? shape.group - g : TRANSFORM_TOGETHER;
        float *own = tables + shape.group + g * floats_of_query(layout), *w = products + g % TRANSFORM_TOGETHER * columns;
        if (g % TRANSFORM_TOGETHER == 0)
            vector_ops()->multiply_i16(q + g * stride, left, hd, stride, from.basis, columns, from.unit, products, columns);
        for (size_t c = 0; c < columns; c++) w[c] *= from.size[c];
        tables[g] = vector_ops()->dot(q + g * stride, from.mean, hd);
        transform_ops()->quantize_query(layout, w, own, (int32_t *)(void *)(own + groups), (int8_t *)(void *)(own + 2 * groups));
    }
}

static void prepare_queries(struct codec_shape shape, const float *q, float *tables) {
    transform_prepare_queries(shape, q, shape.head_dim, tables);
}

static void score_some(struct codec_shape shape, const float *tables, const void *page, const float *gains, size_t first, size_t n,
                       float *logits) {
    struct transform_query queries[TRANSFORM_TOGETHER];
    for (size_t g = 0; g < n; g++) queries[g] = query_at(shape, tables, first + g);
    transform_ops()->score(shape.layout, codes_of(page), gains, queries, n, logits);
}

void transform_score_some(struct codec_shape shape, const float *tables, const void *page, size_t first, size_t n, float *logits) {
    float gains[PAGE_TOKENS];
    gains_of(shape, page, gains);
    score_some(shape, tables, page, gains, first, n, logits);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    float gains[PAGE_TOKENS];
    (void)q;
    gains_of(shape, page, gains);
    for (size_t first = 0, n; first < shape.group; first += n) {
        n = shape.group - first < TRANSFORM_TOGETHER ? shape.group - first : TRANSFORM_TOGETHER;
        score_some(shape, tables, page, gains, first, n, logits + first * PAGE_TOKENS);
    }
}

/* ---- Ranks: the same of the largest components alone; tables are their layout, and then as above */

static const struct transform_layout *rank_layout(const float *tables) { return (const void *)tables; }

#define LAYOUT_FLOATS (sizeof(struct transform_layout) / sizeof(float))
#define MOST_GROUPS (TRANSFORM_PLANES_MAX / TRANSFORM_STEP_PLANES)
_Static_assert(LAYOUT_FLOATS + RANK_QUERIES * (1 + 2 * MOST_GROUPS + TRANSFORM_PLANES_MAX) <= RANK_FLOATS, "tables of ranks");

_Static_assert(RANK_MOST == TRANSFORM_RANK_MOST, "kernels cut ranks off where readers expect it");

static size_t rank_bytes(struct codec_shape shape) {
    struct transform_layout first;
    unsigned nibbles = 0;
    transform_layout_first(shape.layout, TRANSFORM_RANK_BITS(shape.head_dim), &first);
    for (size_t p = 0; p < first.planes; p++)
        if (first.plane[p].nibble >= nibbles) nibbles = first.plane[p].nibble + 1u;
    return PAGE_BYTES_TRANSFORM(nibbles);
}

static void prepare_rank(struct codec_shape shape, const float *q, float *tables) {
    struct transform_layout *first = (void *)tables;
    transform_layout_first(shape.layout, TRANSFORM_RANK_BITS(shape.head_dim), first);
    shape.layout = first;
    prepare_queries(shape, q, tables + LAYOUT_FLOATS);
}

static uint16_t rank(struct codec_shape shape, const float *tables, size_t g, const void *page, const float *added,
                     uint16_t *ranks) {
    const struct transform_fitted own = transform_of(shape);
    shape.layout = rank_layout(tables);
    struct transform_query query = query_at(shape, tables + LAYOUT_FLOATS, g);
    return transform_ops()->rank(shape.layout, page, transform_gain_zero(&own), transform_gain_step(&own), &query, added, ranks);
}

/* ---- Values: sums[G][planes][TRANSFORM_SUM_LANES], then [G] sums of weights of the rows that are less the mean */

static size_t sums_of_query(struct codec_shape shape) { return (size_t)shape.layout->planes * TRANSFORM_SUM_LANES; }

static size_t code_sum_floats(struct codec_shape shape) { return shape.group * (sums_of_query(shape) + 1); }

static void accumulate(struct codec_shape shape, const float *weights, const void *page, bool int8, float *code_sums) {
    const size_t planes = int8 ? 1 : 2;
    float gains[PAGE_TOKENS], *sums = code_sums + shape.group * sums_of_query(shape);
    const uint64_t no_mean = value_gains_of(shape, page, gains);
    for (size_t first = 0, n; first < shape.group; first += n) {
        uint8_t bytes[2 * TRANSFORM_TOGETHER * PAGE_TOKENS];
        float scales[2 * TRANSFORM_TOGETHER], *own = code_sums + first * sums_of_query(shape);
        n = shape.group - first < TRANSFORM_TOGETHER ? shape.group - first : TRANSFORM_TOGETHER;
        transform_ops()->quantize_weights(weights + first * PAGE_TOKENS, gains, n, planes, bytes, scales, sums + first);
        for (size_t b = 0; b < planes; b++)
            transform_ops()->accumulate(shape.layout, codes_of(page), bytes + b * n * PAGE_TOKENS, scales + b * n, n, own);
    }
    for (uint64_t left = no_mean; left; left &= left - 1)
        for (size_t m = 0; m < shape.group; m++) sums[m] -= weights[m * PAGE_TOKENS + (size_t)__builtin_ctzll(left)];
}

static void accumulate_by_code(struct codec_shape shape, const float *weights, const void *page, float *code_sums) {
    accumulate(shape, weights, page, false, code_sums);
}

static void accumulate_by_code_int8(struct codec_shape shape, const float *weights, const void *page, float *code_sums) {
    accumulate(shape, weights, page, true, code_sums);
}

_Static_assert(TRANSFORM_QUAD == 4 && TRANSFORM_SUM_LANES == 16, "lanes of a component");

void transform_accumulate_logits(struct codec_shape shape, const float *logits, const float *largest, const void *page,
                                 float *code_sums, float *sums) {
    float gains[PAGE_TOKENS], *of_mean = code_sums + shape.group * sums_of_query(shape);
    const uint64_t no_mean = value_gains_of(shape, page, gains);
    for (size_t first = 0, n; first < shape.group; first += n) {
        uint8_t bytes[TRANSFORM_TOGETHER * PAGE_TOKENS];
        float scales[TRANSFORM_TOGETHER], own[TRANSFORM_TOGETHER] = {0};
        n = shape.group - first < TRANSFORM_TOGETHER ? shape.group - first : TRANSFORM_TOGETHER;
        transform_ops()->weigh(logits + first * PAGE_TOKENS, largest + first, gains, n, bytes, scales, own);
        transform_ops()->accumulate(shape.layout, codes_of(page), bytes, scales, n, code_sums + first * sums_of_query(shape));
        for (size_t m = 0; m < n; m++) {
            of_mean[first + m] += own[m];
            if (sums) sums[first + m] += own[m];
        }
    }
    for (uint64_t left = no_mean; left; left &= left - 1)
        for (size_t m = 0; m < shape.group; m++)
            if (largest[m] > -INFINITY) of_mean[m] -= expf(logits[m * PAGE_TOKENS + (size_t)__builtin_ctzll(left)] - largest[m]);
}

/* Computes y[columns], the sizes times one query's sums. */
static void sum_components(struct codec_shape shape, const float *sums, float *y) {
    const struct transform_layout *layout = shape.layout;
    const float *size = transform_of(shape).size;
    memset(y, 0, columns_of(layout) * sizeof *y);
    for (size_t p = 0; p < layout->planes; p++) {
        const struct transform_plane *plane = &layout->plane[p];
        const float *lanes = sums + p * TRANSFORM_SUM_LANES;
        float *to = y + plane->quad * TRANSFORM_QUAD;
        for (size_t i = 0; i < TRANSFORM_QUAD; i++) /* compilers take all four together */
            to[i] += plane->scale * (lanes[i] + lanes[i + 4] + (lanes[i + 8] + lanes[i + 12]));
    }
    for (size_t c = 0; c < (size_t)layout->quads * TRANSFORM_QUAD; c++) y[c] *= size[c];
}

void transform_finish_code_sums(struct codec_shape shape, const float *code_sums, float *acc, size_t stride) {
    const struct transform_fitted own = transform_of(shape);
    size_t hd = shape.head_dim, columns = columns_of(shape.layout);
    const float *of_weights = code_sums + shape.group * sums_of_query(shape);
    float y[TRANSFORM_TOGETHER * CODEC_HEAD_DIM_MAX], values[TRANSFORM_TOGETHER * CODEC_HEAD_DIM_MAX];
    float basis[CODEC_HEAD_DIM_MAX * CODEC_HEAD_DIM_MAX];
    vector_ops()->columns_to_float(own.basis, hd, columns, own.unit, basis, hd);
    for (size_t first = 0, n; first < shape.group; first += n) {
        n = shape.group - first < TRANSFORM_TOGETHER ? shape.group - first : TRANSFORM_TOGETHER;
        for (size_t g = 0; g < n; g++) sum_components(shape, code_sums + (first + g) * sums_of_query(shape), y + g * columns);
        vector_ops()->multiply(y, n, columns, columns, basis, hd, hd, values, hd);
        for (size_t g = 0; g < n; g++) {
            vector_ops()->axpy(1, values + g * hd, acc + (first + g) * stride, hd);
            vector_ops()->axpy(of_weights[first + g], own.mean, acc + (first + g) * stride, hd);
        }
    }
}

static void finish_code_sums(struct codec_shape shape, const float *code_sums, float *acc) {
    transform_finish_code_sums(shape, code_sums, acc, shape.head_dim);
}

static void accumulate_values(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    float sums[TRANSFORM_PLANES_MAX * TRANSFORM_SUM_LANES + 1];
    struct codec_shape one = shape;
    one.group = 1;
    for (size_t g = 0; g < shape.group; g++) {
        memset(sums, 0, code_sum_floats(one) * sizeof *sums);
        accumulate(one, weights + g * PAGE_TOKENS, page, false, sums);
        finish_code_sums(one, sums, acc + g * shape.head_dim);
    }
}

/* Returns whether bytes suffice for weights: rounding a page's weights to bytes is off by a 510th of the largest at most, of each
 * value of its 64 tokens; codes of 4 bits are off by a tenth of the largest value. */
static bool int8_suffices(struct codec_shape shape) {
    unsigned bits = 0;
    for (size_t q = 0; q < shape.layout->quads; q++) bits += TRANSFORM_QUAD * shape.layout->quad_bits[q];
    return bits <= 4 * shape.head_dim;
}

const struct cpu_codec cpu_codec_transform = {
    .format = &codec_transform,
    .encode = transform_encode,
    .decode = decode,
    .score = score,
    .channels = channels,
    .accumulate_values = accumulate_values,
    .gather_tokens = gather_tokens,
    .learned =
        &(const struct codec_learned){
            .make = learned_new, .free = learned_free, .bytes = learned_bytes, .predict_bytes = predict_learned_bytes},
    .ranks = &(const struct codec_ranks){.bytes = rank_bytes, .prepare = prepare_rank, .rank = rank},
    .pre_rope_mean = pre_rope_mean,
    .queries = &(const struct codec_queries){.floats = query_floats, .prepare = prepare_queries},
    .code_sums =
        &(const struct codec_code_sums){.floats = code_sum_floats,
                                        .row = sums_of_query,
                                        .add = accumulate_by_code,
                                        .finish = finish_code_sums,
                                        .integer = &(const struct codec_integer_sums){.suffice = int8_suffices,
                                                                                      .add = accumulate_by_code_int8,
                                                                                      .add_logits = transform_accumulate_logits}},
    .prefetch_tokens = prefetch_tokens};
