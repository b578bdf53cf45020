/* Writes pages of the codec transform. Each component of each row is rounded to the nearest level, or takes the level that the best
 * path through the stream gives it (transform_path.c). The gain is set last, for the levels that were found: of keys it keeps the
 * row's size in the metric, of values it is the best in least squares, since attention averages values and would not make good what
 * a longer row adds.
 *
 * It works on a component of all tokens at a time, in loops over 64 numbers that lie in a row, which compilers vectorise. */
#include "backend/cpu/codec/transform.h"

#include "backend/cpu/codec/transform_path.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "format/page_layout.h"

#include <math.h>
#include <string.h>

/* These are the rows of a page that is being written. */
struct page_rows {
    float z[CODEC_HEAD_DIM_MAX][PAGE_TOKENS];                        /* coefficients */
    float unit[PAGE_TOKENS];                                         /* what makes them those of a row of size 1: 1 / r */
    float square[PAGE_TOKENS], cross[PAGE_TOKENS], own[PAGE_TOKENS]; /* |z|^2, <z, shape>, |shape|^2 */
    uint8_t no_mean[PAGE_TOKENS]; /* the code of the gain of a row less no mean; else TRANSFORM_NO_MEAN_GAINS */
};

/* These are the levels that a page's stream should encode, in units of the components' sizes, and those that all of its planes
 * encode. */
struct page_levels {
    float wanted[CODEC_HEAD_DIM_MAX][PAGE_TOKENS];
    float found[CODEC_HEAD_DIM_MAX][PAGE_TOKENS];
};

/* ---- Coefficients */

static void set_rows(struct page_rows *rows, const struct transform_learned *learned, const struct transform_fitted *own,
                     const float *from, size_t n) {
    size_t hd = learned->head_dim;
    float basis[CODEC_HEAD_DIM_MAX * CODEC_HEAD_DIM_MAX];
    float centred[CODEC_HEAD_DIM_MAX * PAGE_TOKENS], weighed[CODEC_HEAD_DIM_MAX * PAGE_TOKENS];
    memset(rows->square, 0, sizeof rows->square);
    memset(rows->cross, 0, sizeof rows->cross);
    memset(rows->own, 0, sizeof rows->own);
    memset(rows->no_mean, TRANSFORM_NO_MEAN_GAINS, sizeof rows->no_mean);
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
        reach[layout->plane[p].quad] += layout->plane[p].scale * (float)layout->plane[p].largest;
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
    rows->no_mean[t] = (uint8_t)best;
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

/* ---- Nibbles: codes[4][64] as page_layout.h has them. An octet's are 32 bytes in a row. */

static void octet_codes(enum codec_side side, const uint8_t codes[TRANSFORM_QUAD][PAGE_TOKENS], size_t octet, uint8_t bytes[32]) {
    for (size_t t = 0; t < 8; t++)
        for (size_t i = 0; i < TRANSFORM_QUAD; i++)
            bytes[side == CODEC_KEYS ? 4 * t + i : 16 * (t / 4) + 4 * i + t % 4] = codes[i][8 * octet + t];
}

static void write_nibble(enum codec_side side, const uint8_t codes[TRANSFORM_QUAD][PAGE_TOKENS], uint8_t *nibble) {
    for (size_t octet = 0; octet < 8; octet++) {
        uint8_t bytes[32], *to = nibble + 32 * (octet % 2) + 64 * (octet / 4);
        unsigned shift = octet / 2 % 2 * 4;
        octet_codes(side, codes, octet, bytes);
        for (size_t j = 0; j < 32; j++) to[j] = (uint8_t)(to[j] | (unsigned)bytes[j] << shift);
    }
}

/* ---- Components with nibbles of their own: x[64] in units of the component's size */

static void quantize_gaussian(const struct transform_plane *plane, const float *x, uint8_t *codes, float *levels) {
    const int8_t *table = transform_levels[TRANSFORM_GAUSSIAN_4];
    int32_t above[PAGE_TOKENS] = {0};
    for (unsigned i = 0; i < 15; i++) {
        float middle = 0.5f * plane->scale * (float)(table[i] + table[i + 1]);
        for (size_t t = 0; t < PAGE_TOKENS; t++) above[t] += x[t] > middle;
    }
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        codes[t] = (uint8_t)above[t];
        levels[t] = plane->scale * (float)table[above[t]];
    }
}

/* Finds the code of 4 bits whose level, step (code - 7.5), is nearest. */
static void quantize_uniform(const struct transform_plane *plane, const float *x, uint8_t *codes, float *levels) {
    float step = 2 * plane->scale, inverse = 1 / step;
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        float place = x[t] * inverse + 8;
        place = place > 0 ? place : 0; /* and what is not a number */
        place = place < 15 ? place : 15;
        int32_t code = (int32_t)place;
        codes[t] = (uint8_t)code;
        levels[t] = step * ((float)code - 7.5f);
    }
}

