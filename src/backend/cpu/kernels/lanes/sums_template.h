/* This template sums products in registers, for any vector instruction set; the templates of the cache's kernels are made of it.
 * Parameters, which lanes/avx2.h, avx512.h or neon.h, included before, define:
 *
 *     ISA                              suffix of the functions
 *     LANES, vec                       floats in a vector, and its type
 *     vec_zero, vec_set, vec_load, vec_store, vec_add, vec_mul, vec_fma (a b + c), vec_fnma (c - a b)
 *     vec_halves, vec_bytes            LANES half floats or signed bytes as floats
 *     vec_nibbles(bytes, &low, &high)  LANES bytes of q4_0 as two vectors of code - 8; for float_template.h alone, as TILE_Q4(G)
 *     MOST_QUERIES                     queries that a kernel reads a page for; more take further calls, which find it in the cache
 *     MOST_SUMS                        accumulators that leave registers for operands
 *     TILE(G)                          vectors of a row read together, a power of two; G TILE(G) <= MOST_SUMS
 *
 * Each operation is a small matrix product out[G][N] += a[G][K] b[K][N] whose b is a page: for keys K is the channel and N the
 * token, for values K is the token and N the channel. In either case the neighbours in a row are the lanes, and no sum crosses
 * lanes. All G queries share one unpacking of b, and their sums stay in registers. G is a constant (kernels/query_counts.h). */
#ifndef TERSE_BACKEND_CPU_KERNELS_LANES_SUMS_TEMPLATE_H
#define TERSE_BACKEND_CPU_KERNELS_LANES_SUMS_TEMPLATE_H

#include "backend/cpu/kernels/query_counts.h"
#include "format/page_layout.h"

#include <stdbool.h>
#include <stddef.h>

typedef vec sums[MOST_QUERIES][4];

INLINE void sums_clear(size_t G, size_t W, sums sum) {
    UNROLL for (size_t g = 0; g < G; g++) { UNROLL for (size_t w = 0; w < W; w++) sum[g][w] = vec_zero(); }
}

/* Computes sum[g][w] += a[g * lda] x[w]. */
INLINE void sums_add(size_t G, size_t W, const float *a, size_t lda, const vec *x, sums sum) {
    UNROLL for (size_t g = 0; g < G; g++) {
        vec s = vec_set(a[g * lda]);
        UNROLL for (size_t w = 0; w < W; w++) sum[g][w] = vec_fma(s, x[w], sum[g][w]);
    }
}

/* Computes out[g * ldo + w * step] (+)= sum[g][w]. */
INLINE void sums_store(size_t G, size_t W, sums sum, bool add, float *out, size_t ldo, size_t step) {
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t w = 0; w < W; w++) {
            float *to = out + g * ldo + w * step;
            vec_store(to, add ? vec_add(vec_load(to), sum[g][w]) : sum[g][w]);
        }
    }
}

/* Pages follow one another in memory, so the bytes that lie so far ahead will be read soon. The processor's own prefetching gives
 * up at the ends of the system's pages and at the strides of `accumulate`. They are prefetched into the second cache: measured on a
 * Xeon and on a Zen 4, at 12 to 32 KB; when they go into the first one, Zen 4 reads keys of q8_0 at half the rate. A prefetch
 * cannot fault, so past the last page it does no harm. */
#define PREFETCH_BYTES 16384
#define PREFETCH_LINE 64

/* Prefetches ahead of a reader that reads `bytes` bytes from `from` on at each step, in order. Called with i = 0, 1, ..., it fetches each line
 * once. */
INLINE void prefetch_step(const void *from, size_t i, size_t bytes) {
    uintptr_t ahead = (uintptr_t)from + i * bytes + PREFETCH_BYTES; /* as a pointer it would point past its object */
    for (size_t line = 0; line < bytes; line += PREFETCH_LINE) __builtin_prefetch((const void *)(ahead + line), 0, 2);
}

/* A page_kernel reads a page for one number of queries: in[G][...] and out[G][...]. */
typedef void page_kernel(const float *in, size_t hd, const void *page, float *out);

/* These define the table name_of[] of name(G, in, hd, page, out), for up to 4 or MOST_QUERIES (at most 8) queries
 * (kernels/query_counts.h). */
#define PAGE_KERNELS_4(name) \
    QUERY_COUNTS_4(page_kernel, name, (const float *in, size_t hd, const void *page, float *out), in, hd, page, out)
#define PAGE_KERNELS_8(name) \
    QUERY_COUNTS_8(page_kernel, name, (const float *in, size_t hd, const void *page, float *out), in, hd, page, out)

/* Calls of[n - 1] with in[G][in_row] and out[G][out_row], n queries at a time, at most `most`. */
INLINE void call_page_kernels(page_kernel *const *of, size_t most, const float *in, size_t in_row, size_t G, size_t hd,
                              const void *page, float *out, size_t out_row) {
    while (G > 0) {
        size_t n = queries_of_next_call(G, most);
        of[n - 1](in, hd, page, out);
        in += n * in_row;
        out += n * out_row;
        G -= n;
    }
}

#endif
