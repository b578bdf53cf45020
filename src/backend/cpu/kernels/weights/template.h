/* This template makes dequantize[] and matmul[] of one function per format, unpack_TYPE, which turns a group of 32 stored weights
 * into registers that hold the very floats of the scalar reference. avx2.c, avx512.c and neon.c include it at their end;
 * FILL_ALL_WEIGHTS(ops, ISA) fills the tables. Parameters:
 *
 *     VECTOR, LANES                                       a register of LANES floats
 *     vector_zero(), vector_load(p), vector_store(p, v), vector_fma(a, b, c) = a b + c
 *     store_sums(sums[ROWS][2], y, n)                     y[j] = all lanes of sums[j] together, for the first n of ROWS
 *     scales_TYPE(block, scales[SCALES_MOST])             for the K types: what unpack_TYPE needs to know of a whole block
 *     unpack_TYPE(block, scales, g, w[32 / LANES])        group g counting from `block`; K types have eight in a block, others one
 *
 * A vector alone is multiplied by four rows together, so that one load of x serves four, and fetches the next four meanwhile:
 * processors see the ends of rows, a few KiB each, as the ends of streams, and do not prefetch beyond them by themselves. Where
 * there are several vectors, four are multiplied by a row together, which is unpacked once for them. A product is the same sum
 * either way, whatever it is computed with. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_TEMPLATE_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_TEMPLATE_H

#include "backend/cpu/kernels/compiler.h"

#define ROWS 4
#define PARTS (32 / LANES)
#define CACHE_LINE 64
#define SCALES_MOST 32 /* of a block: a scale and a minimum for each 16 weights */
#define AHEAD 4096     /* bytes: the processor's own prefetching of one stream stops at the ends of the system's pages */

#define ROLL

/* Work goes by 256 weights: one block of a K type, or eight of the others and less at the end of a row. */
#define EIGHT_GROUPS(left) 8
#define UP_TO_EIGHT_GROUPS(left) ((left) < 256 ? (int)((left) / 32) : 8)

#define WEIGHT_DEQUANTIZER(type, name, blocks, GROUPS) \
    static void name(const void *row, float *out, size_t n) { \
        for (size_t i = 0; i < n; i += 256) { \
            const struct weight_##type *block = (const struct weight_##type *)row + i / 256 * blocks; \
            float scales[SCALES_MOST]; \
            scales_##type(block, scales); \
            for (int g = 0, groups = GROUPS(n - i); g < groups; g++) { \
                VECTOR w[PARTS]; \
                unpack_##type(block, scales, g, w); \
                for (int p = 0; p < PARTS; p++) vector_store(out + i + 32 * g + LANES * p, w[p]); \
            } \
        } \
    }

#define WEIGHT_MATVEC(type, name, blocks, GROUPS, GROUP_LOOP) \
    static void name(const void *w, size_t row_bytes, size_t rows, size_t n, const float *x, float *y) { \
        for (size_t r = 0; r < rows; r += ROWS) { \
            const struct weight_##type *row[ROWS]; /* past the last row: that row again, its sum unused */ \
            VECTOR sums[ROWS][2]; \
            for (size_t j = 0; j < ROWS; j++) { \
                row[j] = (const void *)((const char *)w + (r + j < rows ? r + j : rows - 1) * row_bytes); \
                sums[j][0] = sums[j][1] = vector_zero(); \
            } \
            for (size_t i = 0, b = 0; i < n; i += 256, b += blocks) { \
                const struct weight_##type *block[ROWS]; \
                float scales[ROWS][SCALES_MOST]; \
                UNROLL for (int j = 0; j < ROWS; j++) { \
                    block[j] = row[j] + b; \
                    for (size_t at = 0; at < blocks * sizeof *block[j]; at += CACHE_LINE) \
                        __builtin_prefetch((const void *)((uintptr_t)block[j] + ROWS * row_bytes + at)); \
                    scales_##type(block[j], scales[j]); \
                } \
                const int groups = GROUPS(n - i); \
                GROUP_LOOP for (int g = 0; g < groups; g++) { \
                    UNROLL for (int j = 0; j < ROWS; j++) { \
                        VECTOR weights[PARTS]; \
                        unpack_##type(block[j], scales[j], g, weights); \
                        UNROLL for (int p = 0; p < PARTS; p++) sums[j][p % 2] = \
                            vector_fma(weights[p], vector_load(x + i + 32 * g + LANES * p), sums[j][p % 2]); \
                    } \
                } \
            } \
            store_sums(sums, y + r, rows - r); \
        } \
    }

