/* Product quantization as kernels see it: what the slots ..._pq of backend/cpu/kernels/kernels.h read by. Owns nothing; backend/cpu/codec/pq.c owns what is
 * pointed to, format/page_layout.h says how codes lie. */
#ifndef TERSE_BACKEND_CPU_KERNELS_PQ_PQ_H
#define TERSE_BACKEND_CPU_KERNELS_PQ_PQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRODUCT_MOST_WIDTH 64                                         /* channels of a sub-vector */
#define PRODUCT_PLANE_BITS 8                                          /* bits of a code up to which centroids lie by channel too */
#define PRODUCT_PLANE(bits) ((size_t)((bits) < 6 ? 64 : 1 << (bits))) /* entries of a channel: a register looks up in 64 bytes */

/* Sub-vectors of `width` contiguous channels, each coded by one of 2^bits centroids of its own. */
struct product_code {
    size_t parts, width;
    unsigned bits;
    const uint16_t *rows; /* half [parts][2^bits][width] */

    /* The same by channel, for tiers that look up in registers (kernels()->planes_pq), where bits <= PRODUCT_PLANE_BITS; entries
     * from 2^bits on repeat. Where a channel's centroids are, exactly, low + step * level with at most 256 levels, all of `from`,
     * low - 2^17 step, being floats: */
    const uint8_t *levels; /* u8 [parts * width][PRODUCT_PLANE], or NULL */
    const float *low, *step, *from;
    /* Of other keys: u8 [parts * width][2][PRODUCT_PLANE], the halves' low bytes and then their high ones, or NULL. */
    const uint8_t *planes;
    /* Where bits > PRODUCT_PLANE_BITS and width is a multiple of 4, the same tiers read levels as rows lie, with low and step:
     * u8 [parts][2^bits][width], or NULL. */
    const uint8_t *level_rows;
};

/* Floats of G queries in a row of tables and tallies: whole vectors or the parts of one. */
static inline size_t product_stride(size_t G) { return G <= 2 ? G : G <= 4 ? 4 : (G + 7) / 8 * 8; }
/* Floats of the look-up tables of G queries, and of their tallies. */
static inline size_t product_floats(const struct product_code *p, size_t G) {
    return (p->parts * PRODUCT_PLANE(p->bits) + 2) * product_stride(G);
}

/* Whether centroids are read as levels, by channel or by row; and whether they can be, where they lie on a grid. */
static inline bool product_by_levels(const struct product_code *p) { return p->levels || p->level_rows; }
static inline bool product_may_have_levels(size_t width, unsigned bits) { return bits <= PRODUCT_PLANE_BITS || width % 4 == 0; }

/* Floats of a query in fixed point. */
static inline size_t product_fixed(const struct product_code *p) { return p->parts * p->width / 2 + 2; }

/* How keys in a block become what queries meet: each turned by its own angles as the slot score_turned does, and before that, where
 * `gain` is not NULL, a key is mean[hd] + gain[64] times what its codes say. */
struct key_turn {
    const float *cosine, *sine; /* [pairs][64] */
    size_t pairs;
    bool adjacent;
    const float *gain, *mean;
    /* Cosine and sine once more as words, 32767 times what they are without `magnitude`, their largest size, for tiers that turn in 16
     * bits; NULL: there are none. */
    const int16_t *words; /* [pairs][2][64] */
    float magnitude;
};

#endif
