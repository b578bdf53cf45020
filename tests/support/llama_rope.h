/* The RoPE of LLaMA 3, for benchmarks of its shapes. */
#ifndef TESTS_SUPPORT_LLAMA_ROPE_H
#define TESTS_SUPPORT_LLAMA_ROPE_H

#include "model/rope.h"

#include <math.h>

/* Writes frequency[head_dim / 2], which belongs to the result. */
static inline struct rope llama_rope(uint32_t head_dim, float *frequency) {
    for (uint32_t i = 0; i < head_dim / 2; i++) frequency[i] = powf(500000, -(float)i / (float)(head_dim / 2));
    return (struct rope){ROPE_ADJACENT, head_dim, head_dim, frequency, 1};
}

#endif