/* Rows past the last vector are that vector again, with a sum that is not used. */
#define WEIGHT_VECTORS(type, name, blocks, GROUPS, GROUP_LOOP) \
    static void name(const void *w, size_t row_bytes, size_t rows, size_t n, const float *const x[ROWS], size_t count, float *y, \
                     size_t stride) { \
        for (size_t r = 0; r < rows; r++) { \
            const struct weight_##type *block = (const void *)((const char *)w + r * row_bytes); \
            VECTOR sums[ROWS][2]; \
            float y_of[ROWS]; \
            for (size_t j = 0; j < ROWS; j++) sums[j][0] = sums[j][1] = vector_zero(); \
            for (size_t i = 0; i < n; i += 256, block += blocks) { \
                float scales[SCALES_MOST]; \
                for (size_t at = 0; at < blocks * sizeof *block; at += CACHE_LINE) \
                    __builtin_prefetch((const void *)((uintptr_t)block + AHEAD + at)); \
                scales_##type(block, scales); \
                const int groups = GROUPS(n - i); \
                GROUP_LOOP for (int g = 0; g < groups; g++) { \
                    VECTOR weights[PARTS]; \
                    unpack_##type(block, scales, g, weights); \
                    UNROLL for (int j = 0; j < ROWS; j++) { \
                        UNROLL for (int p = 0; p < PARTS; p++) sums[j][p % 2] = \
                            vector_fma(weights[p], vector_load(x[j] + i + 32 * g + LANES * p), sums[j][p % 2]); \
                    } \
                } \
            } \
            store_sums(sums, y_of, ROWS); \
            for (size_t j = 0; j < count; j++) y[j * stride + r] = y_of[j]; \
        } \
    }

/* Defines a product with any number of vectors, from kernels for one vector and for four. */
#define WEIGHT_MATMUL(name, one, four) \
    static void name(const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, size_t count, float *y, \
                     size_t stride) { \
        size_t t = 0; \
        for (; t + 1 < count; t += ROWS) { \
            const float *together[ROWS]; \
            for (size_t j = 0; j < ROWS; j++) together[j] = x[SMALLER(t + j, count - 1)]; \
            four(w, row_bytes, rows, n, together, SMALLER(ROWS, count - t), y + t * stride, stride); \
        } \
        if (t < count) one(w, row_bytes, rows, n, x[t], y + t * stride); \
    }

