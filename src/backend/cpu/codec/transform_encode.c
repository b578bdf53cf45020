/* Writes pages of the codec transform. Each component of each row is rounded to the nearest level, of a row at some sizes, of which one is
 * kept. The gain is set for the levels that were found: of keys it keeps the row's size in the metric, of values it is the best in
 * least squares, since attention averages values and would not make good what a longer row adds.
 *
 * It works on a component of all tokens at a time, in loops over 64 numbers that lie in a row, which compilers vectorise. */
#include "backend/cpu/codec/transform.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "format/page_layout.h"
#include "format/transform_codes.h"

#include <math.h>
#include <string.h>

/* These are the rows of a page that is being written. */
struct page_rows {
    float z[CODEC_HEAD_DIM_MAX][PAGE_TOKENS]; /* coefficients */
    float unit[PAGE_TOKENS];                  /* what makes them those of a row of size 1: 1 / r */
    float square[PAGE_TOKENS];                /* |z|^2 */
    uint8_t gain
        [PAGE_TOKENS]; /* the gain's code; below TRANSFORM_NO_MEAN_GAINS that of a row less no mean, others' are found by try_sizes */
};

/* ---- Coefficients */

static void set_rows(struct page_rows *rows, const struct transform_learned *learned, const struct transform_fitted *own,
                     const float *from, size_t n) {
    size_t hd = learned->head_dim;
    float basis[CODEC_HEAD_DIM_MAX * CODEC_HEAD_DIM_MAX];
    float centred[CODEC_HEAD_DIM_MAX * PAGE_TOKENS], weighed[CODEC_HEAD_DIM_MAX * PAGE_TOKENS];
    memset(rows->square, 0, sizeof rows->square);
    memset(rows->gain, TRANSFORM_NO_MEAN_GAINS, sizeof rows->gain);
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) centred[c * PAGE_TOKENS + t] = t < n ? from[t * hd + c] - own->mean[c] : 0;
    /* z = B^-1 (row - mean), and B^-1 = B^T metric */
    vector_ops()->multiply(learned->metric, hd, hd, hd, centred, PAGE_TOKENS, PAGE_TOKENS, weighed, PAGE_TOKENS);
    vector_ops()->columns_to_float(own->basis, hd, hd, own->unit, basis, hd);
    vector_ops()->multiply(basis, hd, hd, hd, weighed, PAGE_TOKENS, PAGE_TOKENS, rows->z[0], PAGE_TOKENS);
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) rows->square[t] += rows->z[c][t] * rows->z[c][t];
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        rows->unit[t] = rows->square[t] > 0 ? sqrtf((float)hd / rows->square[t]) : 0;
        if (!isfinite(rows->unit[t])) rows->unit[t] = 0;
    }
}

/* ---- Sizes of rows */

/* A layout_limits says what levels reach, by component and in units of coefficients, and how much a row of size 1 errs by them in all. */
struct layout_limits {
    float reach[CODEC_HEAD_DIM_MAX], noise;
    size_t components;
};

static void set_limits(const struct transform_layout *layout, const float *sizes, struct layout_limits *limits) {
    float reach[TRANSFORM_QUADS_MAX] = {0};
    limits->components = (size_t)layout->quads * TRANSFORM_QUAD;
    limits->noise = 0;
    for (size_t p = 0; p < layout->planes; p++)
        reach[layout->plane[p].quad] += layout->plane[p].scale * (float)transform_most(layout->plane[p].bits);
    for (size_t c = 0; c < limits->components; c++) {
        limits->reach[c] = sizes[c] * reach[c / TRANSFORM_QUAD];
        limits->noise += sizes[c] * sizes[c] * transform_distortion[layout->quad_bits[c / TRANSFORM_QUAD]];
    }
}

/* Returns what levels cut off of a token's row that is coded as one of so many times its size. */
static float cut_off(const struct page_rows *rows, const struct layout_limits *limits, size_t t, float scale) {
    float sum = 0;
    for (size_t c = 0; c < limits->components; c++) {
        float beyond = fabsf(rows->z[c][t]) * rows->unit[t] - limits->reach[c] * scale;
        beyond = beyond > 0 ? beyond : 0;
        sum += beyond * beyond;
    }
    return sum;
}

/* Finds what levels cut off of each row as it is. */
static void cut_off_all(const struct page_rows *rows, const struct layout_limits *limits, float sums[PAGE_TOKENS]) {
    memset(sums, 0, PAGE_TOKENS * sizeof *sums);
    for (size_t c = 0; c < limits->components; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            float beyond = fabsf(rows->z[c][t]) * rows->unit[t] - limits->reach[c];
            beyond = beyond > 0 ? beyond : 0;
            sums[t] += beyond * beyond;
        }
}

