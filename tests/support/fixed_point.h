/* Bounds by how much products of few rows may be off where vector tiers take them in fixed point (backend/cpu/kernels/weights/ops.h). */
#ifndef TESTS_SUPPORT_FIXED_POINT_H
#define TESTS_SUPPORT_FIXED_POINT_H

#include "gguf/gguf.h"

#include <stddef.h>

#define FIXED_BYTES (1.0 / 253)
#define FIXED_WORDS 0x1p-15

/* Returns of how many numbers the largest bounds by how much one of them may be off. */
static inline size_t fixed_group(enum tensor_type type) { return type == TENSOR_Q8_0 || type == TENSOR_Q6_K ? 256 : 32; }

/* Returns the part of the largest of its group by which a number may be off that weights of a type are multiplied by. */
static inline double fixed_part(enum tensor_type type) {
    switch (type) {
    case TENSOR_Q4_0:
    case TENSOR_IQ4_NL:
    case TENSOR_IQ4_XS:
    case TENSOR_Q4_K: return FIXED_BYTES;
    case TENSOR_MXFP4:
    case TENSOR_Q5_K:
    case TENSOR_Q6_K:
    case TENSOR_Q8_0: return FIXED_WORDS;
    default: return 0;
    }
}

#endif
