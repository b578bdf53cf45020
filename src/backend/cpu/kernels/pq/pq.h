/* Declares product quantization as kernels see it, for the functions of pq/ops.h. It owns nothing; backend/cpu/codec/pq.c owns what
 * is pointed to, format/page_layout.h says how codes lie. */
#ifndef TERSE_BACKEND_CPU_KERNELS_PQ_PQ_H
#define TERSE_BACKEND_CPU_KERNELS_PQ_PQ_H

#include "format/pq.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PQ_CHANNEL_ENTRIES(bits) \
    ((size_t)((bits) < 6 ? 64 : 1 << (bits))) /* entries of a channel: a register looks up in 64 bytes */

/* A pq_codebook has sub-vectors of `width` contiguous channels, each coded by one of 2^bits centroids of its own. */
struct pq_codebook {
    size_t parts, width;
    unsigned bits;
    const uint16_t *rows; /* half [parts][2^bits][width] */

    /* These are the same by channel, for tiers that look up in registers (pq_ops()->has_register_lut), where bits <=
     * PQ_CHANNEL_BITS; entries from 2^bits on repeat. Where a channel's centroids are exactly low + step * u8 for bytes u8, they
     * are these bytes; `from` is low - 2^17 step; all three are exact in floats. */
    const uint8_t *centroids_u8; /* u8 [parts * width][PQ_CHANNEL_ENTRIES], or NULL */
    const float *low, *step, *from;
    /* Keys without such bytes have byte planes: u8 [parts * width][2][PQ_CHANNEL_ENTRIES], the halves' low bytes and then their high ones, or
     * NULL. */
    const uint8_t *byte_planes;
    /* If bits > PQ_CHANNEL_BITS and width is a multiple of 4, the same tiers read 8-bit centroids by row, with low and step: u8
     * [parts][2^bits][width], or NULL. */
    const uint8_t *centroid_rows_u8;
    /* For tiers that read 16-bit centroids (pq_ops()->reads_rows_i16), the bytes u8 of keys on such a grid by row, bits <=
     * PQ_CHANNEL_BITS and width even, with low and step: int16 [parts][2^bits][width], or NULL. */
    const int16_t *rows_i16;
};

static inline size_t pq_centroids(const struct pq_codebook *p) { return (size_t)1 << p->bits; }
static inline size_t pq_channels(const struct pq_codebook *p) { return p->parts * p->width; }

/* Returns how many floats G queries take in a row of tables and code sums: whole vectors or the parts of one. */
static inline size_t pq_stride(size_t G) { return G <= 2 ? G : G <= 4 ? 4 : (G + 7) / 8 * 8; }
/* Returns how many floats the look-up tables of G queries take, and so do their code sums. */
static inline size_t pq_table_floats(const struct pq_codebook *p, size_t G) {
    return (p->parts * PQ_CHANNEL_ENTRIES(p->bits) + 2) * pq_stride(G);
}

/* Returns whether centroids are read as bytes, by channel or by row, in tiers that look up in registers. */
static inline bool pq_reads_u8(const struct pq_codebook *p) { return p->centroids_u8 || p->centroid_rows_u8; }

/* Returns how many floats a query in fixed point takes. */
static inline size_t pq_i16_floats(const struct pq_codebook *p) { return p->parts * p->width / 2 + 2; }

/* A key_rotation is RoPE of the keys of a page when they are scored, each token by its own angle: pair i is channels (2i, 2i + 1)
 * if `adjacent`, else (i, i + pairs); (a, b) becomes (a cos - b sin, a sin + b cos). Channels from 2 pairs on stay. */
struct key_rotation {
    const float *cosine, *sine; /* [pairs][64] */
    size_t pairs;
    bool adjacent;
    /* These are cosine and sine once more, as int16: 32767 times their values without `magnitude`, the largest of their sizes, for
     * tiers that rotate in 16 bits; NULL: there are none. */
    const int16_t *i16; /* [pairs][2][64] */
    float magnitude;
};

#endif