/* Codes each row as one of the size with which it errs least (transform_row_scale), as far as gains reach. */
static void scale_rows(struct page_rows *rows, const struct layout_limits *limits, const struct transform_fitted *own) {
    const float first = transform_row_scale[0];
    float cut[PAGE_TOKENS];
    cut_off_all(rows, limits, cut);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        const float most = own->gain_most * rows->unit[t];
        float least = cut[t] + limits->noise, best = 1;
        if (!(cut[t] > (first * first - 1) * limits->noise)) continue; /* no other size can err less */
        for (size_t i = 0; i < TRANSFORM_ROW_SCALES && transform_row_scale[i] <= most; i++) {
            const float scale = transform_row_scale[i], error = cut_off(rows, limits, t, scale) + limits->noise * (scale * scale);
            if (error < least) least = error, best = scale;
        }
        rows->unit[t] /= best;
    }
}

/* Returns how much a token's row is expected to err: what is cut off, the levels' noise, and components without bits. */
static float expected_error(const struct page_rows *rows, const struct layout_limits *limits, size_t hd, size_t t) {
    float sum = (cut_off(rows, limits, t, 1) + limits->noise) / (rows->unit[t] * rows->unit[t]);
    for (size_t c = limits->components; c < hd; c++) sum += rows->z[c][t] * rows->z[c][t];
    return sum;
}

/* Computes the coefficients z[head_dim] of a row itself: what is left of it less the mean, and of the mean, would not be exact. */
static void find_whole(const struct transform_learned *learned, const struct transform_fitted *own, const float *row, float *z) {
    const size_t hd = learned->head_dim;
    float weighed[CODEC_HEAD_DIM_MAX], basis[CODEC_HEAD_DIM_MAX];
    int16_t integers[CODEC_HEAD_DIM_MAX];
    for (size_t c = 0; c < hd; c++) weighed[c] = vector_ops()->dot(learned->metric + c * hd, row, hd);
    for (size_t c = 0; c < hd; c++) {
        transform_record_integers(own, learned->head_dim, c, integers);
        for (size_t ch = 0; ch < hd; ch++) basis[ch] = (float)integers[ch];
        z[c] = own->unit[c] * vector_ops()->dot(basis, weighed, hd);
    }
}

/* Codes a row less no mean, whose coefficients are whole[hd], if it errs less so with one of the gains that there are. */
static void leave_out_mean(struct page_rows *rows, const struct layout_limits *limits, const struct transform_fitted *own,
                           const float *whole, size_t hd, size_t t) {
    const float unit = rows->unit[t];
    float less_mean[CODEC_HEAD_DIM_MAX], least = expected_error(rows, limits, hd, t);
    unsigned best = TRANSFORM_NO_MEAN_GAINS;
    for (size_t c = 0; c < hd; c++) less_mean[c] = rows->z[c][t], rows->z[c][t] = whole[c];
    for (unsigned code = 0; code < TRANSFORM_NO_MEAN_GAINS; code++) {
        rows->unit[t] = 1 / TRANSFORM_NO_MEAN_GAIN(own->gain, code);
        const float error = expected_error(rows, limits, hd, t);
        if (error < least) least = error, best = code;
    }
    rows->gain[t] = (uint8_t)best;
    rows->unit[t] = best < TRANSFORM_NO_MEAN_GAINS ? 1 / TRANSFORM_NO_MEAN_GAIN(own->gain, best) : unit;
    for (size_t c = 0; c < hd && best == TRANSFORM_NO_MEAN_GAINS; c++) rows->z[c][t] = less_mean[c];
}

/* Leaves the mean out of rows of values, from[n][head_dim], that are much smaller than they are less the mean. */
static void leave_out_means(struct page_rows *rows, const struct layout_limits *limits, const struct transform_learned *learned,
                            const struct transform_fitted *own, const float *from, size_t n) {
    const size_t hd = learned->head_dim;
    for (size_t t = 0; t < n && own->gain > 0; t++) {
        const float *row = from + t * hd;
        float whole = 0, less_mean = 0, z[CODEC_HEAD_DIM_MAX];
        for (size_t c = 0; c < hd; c++) {
            const float rest = row[c] - own->mean[c];
            whole += row[c] * row[c], less_mean += rest * rest;
        }
        if (!(TRANSFORM_MUCH_SMALLER * whole < less_mean)) continue;
        find_whole(learned, own, row, z);
        leave_out_mean(rows, limits, own, z, hd, t);
    }
}

