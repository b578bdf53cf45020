/* This template computes AnTKV's anchor scores for any vector instruction set. avx2_anchors.c, avx512_anchors.c and neon_anchors.c
 * include it once after the instruction set's lanes; it defines select_init_ISA_anchors. */
#include "backend/cpu/kernels/lanes/sums_template.h"
#include "backend/cpu/kernels/select/init.h"

#define TOGETHER 4 /* vectors of tokens */

static void PASTE(add_anchors, ISA)(const float *weights, size_t stride, const float *factors, const float *norms, size_t rows,
                                    float *keys, float *values) {
    for (size_t j = 0; j < PAGE_TOKENS; j += TOGETHER * LANES) {
        vec key[TOGETHER], value[TOGETHER];
        UNROLL for (size_t i = 0; i < TOGETHER; i++) {
            key[i] = vec_load(keys + j + i * LANES);
            value[i] = vec_load(values + j + i * LANES);
        }
        for (size_t r = 0; r < rows; r++) {
            vec factor = vec_set(factors[r]), norm = vec_set(norms[r]);
            UNROLL for (size_t i = 0; i < TOGETHER; i++) {
                vec a = vec_mul(vec_load(weights + r * stride + j + i * LANES), factor), b = vec_mul(a, norm);
                key[i] = vec_fnma(a, b, vec_add(key[i], b));
                value[i] = vec_add(value[i], a);
            }
        }
        UNROLL for (size_t i = 0; i < TOGETHER; i++) {
            vec_store(keys + j + i * LANES, key[i]);
            vec_store(values + j + i * LANES, value[i]);
        }
    }
}

void PASTE(PASTE(select_init, ISA), anchors)(struct select_ops *ops) { ops->add_anchors = PASTE(add_anchors, ISA); }
