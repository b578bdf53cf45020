/* Declares the kernels of product quantization: a vector is `parts` sub-vectors of `width` channels, each one of 2^bits centroids.
 * pq/pq.h says what kernels read, format/page_layout.h how codes lie in a page. G, hd, score and accumulate are as in scaled/ops.h;
 * hd = parts * width. */
#ifndef TERSE_BACKEND_CPU_KERNELS_PQ_OPS_H
#define TERSE_BACKEND_CPU_KERNELS_PQ_OPS_H

#include "backend/cpu/kernels/cpu.h"
#include "backend/cpu/kernels/pq/pq.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NEAREST_WIDTH 32 /* centroids; two of the widest registers */

struct pq_ops {
    /* True if this tier looks centroids up in registers, which makes decoding cheap. Such a tier reads, and must be given, the byte planes and
     * 8-bit centroids of struct pq_codebook (and the byte planes of struct commvq_code). */
    bool has_register_lut;
    /* True if this tier reads, and must be given, rows_i16 of keys. */
    bool reads_rows_i16;

    /* Decode a page: channels[hd][64] of keys, rows[64][hd] of either side. */
    void (*decode_channels)(const struct pq_codebook *p, const void *page, float *channels);
    void (*decode_rows)(const struct pq_codebook *p, const void *page, float *rows);

    /* Score and accumulate by centroids, decoded once for all queries. Where centroids are read as bytes, or keys' as int16,
     * queries and weights are fixed point: each weight, and each number of a query times its channel's step, is off by about 1 /
     * 65278 of its query's largest. */
    void (*score)(const struct pq_codebook *p, const float *q, size_t G, const void *page, float *logits);
    void (*accumulate)(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc);
    /* Accumulates small weights, as scaled_ops' accumulate_int8_q4_0: weights may be off by 1 / 253 of the largest. */
    void (*accumulate_int8)(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc);
    /* Score in two steps where pq_reads_u8(p), in tiers with has_register_lut, or p->rows_i16, in tiers with reads_rows_i16 (else
     * NULL): quantize_query makes fixed[G][pq_i16_floats(p)] of the queries, once for all pages. */
    void (*quantize_query)(const struct pq_codebook *p, const float *q, size_t G, float *fixed);
    void (*score_i16)(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits);

    /* Score by look-up (asymmetric distance tables, Jegou et al. 2011): `prepare` makes tables[pq_table_floats(p, G)] of the
     * queries' inner products with all centroids; the order within is the tier's own. Where byte planes are read, entries are fixed
     * point: off by at most 2^-17 of the widest range that the entries of a sub-vector have. */
    void (*prepare)(const struct pq_codebook *p, const float *q, size_t G, float *tables);
    void (*look_up)(const struct pq_codebook *p, const float *tables, size_t G, const void *page, float *logits);
    /* Accumulate in two steps: code_sums[pq_table_floats(p, G)] += weights summed by code, over any number of pages; then
     * acc[G][hd] += code_sums times centroids. */
    void (*accumulate_by_code)(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *code_sums);
    void (*finish_code_sums)(const struct pq_codebook *p, const float *code_sums, size_t G, float *acc);

    /* Scores keys that were stored before RoPE, keys[hd][64] as they were decoded: logits[G][64] = <q[G][hd], key t rotated by its
     * own angles>. It is exact. */
    void (*score_rotated_channels)(const struct key_rotation *rotation, const float *q, size_t G, size_t hd, const float *keys,
                                   float *logits);

    /* Finds nearest centroids, a panel of `width` (a multiple of NEAREST_WIDTH) at a time; backend/cpu/codec/nearest.h is the
     * search made of it. Rows x[n][d]; centroids by channel panel[d][width], half[width] half their squared norms. Where the least
     * half[j] - <x[r], c[j]> is less than best[r], it becomes best[r], and code[r] becomes first + j, the lowest such j. NaN is
     * never less. */
    void (*nearest)(const float *x, size_t n, size_t d, const float *panel, const float *half, size_t width, uint32_t first,
                    float *best, uint32_t *code);
};

const struct pq_ops *pq_ops(void);
/* Returns the table of one instruction set; NULL where cpu_has() is false. */
const struct pq_ops *pq_ops_at(enum cpu_isa isa);

#endif