/* ---- Gains */

/* Returns the gain of a row from |z|^2, its product with the levels and these with themselves. */
static float gain_of(enum codec_side side, float square, float cross, float own) {
    if (!(own > 0)) return 0;
    return side == CODEC_KEYS ? sqrtf(square / own) : cross / own;
}

static uint8_t gain_code(const struct transform_fitted *own, float gain) {
    const float step = transform_gain_step(own), least = TRANSFORM_NO_MEAN_GAINS;
    if (!(step > 0)) return TRANSFORM_NO_MEAN_GAINS;
    const float code = roundf((gain - transform_gain_zero(own)) / step);
    return (uint8_t)(code > least ? code < 255 ? code : 255 : least);
}

static float read_gain(const struct transform_fitted *own, uint8_t code) {
    return transform_gain_zero(own) + (float)code * transform_gain_step(own);
}

/* ---- Codes */

/* Adds bits below 16, bits[4][64] of four components, to a nibble, in which they were 0. */
static void write_bits(enum codec_side side, const uint8_t bits[TRANSFORM_QUAD][PAGE_TOKENS], uint8_t *nibble) {
    for (size_t octet = 0; octet < 8; octet++) {
        uint8_t *to = nibble + 32 * (octet % 2) + 64 * (octet / 4);
        const unsigned shift = octet / 2 % 2 * 4;
        for (size_t t = 0; t < 8; t++)
            for (size_t i = 0; i < TRANSFORM_QUAD; i++) {
                uint8_t *at = to + transform_byte(side, t, i);
                *at = (uint8_t)(*at | (unsigned)bits[i][8 * octet + t] << shift);
            }
    }
}

/* These quantize a component. */
struct component_levels {
    float inverse, half_step; /* half of the step between levels, times the component's size */
    float middle, most;
};

static struct component_levels levels_of(float size, float half_step, unsigned bits) {
    return (struct component_levels){.inverse = size > 0 ? 1 / (2 * half_step * size) : 0,
                                     .half_step = half_step * size,
                                     .middle = (float)(1u << (bits - 1)),
                                     .most = (float)transform_most(bits)};
}

/* Returns the code of what is x in a row of size 1. */
static inline int32_t code_of(const struct component_levels *l, float x) {
    float place = x * l->inverse + l->middle;
    place = place > 0 ? place : 0; /* and what is not a number */
    return (int32_t)(place < l->most ? place : l->most);
}

static inline float level_of(const struct component_levels *l, int32_t code) { return l->half_step * (2 * (float)code - l->most); }

/* Writes how to quantize the components that have bits. */
static void set_levels(const float *sizes, const struct transform_layout *layout, struct component_levels *levels) {
    float half_step[TRANSFORM_QUADS_MAX]; /* half of the step between a quad's levels: the scale of its last plane */
    for (size_t p = 0; p < layout->planes; p++) half_step[layout->plane[p].quad] = layout->plane[p].scale;
    for (size_t c = 0; c < (size_t)layout->quads * TRANSFORM_QUAD; c++)
        levels[c] = levels_of(sizes[c], half_step[c / TRANSFORM_QUAD], layout->quad_bits[c / TRANSFORM_QUAD]);
}

/* Finds how much rows err that are quantized as ones of `scale` times their size, and read with the gain that they would get, whose code is
 * in gains. */
static void find_errors(const struct page_rows *rows, const struct component_levels *levels, size_t n, float scale,
                        const struct transform_fitted *own, enum codec_side side, float errors[PAGE_TOKENS],
                        uint8_t gains[PAGE_TOKENS]) {
    float cross[PAGE_TOKENS] = {0}, square[PAGE_TOKENS] = {0}, unit[PAGE_TOKENS];
    memset(errors, 0, PAGE_TOKENS * sizeof *errors);
    for (size_t t = 0; t < PAGE_TOKENS; t++) unit[t] = rows->unit[t] / scale;
    for (size_t c = 0; c < n; c++) {
        const struct component_levels l = levels[c];
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            const float x = rows->z[c][t] * unit[t], level = level_of(&l, code_of(&l, x)), rest = x - level;
            errors[t] += rest * rest;
            cross[t] += rest * level;
            square[t] += level * level;
        }
    }
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        gains[t] = gain_code(own, gain_of(side, rows->square[t], (cross[t] + square[t]) / unit[t], square[t]));
        const float beyond = read_gain(own, gains[t]) * unit[t] - 1; /* levels are read as 1 + beyond times as large */
        errors[t] = (errors[t] - 2 * beyond * cross[t] + beyond * beyond * square[t]) / (unit[t] * unit[t]);
    }
}

