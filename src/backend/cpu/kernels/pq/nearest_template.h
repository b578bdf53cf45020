/* This template implements the function `nearest` of pq/ops.h for any vector instruction set. avx2_nearest.c, avx512_nearest.c and
 * neon_nearest.c include it once. Parameters:
 *
 *     ISA, LANES                 suffix of the function, floats in a vector
 *     ROWS                       rows that share one reading of the panel
 *     vec, ivec, vec_set, vec_load, vec_fnma (c - a b), ivec_set, ivec_add, ivec_load
 *     vec_lower(s, j, &best, &at) where s < best: best = s, at = j
 *     vec_least(v)               the least lane of v, none of which is NaN
 *     ivec_least_where(v, x, at) the least (unsigned) of at where v equals x
 *
 * The lanes are neighbouring centroids. A row's least values and where they were stay in registers, lane by lane, over a whole
 * panel and are reduced once at its end, so the products are never written to memory: a matrix product followed by a search would
 * have to read them back for the minimum. Each value is half[j] minus its d products in order of channel by fused multiply-add,
 * whatever rows are taken together: the result does not depend on how rows are cut into calls. */
#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/pq/init.h"

#define WIDE 2 /* vectors of centroids at a time: panels are multiples of NEAREST_WIDTH = 32 */

_Static_assert(NEAREST_WIDTH % (WIDE * LANES) == 0, "a panel is whole steps");

struct least {
    vec value;
    ivec at;
};

/* Stores the least value and, of the lanes that have it, the lowest centroid. */
INLINE void least_store(const struct least *least, float *best, uint32_t *code) {
    float low = vec_least(least->value);
    if (!(low < *best)) return;
    *best = low;
    *code = ivec_least_where(least->value, low, least->at);
}

/* Computes s[r][w] -= x[r][i] times channel i of the centroids at `panel`. */
INLINE void channel_add(size_t R, const float *x, size_t d, size_t i, const float *panel, size_t width, vec s[ROWS][WIDE]) {
    vec c[WIDE];
    UNROLL for (size_t w = 0; w < WIDE; w++) c[w] = vec_load(panel + i * width + w * LANES);
    UNROLL for (size_t r = 0; r < R; r++) {
        vec q = vec_set(x[r * d + i]);
        UNROLL for (size_t w = 0; w < WIDE; w++) s[r][w] = vec_fnma(q, c[w], s[r][w]);
    }
}

/* Searches for R rows; D is d where it is known when compiling, else 0. */
INLINE void rows_search(size_t R, size_t D, const float *x, size_t d, const float *panel, const float *half, size_t width,
                        uint32_t first, float *best, uint32_t *code) {
    static const uint32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    struct least least[ROWS];
    ivec j = ivec_add(ivec_set(first), ivec_load(lane));
    UNROLL for (size_t r = 0; r < R; r++) {
        least[r].value = vec_set(best[r]);
        least[r].at = ivec_set(UINT32_MAX);
    }
    for (size_t c = 0; c < width; c += WIDE * LANES) {
        vec s[ROWS][WIDE];
        UNROLL for (size_t w = 0; w < WIDE; w++) {
            vec h = vec_load(half + c + w * LANES);
            UNROLL for (size_t r = 0; r < R; r++) s[r][w] = h;
        }
        if (D) {
            UNROLL for (size_t i = 0; i < D; i++) channel_add(R, x, D, i, panel + c, width, s);
        } else {
            for (size_t i = 0; i < d; i++) channel_add(R, x, d, i, panel + c, width, s);
        }
        UNROLL for (size_t w = 0; w < WIDE; w++) {
            UNROLL for (size_t r = 0; r < R; r++) vec_lower(s[r][w], j, &least[r].value, &least[r].at);
            j = ivec_add(j, ivec_set(LANES));
        }
    }
    UNROLL for (size_t r = 0; r < R; r++) least_store(&least[r], best + r, code + r);
}

#define SEARCH(R, D) \
    for (; i + (R) <= n; i += (R)) rows_search(R, D, x + i * d, d, panel, half, width, first, best + i, code + i)

static void PASTE(nearest, ISA)(const float *x, size_t n, size_t d, const float *panel, const float *half, size_t width,
                                uint32_t first, float *best, uint32_t *code) {
    size_t i = 0;
    switch (d) { /* few channels: the rows stay in registers too */
    case 2: SEARCH(4, 2); break;
    case 4: SEARCH(4, 4); break;
    case 8: SEARCH(ROWS, 8); break;
    default: SEARCH(ROWS, 0); break;
    }
    SEARCH(1, 0);
}

void PASTE(pq_init, PASTE(ISA, nearest))(struct pq_ops *ops) { ops->nearest = PASTE(nearest, ISA); }
