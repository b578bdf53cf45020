/* CommVQ's keys as kernels see them (Li et al. 2025, section 4.2): what the slots of commvq/ops.h read. Owns nothing;
 * backend/cpu/codec/commvq.c owns what is pointed to, format/page_layout.h says how codes lie.
 *
 * A group is `pairs` complex numbers, each a pair of channels that RoPE rotates together. A round has a table z of entries of that
 * many complex numbers, and its codeword (a, b) is z[a] + i z[b]: the matrices [[x, y], [-y, x]] of the paper are complex numbers,
 * which commute with the rotation because that is one too. A group's row is real parts[pairs], then imaginary parts[pairs]. */
#ifndef TERSE_BACKEND_CPU_KERNELS_COMMVQ_COMMVQ_H
#define TERSE_BACKEND_CPU_KERNELS_COMMVQ_COMMVQ_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COMMVQ_ENTRIES 64    /* of a table, in pages: two indices of 6 bits are a code of 12 */
#define COMMVQ_BITS 12       /* of a code, a in its lower 6 */
#define COMMVQ_PART 96       /* bytes of the codes of 64 tokens */
#define COMMVQ_LANES 32      /* parts of a row are padded to so many numbers: the widest register */
#define COMMVQ_MOST_PAIRS 64 /* of a group: what one pass has registers for */
#define COMMVQ_MOST_ROUNDS 64

/* A head's tables: integers of 7 bits, so that a processor sums them in bytes first; a pair's sum of all rounds' codewords times
 * its step is the key's shape, and mean + gain shape the key. Later rounds are small (learned ones of 64 pairs have largest numbers
 * of 1, 0.44, 0.45, 0.28, 0.23, 0.20, ... of the first's): rounds fall into runs within which no sum is more than a byte. */
struct commvq_code {
    size_t groups, pairs, rounds;
    size_t stride;           /* pairs rounded up to COMMVQ_LANES */
    const int8_t *rows;      /* [groups][rounds][64][2][stride], at most COMMVQ_LARGEST in size, zeros past `pairs` */
    const float *steps;      /* [groups][stride], zeros past `pairs` */
    const float *inverses;   /* 1 / steps, or 0 */
    const float *largest;    /* [groups][stride]: as an integer, what no number of a pair's sum exceeds whatever the codes */
    const uint8_t *channels; /* [groups][2][pairs]: where in the head each number belongs */
    const float *mean;       /* [head_dim] */
    size_t runs;
    const uint8_t *run; /* [runs]: rounds of each */
    size_t rotated;     /* RoPE pairs, the first of all; adjacent or not as in struct key_rotation */
    bool adjacent;
    /* The same by pair, for tiers that look up in registers (pq_ops()->has_register_lut): real and imaginary parts, s8
     * [groups][pairs][rounds][2][64]; NULL for others. */
    const int8_t *planes;
};
#define COMMVQ_SUM 127 /* of a run */
#define COMMVQ_LARGEST 63

/* Floats of the tables of one query: each entry times the query's conjugate, and last the mean. */
static inline size_t commvq_table_floats(const struct commvq_code *c) {
    return c->groups * (c->rounds * COMMVQ_ENTRIES + 1) * 2 * c->stride;
}

/* ---- The search for the nearest codeword of one round: 2 entries inner products and entries^2 sums instead of entries^2
 * distances,
 *
 *     |x - z[a] - i z[b]|^2 / 2 = |x|^2 / 2 + half[a][b] - <x, z[a]> - <x, i z[b]>,   half[a][b] = |z[a] + i z[b]|^2 / 2
 */

struct commvq_search {
    size_t pairs, entries, columns; /* columns: entries rounded up to COMMVQ_COLUMNS */
    float *panel;                   /* [2 pairs][2 columns]: by number, z[a] and then i z[b] */
    float *half;                    /* [entries][columns], infinity past `entries` */
};
#define COMMVQ_COLUMNS 16

/* TERSE_E_ARGUMENT unless 1 <= pairs <= COMMVQ_MOST_PAIRS, 1 <= entries <= COMMVQ_ENTRIES. */
enum terse_status commvq_search_new(size_t pairs, size_t entries, struct commvq_search *search, struct terse_error *error);
/* Accepts a zeroed struct. */
void commvq_search_free(struct commvq_search *search);
size_t commvq_search_bytes(const struct commvq_search *search);
/* Takes over table[entries][2 pairs], finite; may be called again. */
void commvq_search_set(struct commvq_search *search, const float *table);
/* Its two parts, for a search put together of memory of one's own: `half` takes long to make, `panel` no time. */
void commvq_search_panel(struct commvq_search *search, const float *table);
void commvq_search_half(struct commvq_search *search, const float *table);

/* products[n][2 columns] of rows[n][2 pairs], `stride` floats apart: what the slots least_commvq and within_commvq read. */
void commvq_search_products(const struct commvq_search *search, const float *rows, size_t n, size_t stride, float *products);

/* codes[n] = a + entries b of the nearest codeword of each of rows[n]; of equally near ones that of the lowest a, then b. What a
 * row gets depends on it and the table alone. Allocates nothing; any number of threads may search at once. */
void commvq_search_nearest(const struct commvq_search *search, const float *rows, size_t n, size_t stride, uint16_t *codes);

/* rows[n] -= the codewords of codes[n] in table[entries][2 pairs]. */
void commvq_subtract(const float *table, size_t pairs, size_t entries, const uint16_t *codes, size_t n, float *rows, size_t stride);

#endif