/* Codes each row as one of the size with which it errs least (transform_row_trial), and finds its gain. */
static void try_sizes(struct page_rows *rows, const struct component_levels *levels, size_t n, const struct transform_fitted *own,
                      enum codec_side side) {
    float least[PAGE_TOKENS], best[PAGE_TOKENS], errors[PAGE_TOKENS];
    uint8_t gain[PAGE_TOKENS], gains[PAGE_TOKENS];
    for (size_t t = 0; t < PAGE_TOKENS; t++) least[t] = INFINITY, best[t] = 1, gain[t] = TRANSFORM_NO_MEAN_GAINS;
    for (size_t i = 0; i < TRANSFORM_ROW_TRIALS; i++) {
        find_errors(rows, levels, n, transform_row_trial[i], own, side, errors, gains);
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            if (errors[t] < least[t]) least[t] = errors[t], best[t] = transform_row_trial[i], gain[t] = gains[t];
    }
    for (size_t t = 0; t < PAGE_TOKENS; t++)
        if (rows->gain[t] == TRANSFORM_NO_MEAN_GAINS) rows->unit[t] /= best[t], rows->gain[t] = gain[t]; /* others' are given */
}

/* Finds the codes of a component. */
static void quantize(const struct page_rows *rows, size_t c, const struct component_levels *levels, uint8_t *codes) {
    const struct component_levels l = *levels;
    for (size_t t = 0; t < PAGE_TOKENS; t++) codes[t] = (uint8_t)code_of(&l, rows->z[c][t] * rows->unit[t]);
}

/* Writes a plane, of codes[4][64] of its quad the bits from the `below`-th on. */
static void write_plane(const struct transform_plane *plane, unsigned below, enum codec_side side,
                        const uint8_t codes[TRANSFORM_QUAD][PAGE_TOKENS], uint8_t *page) {
    uint8_t bits[TRANSFORM_QUAD][PAGE_TOKENS];
    for (size_t i = 0; i < TRANSFORM_QUAD; i++)
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            bits[i][t] = (uint8_t)((codes[i][t] >> below & transform_most(plane->bits)) << plane->shift);
    write_bits(side, (const uint8_t(*)[PAGE_TOKENS])bits, page + plane->nibble * PAGE_TRANSFORM_NIBBLE);
}

static void write_codes(const struct page_rows *rows, const struct component_levels *levels, const struct transform_layout *layout,
                        enum codec_side side, uint8_t *page) {
    uint8_t codes[TRANSFORM_QUADS_MAX][TRANSFORM_QUAD][PAGE_TOKENS], below[TRANSFORM_QUADS_MAX];
    memcpy(below, layout->quad_bits, sizeof below);
    for (size_t c = 0; c < (size_t)layout->quads * TRANSFORM_QUAD; c++)
        quantize(rows, c, &levels[c], codes[c / TRANSFORM_QUAD][c % TRANSFORM_QUAD]);
    for (size_t p = 0; p < layout->planes; p++) { /* a quad's planes have its bits from the highest down */
        const struct transform_plane *plane = &layout->plane[p];
        below[plane->quad] = (uint8_t)(below[plane->quad] - plane->bits);
        write_plane(plane, below[plane->quad], side, (const uint8_t(*)[PAGE_TOKENS])codes[plane->quad], page);
    }
}

void transform_encode(struct codec_shape shape, enum codec_side side, const float *from, size_t n, void *page) {
    const struct transform_fitted own = transform_of(shape);
    struct page_rows rows;
    struct layout_limits limits;
    struct component_levels levels[CODEC_HEAD_DIM_MAX];
    uint8_t *gains = page;
    memset(page, 0, codec_page_bytes(&codec_transform, shape, side));
    if (!n) return;
    set_rows(&rows, shape.learned, &own, from, n);
    set_limits(shape.layout, own.size, &limits);
    scale_rows(&rows, &limits, &own);
    if (side == CODEC_VALUES) leave_out_means(&rows, &limits, shape.learned, &own, from, n);
    set_levels(own.size, shape.layout, levels);
    try_sizes(&rows, levels, limits.components, &own, side);
    write_codes(&rows, levels, shape.layout, side, gains + PAGE_TOKENS);
    memcpy(gains, rows.gain, n);
}
