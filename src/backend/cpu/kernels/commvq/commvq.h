/* Declares CommVQ's keys as kernels see them (Li et al. 2025, section 4.2), for the functions of commvq/ops.h. It owns nothing;
 * backend/cpu/codec/commvq.c owns what is pointed to, format/commvq.h says what a sub-vector, a round and a code are,
 * format/page_layout.h how codes lie.
 *
 * The matrices [[x, y], [-y, x]] of the paper are complex numbers, which commute with the rotation because it is a complex number,
 * too. A sub-vector's row is real parts[pairs], then imaginary parts[pairs]. */
#ifndef TERSE_BACKEND_CPU_KERNELS_COMMVQ_COMMVQ_H
#define TERSE_BACKEND_CPU_KERNELS_COMMVQ_COMMVQ_H

#include "format/commvq.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COMMVQ_COLUMNS 16 /* columns of a search are padded to a multiple */
#define COMMVQ_LANES 32   /* parts of a row are padded to so many numbers: the widest register */

/* A commvq_code is a head's tables: integers of 7 bits, so that a processor sums them in bytes first. A pair's sum of all rounds'
 * codewords times its step is the key's shape, and mean + gain shape is the key. Later rounds are small (learned ones of 64 pairs
 * have largest numbers of 1, 0.44, 0.45, 0.28, 0.23, 0.20, ... of the first's): rounds fall into spans, within each of which no sum
 * is more than a byte. */
struct commvq_code {
    size_t subvectors, pairs, rounds;
    size_t stride;           /* pairs rounded up to COMMVQ_LANES */
    const int8_t *rows;      /* [subvectors][rounds][64][2][stride], at most COMMVQ_LARGEST in size, zeros past `pairs` */
    const float *steps;      /* [subvectors][stride], zeros past `pairs` */
    const float *inverses;   /* 1 / steps, or 0 */
    const float *largest;    /* [subvectors][stride]: as an integer, what no number of a pair's sum exceeds whatever the codes */
    const uint8_t *channels; /* [subvectors][2][pairs]: where in the head each number belongs */
    const float *mean;       /* [head_dim] */
    size_t spans;
    const uint8_t *span; /* [spans]: rounds of each */
    size_t rotated;      /* RoPE pairs, the first of all; they lie as `adjacent` of struct key_rotation says */
    bool adjacent;
    /* These are the same by pair, for tiers that look up in registers (pq_ops()->has_register_lut): real and imaginary parts, s8
     * [subvectors][pairs][rounds][2][64]; NULL for others. */
    const int8_t *planes;
};

/* Returns the floats of one query's tables: each entry times the query's conjugate, and last the mean. */
static inline size_t commvq_table_floats(const struct commvq_code *c) {
    return c->subvectors * (c->rounds * COMMVQ_ENTRIES + 1) * 2 * c->stride;
}

#endif
