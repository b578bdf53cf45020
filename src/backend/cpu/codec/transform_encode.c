/* The codec transform: writing pages. Each component of each row is rounded to the nearest level; the gain is set last, for what the levels
 * came to: of keys it keeps the row's size in the metric, of values it is the best in least squares, since attention averages values
 * and would not make good what a longer row adds.
 *
 * Works on a component of all tokens at a time, in loops over 64 numbers that lie in a row, which compilers vectorise. */
#include "backend/cpu/codec/transform.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "format/page_layout.h"

#include <math.h>
#include <string.h>

/* Of a page being written. */
struct page_rows {
    float z[CODEC_HEAD_DIM_MAX][PAGE_TOKENS];                        /* coefficients */
    float unit[PAGE_TOKENS];                                         /* what makes them those of a row of size 1: 1 / r */
    float square[PAGE_TOKENS], cross[PAGE_TOKENS], own[PAGE_TOKENS]; /* |z|^2, <z, shape>, |shape|^2 */
};

/* Codes of a quad's planes: of its only or upper one, then of the lower one. */
struct quad_codes {
    uint8_t plane[2][TRANSFORM_QUAD][PAGE_TOKENS];
};

/* ---- Coefficients */

static void set_rows(struct page_rows *rows, const struct transform_learned *learned, const float *mean, const float *from,
                     size_t n) {
    size_t hd = learned->head_dim;
    float centred[CODEC_HEAD_DIM_MAX * PAGE_TOKENS];
    memset(rows->square, 0, sizeof rows->square);
    memset(rows->cross, 0, sizeof rows->cross);
    memset(rows->own, 0, sizeof rows->own);
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) centred[c * PAGE_TOKENS + t] = t < n ? from[t * hd + c] - mean[c] : 0;
    vector_ops()->multiply(learned->inverse, hd, hd, hd, centred, PAGE_TOKENS, PAGE_TOKENS, rows->z[0], PAGE_TOKENS);
    for (size_t c = 0; c < hd; c++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) rows->square[t] += rows->z[c][t] * rows->z[c][t];
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        rows->unit[t] = rows->square[t] > 0 ? sqrtf((float)hd / rows->square[t]) : 0;
        if (!isfinite(rows->unit[t])) rows->unit[t] = 0;
    }
}

/* ---- Levels: x[64] in units of the component's size; codes of the planes, and the levels that they stand for. */

static void quantize_gaussian(const struct transform_plane *plane, const float *x, uint8_t *codes, float *levels) {
    const int8_t *table = transform_levels[plane->table];
    int32_t above[PAGE_TOKENS] = {0};
    for (unsigned i = 0; i + 1 < 1u << plane->bits; i++) {
        float middle = 0.5f * plane->scale * (float)(table[i] + table[i + 1]);
        for (size_t t = 0; t < PAGE_TOKENS; t++) above[t] += x[t] > middle;
    }
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        codes[t] = (uint8_t)above[t];
        levels[t] = plane->scale * (float)table[above[t]];
    }
}

/* Neighbours of the lower plane's table are a step apart. */
static void quantize_uniform(const struct transform_plane *upper, const struct transform_plane *lower, const float *x,
                             uint8_t *upper_codes, uint8_t *lower_codes, float *levels) {
    float step = lower->scale * (float)(transform_levels[lower->table][1] - transform_levels[lower->table][0]), inverse = 1 / step;
    unsigned bits = (unsigned)upper->bits + lower->bits, shift = lower->bits, mask = (1u << shift) - 1;
    float half = 0.5f * (float)(1u << bits), most = 2 * half - 1;
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        float place = x[t] * inverse + half;
        place = place > 0 ? place : 0; /* and what is not a number */
        place = place < most ? place : most;
        int32_t code = (int32_t)place;
        levels[t] = step * ((float)code - 0.5f * most);
        upper_codes[t] = (uint8_t)((uint32_t)code >> shift);
        lower_codes[t] = (uint8_t)((uint32_t)code & mask);
    }
}

/* ---- Planes: codes[4][64] as page_layout.h has them. An octet's codes are 32 bytes in a row. */

static void octet_codes(enum codec_side side, const uint8_t codes[TRANSFORM_QUAD][PAGE_TOKENS], size_t octet, uint8_t bytes[32]) {
    for (size_t t = 0; t < 8; t++)
        for (size_t i = 0; i < TRANSFORM_QUAD; i++)
            bytes[side == CODEC_KEYS ? 4 * t + i : 16 * (t / 4) + 4 * i + t % 4] = codes[i][8 * octet + t];
}

