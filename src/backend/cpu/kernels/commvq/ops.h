/* Declares the kernels of CommVQ (Li et al. 2025): keys as sums of complex codewords that commute with RoPE (commvq/commvq.h) and
 * values as sums of a codebook's rows, chosen by the bits of a binary code (commvq/additive.h). */
#ifndef TERSE_BACKEND_CPU_KERNELS_COMMVQ_OPS_H
#define TERSE_BACKEND_CPU_KERNELS_COMMVQ_OPS_H

#include "backend/cpu/kernels/commvq/additive.h"
#include "backend/cpu/kernels/commvq/commvq.h"
#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/pq/pq.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct commvq_ops {
    /* ---- Encoding: the searches are backend/cpu/codec's ---- */

    /* Computes out[n][width] = x[n][d], rows `stride` apart, times panel[d][width], width a multiple of 32. Each inner product is
     * summed in order of d, so that a row's result does not depend on which rows are given together. */
    void (*multiply_panel)(const float *x, size_t n, size_t d, size_t stride, const float *panel, size_t width, float *out);
    /* Finds the least of half[a][b] - products[columns + b] - products[a]. Returns where it is, a columns + b, of equal ones the
     * lowest. */
    uint32_t (*nearest)(const float *half, size_t entries, size_t columns, const float *products, float *least);
    /* Finds all that are less than `limit`, in order, and writes the first `most` of them; returns how many there are. */
    size_t (*within)(const float *half, size_t entries, size_t columns, const float *products, float limit, size_t most,
                     uint32_t *cells, float *values);
    /* Searches for binary codes locally: signs[count][n] of low energy for couplings[n][n] and the fields that act on the signs of
     * each row before any is set, fields[count][n], which become the fields of the result. Rows do not depend on each other. */
    void (*local_search)(const float *couplings, size_t n, size_t count, float *fields, float *signs);

    /* ---- Keys ---- */

    /* Decodes keys: channels[hd][64] = mean + gains[64] times the sums that the codes stand for. */
    void (*decode)(const struct commvq_code *c, const float *gains, const void *codes, float *channels);
    /* Computes logits[G][64] of keys rotated by their own angles, as pq_ops' score_rotated; in tiers with has_register_lut only
     * (else NULL). Keys and queries are fixed point: each number of a key is off by at most 1 / 6000 of the largest size that its
     * pair's mean, tables and the largest gain allow, and the errors of queries are at most hd / 45000 of the sum of the largest
     * sizes of a logit's terms. Returns false, with nothing written, where `rotation` has no 16-bit angles or the tier does not
     * rotate such pairs: decode and pq_ops' score_rotated_channels then serve. */
    bool (*score_rotated)(const struct commvq_code *c, const struct key_rotation *rotation, const float *gains, const float *q,
                          size_t G, const void *codes, float *logits);
    /* These do the same for one query q[hd] by look-up: `prepare` makes tables[commvq_table_floats(c)] of it, once for all pages.
     * They do not read gain and mean of `rotation`. */
    void (*prepare)(const struct commvq_code *c, const float *q, float *tables);
    void (*look_up)(const struct commvq_code *c, const struct key_rotation *rotation, const float *tables, const float *gains,
                    const void *codes, float *logits);

    /* ---- Values ---- */

    /* Adds to code_sums[G][n] the weights[G][64] summed by bit of the code, n a multiple of 32: bit j of codes[8][n]'s byte [o][i]
     * is bit i of token 8 o + j's code. Vector tiers take weights as fixed point: each is off by at most 1 / 65406 of the sum of
     * its query's magnitudes. */
    void (*accumulate_by_code)(const float *weights, size_t G, size_t n, const uint8_t *codes, float *code_sums);
    /* Computes out[G][32], rows ldo apart, += a[G][K] b[K][32], b bytes of at most 127 in rows ldb apart: code sums times the
     * codebook's rows. */
    void (*add_bytes)(const float *a, size_t G, size_t K, const uint8_t *b, size_t ldb, float *out, size_t ldo);
};

const struct commvq_ops *commvq_ops(void);
/* Returns the table of one instruction set; NULL where cpu_has() is false. */
const struct commvq_ops *commvq_ops_at(enum cpu_isa isa);

#endif