/* Writes a plane that is a whole nibble. */
static void write_alone(struct page_levels *levels, const struct transform_plane *plane, enum codec_side side, uint8_t *codes) {
    uint8_t own[TRANSFORM_QUAD][PAGE_TOKENS];
    for (size_t i = 0; i < TRANSFORM_QUAD; i++) {
        size_t c = plane->quad * TRANSFORM_QUAD + i;
        float level[PAGE_TOKENS];
        if (transform_table_of(plane) == TRANSFORM_GAUSSIAN_4)
            quantize_gaussian(plane, levels->wanted[c], own[i], level);
        else
            quantize_uniform(plane, levels->wanted[c], own[i], level);
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            levels->wanted[c][t] -= level[t];
            levels->found[c][t] += level[t];
        }
    }
    write_nibble(side, (const uint8_t(*)[PAGE_TOKENS])own, codes + plane->nibble * PAGE_TRANSFORM_NIBBLE);
}

/* Returns whether the path through the stream chooses a plane's codes. */
static bool has_lower_bits_in_stream(const struct transform_layout *layout, const struct transform_plane *plane) {
    unsigned bits = layout->quad_bits[plane->quad];
    return bits > TRANSFORM_NIBBLE_BITS && bits < TRANSFORM_BITS_MAX;
}

/* ---- All of them */

static void set_levels(const struct page_rows *rows, const float *sizes, size_t components, struct page_levels *levels) {
    for (size_t c = 0; c < components; c++) {
        float size = sizes[c], inverse = size > 0 ? 1 / size : 0;
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            levels->wanted[c][t] = rows->z[c][t] * rows->unit[t] * inverse;
            levels->found[c][t] = 0;
        }
    }
}

static void add_up(struct page_rows *rows, const float *sizes, size_t components, const struct page_levels *levels) {
    for (size_t c = 0; c < components; c++) {
        float size = sizes[c];
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            float own = levels->found[c][t] * size;
            rows->cross[t] += rows->z[c][t] * own;
            rows->own[t] += own * own;
        }
    }
}

static void write_codes(struct page_rows *rows, const float *sizes, const struct transform_layout *layout, enum codec_side side,
                        uint8_t *codes) {
    size_t components = (size_t)layout->quads * TRANSFORM_QUAD, p = 0;
    struct page_levels levels;
    set_levels(rows, sizes, components, &levels);
    for (; p < layout->planes && layout->plane[p].nibble < layout->stream; p++)
        if (!has_lower_bits_in_stream(layout, &layout->plane[p])) write_alone(&levels, &layout->plane[p], side, codes);
    if (p < layout->planes) {
        struct transform_path path;
        transform_path_find(layout, p, sizes, (const float(*)[PAGE_TOKENS])levels.wanted, levels.found, &path);
        for (unsigned n = 0; n < (unsigned)(layout->nibbles - layout->stream); n++)
            write_nibble(side, (const uint8_t(*)[PAGE_TOKENS])path.nibble[n],
                         codes + transform_place(layout, n) * PAGE_TRANSFORM_NIBBLE);
        for (p = 0; layout->plane[p].nibble < layout->stream; p++)
            if (has_lower_bits_in_stream(layout, &layout->plane[p]))
                write_nibble(side, (const uint8_t(*)[PAGE_TOKENS])path.upper[layout->plane[p].quad * TRANSFORM_QUAD],
                             codes + layout->plane[p].nibble * PAGE_TRANSFORM_NIBBLE);
    }
    add_up(rows, sizes, components, &levels);
}

static uint8_t gain_code(const struct transform_fitted *own, float gain) {
    const float step = transform_gain_step(own), least = TRANSFORM_NO_MEAN_GAINS;
    if (!(step > 0)) return TRANSFORM_NO_MEAN_GAINS;
    const float code = roundf((gain - transform_gain_zero(own)) / step);
    return (uint8_t)(code > least ? code < 255 ? code : 255 : least);
}

void transform_encode(struct codec_shape shape, enum codec_side side, const float *from, size_t n, void *page) {
    const struct transform_fitted own = transform_of(shape);
    struct page_rows rows;
    struct layout_limits limits;
    uint8_t *gains = page;
    memset(page, 0, codec_page_bytes(&codec_transform, shape, side));
    if (!n) return;
    set_rows(&rows, shape.learned, &own, from, n);
    set_limits(shape.layout, own.size, &limits);
    scale_rows(&rows, &limits, &own);
    if (side == CODEC_VALUES) leave_out_means(&rows, &limits, shape.learned, &own, from, n);
    write_codes(&rows, own.size, shape.layout, side, gains + PAGE_TOKENS);
    for (size_t t = 0; t < n; t++) {
        float gain = 0;
        if (rows.own[t] > 0) gain = side == CODEC_KEYS ? sqrtf(rows.square[t] / rows.own[t]) : rows.cross[t] / rows.own[t];
        gains[t] = rows.no_mean[t] < TRANSFORM_NO_MEAN_GAINS ? rows.no_mean[t] : gain_code(&own, gain);
    }
}
