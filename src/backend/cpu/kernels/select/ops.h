/* Declares the kernels of token selection: the scores by which indexes and policies rank tokens, top-k over them, and packing the
 * chosen tokens' codes into a page of their own. gather_codes stands here rather than with one codec because every codec packs by
 * it: all of them share the layout of code planes. */
#ifndef TERSE_BACKEND_CPU_KERNELS_SELECT_OPS_H
#define TERSE_BACKEND_CPU_KERNELS_SELECT_OPS_H

#include "backend/cpu/kernels/cpu.h"

#include <stddef.h>
#include <stdint.h>

struct select_ops {
    /* Computes for index sign the scores[64] of a page, sums over its planes[n][64] of tables[2 n][16], which the low and then the
     * high four bits of each byte look up. n is at most 64. */
    void (*scores_sign)(const uint8_t *tables, size_t n, const uint8_t *planes, uint16_t *scores);
    /* Computes for index quest bounds[4], one for each 16 tokens of a page: sums of the larger of q[c] min[c] and q[c] max[c]. */
    void (*scores_quest)(const float *q, size_t hd, const void *page, float *bounds);

    /* Counts the scores[n] that are at least `least`. */
    size_t (*count_scores)(const uint16_t *scores, size_t n, uint16_t least);
    /* Writes the indices of the scores above `threshold`, and of those equal to it all but the first `skip`, in order. Returns how
     * many there are. n is below 2^32. */
    size_t (*list_scores)(const uint16_t *scores, size_t n, uint16_t threshold, size_t skip, uint32_t *tokens);

    /* Copies `parts` sets of code planes (as pq's in format/page_layout.h; 1 to 12 bits, and 16 for halves [parts][64]): the codes
     * of the slots slots[n] become those of slots at, at + 1, ... of `to`, whose other slots stay. n + at <= 64. */
    void (*gather_codes)(const void *from, size_t parts, unsigned bits, const uint8_t *slots, size_t n, void *to, size_t at);

    /* Computes AnTKV's anchor scores of 64 tokens: keys[j] += sum of A (1 - A) norms[r] and values[j] += sum of A over the rows,
     * where A = weights[r][j] factors[r]; rows lie `stride` floats apart. Each token's sums are in order of the rows. */
    void (*add_anchors)(const float *weights, size_t stride, const float *factors, const float *norms, size_t rows, float *keys,
                        float *values);
};

const struct select_ops *select_ops(void);
/* Returns the table of one instruction set; NULL where cpu_has() is false. */
const struct select_ops *select_ops_at(enum cpu_isa isa);

#endif
