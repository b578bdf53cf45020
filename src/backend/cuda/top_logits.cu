/* Finds the likeliest tokens: a block finds those of a part of a row, then another block the likeliest of all parts. */
#include "backend/cuda/select_largest.cuh"
#include "backend/cuda/top_logits.h"

#include <math.h>

#define THREADS 512
#define PART 8192 /* logits */

uint32_t top_logits_parts(uint32_t vocabulary) { return (vocabulary + PART - 1) / PART; }

/* Returns bits that order as the logits do; 0 is below them all. NaN is least, and both zeros are equal, as for the sampler. */
static __device__ uint32_t ordered_bits(float logit) {
    uint32_t bits = __float_as_uint(isnan(logit) ? -INFINITY : logit + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __global__ void __launch_bounds__(THREADS) parts_kernel(struct find_top_logits f) {
    const uint32_t row = blockIdx.y, first = blockIdx.x * PART, n = min((uint32_t)PART, f.vocabulary - first);
    const float *logits = f.logits + (size_t)row * f.vocabulary + first;
    float *held = f.held[row];
    struct token_logit *to = f.parts + ((size_t)row * gridDim.x + blockIdx.x) * TOP_LOGITS;
    for (uint32_t i = threadIdx.x; held && i < n; i += THREADS) held[first + i] = logits[i];
    select_largest<THREADS>([&](uint32_t i) { return ordered_bits(logits[i]); }, n, min(n, (uint32_t)TOP_LOGITS),
                            [&](uint32_t place, uint32_t i) {
                                to[place].logit = logits[i];
                                to[place].token = (int32_t)(first + i);
                            });
}

static __global__ void __launch_bounds__(THREADS) merge_kernel(struct find_top_logits f, uint32_t parts) {
    const struct token_logit *from = f.parts + (size_t)blockIdx.x * parts * TOP_LOGITS;
    struct token_logit *to = f.top_logits + (size_t)blockIdx.x * TOP_LOGITS;
    const uint32_t last = f.vocabulary - (parts - 1) * PART; /* logits of the last part: it may have brought fewer */
    select_largest<THREADS>(
        [&](uint32_t i) {
            bool there = i / TOP_LOGITS + 1 < parts || i % TOP_LOGITS < last;
            return there ? ordered_bits(from[i].logit) : 0;
        },
        parts * TOP_LOGITS, min(f.vocabulary, (uint32_t)TOP_LOGITS), [&](uint32_t place, uint32_t i) { to[place] = from[i]; });
}

cudaError_t find_top_logits(const struct find_top_logits *find, cudaStream_t stream) {
    const uint32_t parts = top_logits_parts(find->vocabulary);
    if (!find->n) return cudaSuccess;
    parts_kernel<<<dim3(parts, find->n), THREADS, 0, stream>>>(*find);
    merge_kernel<<<find->n, THREADS, 0, stream>>>(*find, parts);
    return cudaGetLastError();
}