/* Types without blocks may have any n: the rest of a row goes through a group of its own, filled up with zeros. */
#define PLAIN_KERNELS(type, isa) \
    WEIGHT_DEQUANTIZER(type, dequantize_groups_##type, 8, UP_TO_EIGHT_GROUPS) \
    WEIGHT_MATVEC(type, matvec_groups_##type, 8, UP_TO_EIGHT_GROUPS, ROLL) \
    WEIGHT_VECTORS(type, vectors_groups_##type, 8, UP_TO_EIGHT_GROUPS, ROLL) \
    WEIGHT_MATMUL(matmul_groups_##type, matvec_groups_##type, vectors_groups_##type) \
\
    static void dequantize_##type##_##isa(const void *row, float *out, size_t n) { \
        size_t rest = n % 32, whole = n - rest; \
        dequantize_groups_##type(row, out, whole); \
        if (rest) { \
            struct weight_##type last = {0}; \
            float unpacked[32]; \
            memcpy(&last, (const struct weight_##type *)row + whole / 32, rest * sizeof last.values[0]); \
            dequantize_groups_##type(&last, unpacked, 32); \
            memcpy(out + whole, unpacked, rest * sizeof *out); \
        } \
    } \
\
    static void matmul_##type##_##isa(const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, size_t count, \
                                      float *y, size_t stride) { \
        size_t rest = n % 32, whole = n - rest; \
        matmul_groups_##type(w, row_bytes, rows, whole, x, count, y, stride); \
        for (size_t t = 0; t < count && rest; t++) { \
            float last_x[32] = {0}; \
            memcpy(last_x, (const float *)x[t] + whole, rest * sizeof *last_x); \
            for (size_t r = 0; r < rows; r++) { \
                struct weight_##type last = {0}; \
                float sum; \
                memcpy(&last, (const struct weight_##type *)(const void *)((const char *)w + r * row_bytes) + whole / 32, \
                       rest * sizeof last.values[0]); \
                matvec_groups_##type(&last, sizeof last, 1, 32, last_x, &sum); \
                y[t * stride + r] += sum; \
            } \
        } \
    }

#define BLOCK_DEQUANTIZER(type, isa) WEIGHT_DEQUANTIZER(type, dequantize_##type##_##isa, 8, UP_TO_EIGHT_GROUPS)
#define BLOCK_MATMUL(type, isa) \
    WEIGHT_MATVEC(type, matvec_##type, 8, UP_TO_EIGHT_GROUPS, ROLL) \
    WEIGHT_VECTORS(type, vectors_##type, 8, UP_TO_EIGHT_GROUPS, ROLL) \
    WEIGHT_MATMUL(matmul_##type##_##isa, matvec_##type, vectors_##type)
#define BLOCK_KERNELS(type, isa) BLOCK_DEQUANTIZER(type, isa) BLOCK_MATMUL(type, isa)
#define K_DEQUANTIZER(type, isa) WEIGHT_DEQUANTIZER(type, dequantize_##type##_##isa, 1, EIGHT_GROUPS)
#define K_MATMUL(type, isa) \
    WEIGHT_MATVEC(type, matvec_##type, 1, EIGHT_GROUPS, UNROLL) \
    WEIGHT_VECTORS(type, vectors_##type, 1, EIGHT_GROUPS, UNROLL) \
    WEIGHT_MATMUL(matmul_##type##_##isa, matvec_##type, vectors_##type)
#define K_KERNELS(type, isa) K_DEQUANTIZER(type, isa) K_MATMUL(type, isa)

#define FLOAT_WEIGHT_KERNELS(isa) \
    PLAIN_KERNELS(f32, isa) \
    PLAIN_KERNELS(f16, isa) \
    PLAIN_KERNELS(bf16, isa) \
    BLOCK_KERNELS(q4_1, isa) \
    BLOCK_KERNELS(q5_0, isa) \
    BLOCK_KERNELS(q5_1, isa) \
    K_KERNELS(q2_k, isa) \
    K_KERNELS(q3_k, isa)

/* An instruction set may multiply these formats by products of bytes instead. */
#define BYTE_DEQUANTIZERS(isa) \
    BLOCK_DEQUANTIZER(q8_0, isa) \
    BLOCK_DEQUANTIZER(q4_0, isa) \
    BLOCK_DEQUANTIZER(iq4_nl, isa) \
    BLOCK_DEQUANTIZER(mxfp4, isa) \
    K_DEQUANTIZER(iq4_xs, isa) \
    K_DEQUANTIZER(q4_k, isa) \
    K_DEQUANTIZER(q5_k, isa) \
    K_DEQUANTIZER(q6_k, isa)
#define BYTE_MATMULS(isa) \
    BLOCK_MATMUL(q8_0, isa) \
    BLOCK_MATMUL(q4_0, isa) \
    BLOCK_MATMUL(iq4_nl, isa) \
    BLOCK_MATMUL(mxfp4, isa) \
    K_MATMUL(iq4_xs, isa) \
    K_MATMUL(q4_k, isa) \
    K_MATMUL(q5_k, isa) \
    K_MATMUL(q6_k, isa)

#define ALL_WEIGHT_KERNELS(isa) FLOAT_WEIGHT_KERNELS(isa) BYTE_DEQUANTIZERS(isa) BYTE_MATMULS(isa)

#define FILL_DEQUANTIZER(ops, TYPE, type, isa) (ops)->dequantize[TENSOR_##TYPE] = dequantize_##type##_##isa
/* A table begins as a copy of the lower tier's, whose products may have taken fixed point. */
#define FILL_MATMUL(ops, TYPE, type, isa) \
    (ops)->fix[TENSOR_##TYPE] = NULL; \
    (ops)->fixed_bytes[TENSOR_##TYPE] = NULL; \
    (ops)->matmul[TENSOR_##TYPE] = matmul_##type##_##isa; \
    (ops)->gemm_rows[TENSOR_##TYPE] = 32
#define FILL_WEIGHT(ops, TYPE, type, isa) \
    FILL_DEQUANTIZER(ops, TYPE, type, isa); \
    FILL_MATMUL(ops, TYPE, type, isa)

#define FILL_FLOAT_WEIGHTS(ops, isa) \
    FILL_WEIGHT(ops, F32, f32, isa); \
    FILL_WEIGHT(ops, F16, f16, isa); \
    FILL_WEIGHT(ops, BF16, bf16, isa); \
    FILL_WEIGHT(ops, Q4_1, q4_1, isa); \
    FILL_WEIGHT(ops, Q5_0, q5_0, isa); \
    FILL_WEIGHT(ops, Q5_1, q5_1, isa); \
    FILL_WEIGHT(ops, Q2_K, q2_k, isa); \
    FILL_WEIGHT(ops, Q3_K, q3_k, isa)

#define FILL_BYTE_DEQUANTIZERS(ops, isa) \
    FILL_DEQUANTIZER(ops, Q8_0, q8_0, isa); \
    FILL_DEQUANTIZER(ops, Q4_0, q4_0, isa); \
    FILL_DEQUANTIZER(ops, IQ4_NL, iq4_nl, isa); \
    FILL_DEQUANTIZER(ops, MXFP4, mxfp4, isa); \
    FILL_DEQUANTIZER(ops, IQ4_XS, iq4_xs, isa); \
    FILL_DEQUANTIZER(ops, Q4_K, q4_k, isa); \
    FILL_DEQUANTIZER(ops, Q5_K, q5_k, isa); \
    FILL_DEQUANTIZER(ops, Q6_K, q6_k, isa)

#define FILL_ALL_WEIGHTS(ops, isa) \
    FILL_FLOAT_WEIGHTS(ops, isa); \
    FILL_BYTE_DEQUANTIZERS(ops, isa); \
    FILL_MATMUL(ops, Q8_0, q8_0, isa); \
    FILL_MATMUL(ops, Q4_0, q4_0, isa); \
    FILL_MATMUL(ops, IQ4_NL, iq4_nl, isa); \
    FILL_MATMUL(ops, MXFP4, mxfp4, isa); \
    FILL_MATMUL(ops, IQ4_XS, iq4_xs, isa); \
    FILL_MATMUL(ops, Q4_K, q4_k, isa); \
    FILL_MATMUL(ops, Q5_K, q5_k, isa); \
    FILL_MATMUL(ops, Q6_K, q6_k, isa)

#endif
