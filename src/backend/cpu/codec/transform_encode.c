/* The codec transform: writing pages. Each component of each row is rounded to the nearest level; the gain is set last, for what the levels
 * came to: of keys it keeps the row's size in the metric, of values it is the best in least squares, since attention averages values
 * and would not make good what a longer row adds. */
#include "backend/cpu/codec/transform.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "format/transform_codes.h"

#include <math.h>
#include <string.h>

/* Of a page being written, component by component over its tokens. */
struct page_rows {
    size_t n;
    float unit[PAGE_TOKENS];                   /* what makes a coefficient one of a row of the size 1: 1 / r */
    float z[PAGE_TOKENS * CODEC_HEAD_DIM_MAX]; /* coefficients [n][head_dim] */
    float square[PAGE_TOKENS], cross[PAGE_TOKENS], own[PAGE_TOKENS]; /* |z|^2, <z, shape>, |shape|^2 */
};

/* The number of levels between neighbours that x is not below: the nearest level's code. */
static unsigned nearest(const int8_t *levels, unsigned bits, float x) {
    unsigned code = 0;
    for (unsigned i = 0; i + 1 < 1u << bits; i++) code += x > 0.5f * (float)(levels[i] + levels[i + 1]);
    return code;
}

/* The codes of a component in a row: one of up to 4 bits, or an upper one and a lower one. */
struct codes {
    unsigned upper, lower;
};

/* x in units of the component's size. `first` is the quad's only or upper plane, `second` its lower one or NULL. */
static struct codes quantize(const struct transform_plane *first, const struct transform_plane *second, float x, float *level) {
    struct codes codes = {0};
    if (!second) {
        codes.upper = nearest(transform_levels[first->table], first->bits, x / first->scale);
        *level = first->scale * (float)transform_levels[first->table][codes.upper];
        return codes;
    }
    /* A uniform quantizer: neighbours of the lower table are a step apart. */
    float step = second->scale * (float)(transform_levels[second->table][1] - transform_levels[second->table][0]);
    unsigned count = 1u << (first->bits + second->bits);
    float place = floorf(x / step + 0.5f * (float)count);
    unsigned code = place > 0 ? (place < (float)(count - 1) ? (unsigned)place : count - 1) : 0;
    codes.upper = code >> second->bits;
    codes.lower = code & ((1u << second->bits) - 1);
    *level = step * ((float)code - 0.5f * (float)(count - 1));
    return codes;
}

/* Where the planes of each quad lie. */
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

static void write_component(struct page_rows *rows, const struct transform_learned *learned, const struct plane_place places[2],
                            enum codec_side side, size_t c) {
    size_t hd = learned->head_dim, i = c % TRANSFORM_QUAD;
    float size = learned->size[c], inverse = size > 0 ? 1 / size : 0;
    for (size_t t = 0; t < rows->n; t++) {
        float z = rows->z[t * hd + c], level;
        struct codes codes = quantize(places[0].plane, places[1].plane, z * rows->unit[t] * inverse, &level);
        transform_put(places[0].codes, places[0].plane->bits, side, t, i, codes.upper);
        if (places[1].plane) transform_put(places[1].codes, places[1].plane->bits, side, t, i, codes.lower);
        rows->cross[t] += z * level * size;
        rows->own[t] += level * size * level * size;
    }
}

static uint8_t gain_code(const struct transform_learned *learned, float gain) {
    if (!(learned->gain_step > 0)) return 0;
    float code = roundf((gain - learned->gain_least) / learned->gain_step);
    return code > 0 ? (uint8_t)(code < 255 ? code : 255) : 0;
}

static void set_rows(struct page_rows *rows, const struct transform_learned *learned, const float *from, size_t n) {
    size_t hd = learned->head_dim;
    float centred[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    rows->n = n;
    memset(rows->cross, 0, sizeof rows->cross);
    memset(rows->own, 0, sizeof rows->own);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < hd; c++) centred[t * hd + c] = from[t * hd + c] - learned->mean[c];
    vector_ops()->multiply(centred, n, hd, hd, learned->inverse, hd, hd, rows->z, hd);
    for (size_t t = 0; t < n; t++) {
        float square = 0;
        for (size_t c = 0; c < hd; c++) square += rows->z[t * hd + c] * rows->z[t * hd + c];
        rows->square[t] = square;
        rows->unit[t] = square > 0 ? sqrtf((float)hd / square) : 0;
        if (!isfinite(rows->unit[t])) rows->unit[t] = 0;
    }
}

void transform_encode(struct codec_shape shape, enum codec_side side, const float *from, size_t n, void *page) {
    const struct transform_learned *learned = shape.learned;
    const struct transform_layout *layout = shape.layout;
    struct plane_place places[TRANSFORM_QUADS_MAX][2];
    struct page_rows rows;
    uint8_t *gains = page;
    memset(page, 0, codec_page_bytes(&codec_transform, shape, side));
    if (!n) return;
    set_rows(&rows, learned, from, n);
    find_planes(layout, gains + PAGE_TOKENS, places);
    for (size_t c = 0; c < (size_t)layout->quads * TRANSFORM_QUAD; c++)
        write_component(&rows, learned, places[c / TRANSFORM_QUAD], side, c);
    for (size_t t = 0; t < n; t++) {
        float gain = 0;
        if (rows.own[t] > 0) gain = side == CODEC_KEYS ? sqrtf(rows.square[t] / rows.own[t]) : rows.cross[t] / rows.own[t];
        gains[t] = gain_code(learned, gain);
    }
}
