/* The likeliest tokens: of each part of a row by a block, then of those of all parts. */
#include "backend/cuda/likeliest.h"
#include "backend/cuda/select_largest.cuh"

#include <math.h>

#define THREADS 512
#define PART 8192 /* logits */

uint32_t likeliest_parts(uint32_t vocabulary) { return (vocabulary + PART - 1) / PART; }

/* Ordered as the logits are; 0 is below them all. What is no number is least, and both zeros are equal, as for the sampler. */
static __device__ uint32_t ordered_bits(float logit) {
    uint32_t bits = __float_as_uint(isnan(logit) ? -INFINITY : logit + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __global__ void __launch_bounds__(THREADS) parts_kernel(struct find_likeliest f) {
    const uint32_t row = blockIdx.y, first = blockIdx.x * PART, n = min((uint32_t)PART, f.vocabulary - first);
    const float *logits = f.logits + (size_t)row * f.vocabulary + first;
    float *held = f.held[row];
    struct token_logit *to = f.parts + ((size_t)row * gridDim.x + blockIdx.x) * LIKELIEST;
    for (uint32_t i = threadIdx.x; held && i < n; i += THREADS) held[first + i] = logits[i];
    select_largest<THREADS>([&](uint32_t i) { return ordered_bits(logits[i]); }, n, min(n, (uint32_t)LIKELIEST),
                            [&](uint32_t place, uint32_t i) {
                                to[place].logit = logits[i];
                                to[place].token = (int32_t)(first + i);
                            });
}

static __global__ void __launch_bounds__(THREADS) merge_kernel(struct find_likeliest f, uint32_t parts) {
    const struct token_logit *from = f.parts + (size_t)blockIdx.x * parts * LIKELIEST;
    struct token_logit *to = f.likeliest + (size_t)blockIdx.x * LIKELIEST;
    const uint32_t last = f.vocabulary - (parts - 1) * PART; /* logits of the last part: it may have brought fewer */
    select_largest<THREADS>(
        [&](uint32_t i) {
            bool there = i / LIKELIEST + 1 < parts || i % LIKELIEST < last;
            return there ? ordered_bits(from[i].logit) : 0;
        },
        parts * LIKELIEST, min(f.vocabulary, (uint32_t)LIKELIEST), [&](uint32_t place, uint32_t i) { to[place] = from[i]; });
}

cudaError_t find_likeliest(const struct find_likeliest *find, cudaStream_t stream) {
    const uint32_t parts = likeliest_parts(find->vocabulary);
    if (!find->n) return cudaSuccess;
    parts_kernel<<<dim3(parts, find->n), THREADS, 0, stream>>>(*find);
    merge_kernel<<<find->n, THREADS, 0, stream>>>(*find, parts);
    return cudaGetLastError();
}
