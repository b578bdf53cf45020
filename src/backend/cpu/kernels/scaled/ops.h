/* Declares the kernels of codecs whose codes are numbers times a scale: f16 (no scale), q8_0, q4_0, kivi (Liu et al. 2024) of 4 and
 * 2 bits, and sign, whose keys share the rows of packed magnitudes with kivi's values. format/page_layout.h says how a page of each
 * lies in memory.
 *
 * G queries share a KV head, hd = head_dim, any multiple of 32 up to KERNELS_MOST_CHANNELS, or KERNELS_MOST_ROW of keys but
 * sign's. Any G; a page is read from memory once.
 *     score       logits[G][64] = <q[G][hd], key t>
 *     accumulate  acc[G][hd] += sum over t of weights[G][64] value t
 * The vector tiers prefetch 16 KB ahead: pages that are read one after another should lie in that order. */
#ifndef TERSE_BACKEND_CPU_KERNELS_SCALED_OPS_H
#define TERSE_BACKEND_CPU_KERNELS_SCALED_OPS_H

#include "backend/cpu/kernels/cpu.h"

#include <stdbool.h>
#include <stddef.h>

struct scaled_ops {
    void (*score_f16)(const float *q, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_f16)(const float *weights, size_t G, size_t hd, const void *page, float *acc);

    /* q8_0 and q4_0 score in two steps: `prepare` makes tables[G][hd] of the queries, once for all pages; the order within them is
     * the tier's own. Tiers that multiply integers take as fixed point a query's numbers, and the products of a weight and a scale.
     * Each number of a query is off by at most 1 / 65000 of its query's largest, with q4_0 1 / 253 of the largest of its 32; each
     * product of a weight and a scale by 1 / 65000 of the largest of its query and 32 channels. Numbers below 1e-30 count as 0. */
    void (*prepare_q8_0)(const float *q, size_t G, size_t hd, float *tables);
    void (*score_q8_0)(const float *tables, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_q8_0)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    void (*prepare_q4_0)(const float *q, size_t G, size_t hd, float *tables);
    void (*score_q4_0)(const float *tables, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_q4_0)(const float *weights, size_t G, size_t hd, const void *page, float *acc);

    /* For kivi the same tiers take as fixed point the product of a query's number and its channel's scale, off by at most 1 / 253
     * of the largest of its query and 32 tokens, and that of a weight and its token's scale, off by at most 1 / 65000 of the
     * largest of its query and 32 channels. */
    void (*score_kivi_4)(const float *q, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_kivi_4)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    void (*score_kivi_2)(const float *q, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_kivi_2)(const float *weights, size_t G, size_t hd, const void *page, float *acc);

    /* These accumulate pages whose weights are a small part of their queries' total: the product of a weight and a scale may be off
     * by 1 / 253 of the largest, which is one byte instead of two. int8_is_faster says whether this tier gains by that, with some
     * codec; with others these functions are those above. */
    bool int8_is_faster;
    void (*accumulate_int8_q4_0)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    void (*accumulate_int8_kivi_4)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    void (*accumulate_int8_kivi_2)(const float *weights, size_t G, size_t hd, const void *page, float *acc);

    /* A key of codec sign is mean[hd] + sign * alpha[hd] * magnitude. It is scored in two steps with
     * tables[G][sign_table_floats(hd)]. Vector tiers may take a query times alpha as fixed point: each number is off by at most 1 /
     * 253 of the largest of its 32. */
    void (*prepare_sign)(const float *q, const float *mean, const float *alpha, size_t G, size_t hd, float *tables);
    void (*score_sign)(const float *tables, size_t G, size_t hd, const void *page, float *logits);
};

/* Returns how many floats a query takes in the tables of prepare_sign. */
static inline size_t sign_table_floats(size_t hd) { return hd + 2; }

const struct scaled_ops *scaled_ops(void);
/* Returns the table of one instruction set; NULL where cpu_has() is false. */
const struct scaled_ops *scaled_ops_at(enum cpu_isa isa);

#endif