/* Adds bits [from, from + bits) of the codes to a part of 32 bytes for each bit. */
static void write_part(enum codec_side side, const uint8_t codes[TRANSFORM_QUAD][PAGE_TOKENS], unsigned from, unsigned bits,
                       uint8_t *part) {
    unsigned mask = (1u << bits) - 1;
    for (size_t octet = 0; octet < 8; octet++) {
        unsigned shift = bits == 1 ? (unsigned)octet : bits == 2 ? (unsigned)(octet / 2 * 2) : (unsigned)(octet / 2 % 2 * 4);
        uint8_t bytes[32], *to = part + (bits == 1 ? 0 : 32 * (octet % 2)) + (bits == 4 ? 64 * (octet / 4) : 0);
        octet_codes(side, codes, octet, bytes);
        for (size_t j = 0; j < 32; j++) to[j] = (uint8_t)(to[j] | ((unsigned)bytes[j] >> from & mask) << shift);
    }
}

static void write_plane(enum codec_side side, const uint8_t codes[TRANSFORM_QUAD][PAGE_TOKENS], unsigned bits, uint8_t *plane) {
    if (bits == 3) {
        write_part(side, codes, 1, 2, plane);
        write_part(side, codes, 0, 1, plane + PAGE_TRANSFORM_PLANE(2));
    } else
        write_part(side, codes, 0, bits, plane);
}

/* Where the planes of each quad lie: its only or upper one, then the lower one or NULL. */
struct plane_place {
    const struct transform_plane *plane;
    uint8_t *codes;
};

static void find_planes(const struct transform_layout *layout, uint8_t *codes, struct plane_place places[][2]) {
    memset(places, 0, layout->quads * sizeof *places);
    for (size_t p = 0; p < layout->planes; p++) {
        const struct transform_plane *plane = &layout->plane[p];
        bool lower = layout->quad_bits[plane->quad] > TRANSFORM_PLANE_BITS && !plane->upper;
        places[plane->quad][lower] = (struct plane_place){plane, codes};
        codes += PAGE_TRANSFORM_PLANE(plane->bits);
    }
}

static void write_quad(struct page_rows *rows, const float *sizes, const struct plane_place places[2], enum codec_side side,
                       size_t quad) {
    struct quad_codes codes;
    float x[PAGE_TOKENS], levels[PAGE_TOKENS];
    for (size_t i = 0; i < TRANSFORM_QUAD; i++) {
        size_t c = quad * TRANSFORM_QUAD + i;
        float size = sizes[c], inverse = size > 0 ? 1 / size : 0;
        for (size_t t = 0; t < PAGE_TOKENS; t++) x[t] = rows->z[c][t] * rows->unit[t] * inverse;
        if (places[1].plane)
            quantize_uniform(places[0].plane, places[1].plane, x, codes.plane[0][i], codes.plane[1][i], levels);
        else
            quantize_gaussian(places[0].plane, x, codes.plane[0][i], levels);
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            rows->cross[t] += rows->z[c][t] * levels[t] * size;
            rows->own[t] += levels[t] * size * levels[t] * size;
        }
    }
    for (size_t p = 0; p < 2 && places[p].plane; p++)
        write_plane(side, (const uint8_t(*)[PAGE_TOKENS])codes.plane[p], places[p].plane->bits, places[p].codes);
}

static uint8_t gain_code(const struct transform_scaling *scaling, float gain) {
    if (!(scaling->gain_step > 0)) return 0;
    float code = roundf((gain - scaling->gain_least) / scaling->gain_step);
    return code > 0 ? (uint8_t)(code < 255 ? code : 255) : 0;
}

void transform_encode(struct codec_shape shape, enum codec_side side, const float *from, size_t n, void *page) {
    const struct transform_scaling scaling = transform_scaling_of(shape);
    const struct transform_layout *layout = shape.layout;
    struct plane_place places[TRANSFORM_QUADS_MAX][2];
    struct page_rows rows;
    uint8_t *gains = page;
    memset(page, 0, codec_page_bytes(&codec_transform, shape, side));
    if (!n) return;
    set_rows(&rows, shape.learned, scaling.mean, from, n);
    find_planes(layout, gains + PAGE_TOKENS, places);
    for (size_t quad = 0; quad < layout->quads; quad++)
        write_quad(&rows, scaling.size, (const struct plane_place *)places[quad], side, quad);
    for (size_t t = 0; t < n; t++) {
        float gain = 0;
        if (rows.own[t] > 0) gain = side == CODEC_KEYS ? sqrtf(rows.square[t] / rows.own[t]) : rows.cross[t] / rows.own[t];
        gains[t] = gain_code(&scaling, gain);
    }
}
