/* Chooses anchors by their scores, and keeps rows of halves of the tokens that are chosen (view.h): the union of the anchors of keys
 * and of values, in order of their tokens. All pointers are to the device's memory, and of one layer unless a comment says
 * otherwise. */
#ifndef TERSE_BACKEND_CUDA_KV_ANCHOR_ROWS_H
#define TERSE_BACKEND_CUDA_KV_ANCHOR_ROWS_H

#include "backend/cuda/kv/view.h"

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Says where the rows of anchors are, in memory of whole layers; of each KV head the first counts[head] are rows. A cache without
 * anchors has a view of zeros. */
struct anchor_view {
    uint32_t kv_heads, head_dim, first_exact, capacity;
    device_half *rows; /* [Hk][keys, values][capacity][hd]; row r of the anchors is row first_exact + r */
    uint32_t *tokens;  /* [Hk][capacity - first_exact], ascending */
    uint32_t *sides;   /* the same: bit s says that side s of the token is an anchor */
    uint32_t *counts;  /* [Hk] */
    /* [Hk]: where pages are dealt to ranks, so many tokens of pages that others have, whose rows are only kept: in the last places, the first
     * token in the last one. */
    uint32_t *elsewhere;
    uint64_t *pages; /* [Hk][n_pages]: by page set, of those that are here, which slots have rows */
    uint32_t n_pages;
};

/* A step chooses `keep` <= n tokens of each KV head and side, those of the largest scores[Hk][keys, values][n]; of equal ones the
 * older. `marks` has a bit for each, set where it is chosen: [Hk][keys, values][pages], of 64 tokens each but the last, zeros before. */
struct anchor_choice {
    uint32_t kv_heads, n, keep;
    const float *scores;
    uint64_t *marks;
};
cudaError_t choose_anchors(const struct anchor_choice *choice, cudaStream_t stream);

/* Writes to `to`, whose pages are zeros, the anchors of `from` and then those of a step, with their rows as far as they are anchors.
 * The step's tokens are those of page sets from first_page on, `pages` of them, full ones but for the last; `first` is the first
 * token, and k and v are its row and those after it, [tokens][Hk][hd]. Where pages are dealt to ranks, `from` has none. */
struct anchor_union {
    struct anchor_view from, to;
    const uint64_t *marks;
    uint32_t first_page, pages, first;
    const uint32_t *order; /* [pages]: numbers of the step's pages, first the `here` ones that are here; NULL: all are, in order */
    uint32_t here;
    const device_half *rows[2];
};
cudaError_t unite_anchors(const struct anchor_union *anchors, cudaStream_t stream);

/* Copies rows of sides that are no anchors from decoded[side][count][Hk][hd], rows of tokens from `first` on. */
cudaError_t fill_anchors(const struct anchor_view *anchors, const device_half *const decoded[2], uint32_t first, uint32_t count,
                         cudaStream_t stream);
/* Copies the rows to rows[side][rows][Hk][hd], where tokens lie as the places say. */
cudaError_t spread_anchors(const struct anchor_view *anchors, device_half *const rows[2], const struct row_places *places,
                           cudaStream_t stream);
/* Forgets the rows of tokens from `end` on and, of those that are here, page sets from `pages` on, of all layers: kv_heads counts those of
 * all. */
cudaError_t forget_anchors(const struct anchor_view *anchors, uint32_t end, uint32_t pages, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
