/* Has what kernels that score all tokens of a prompt share: CTAs (head, row, part), of which each scores a part of the row's pages. */
#ifndef TERSE_BACKEND_CUDA_KV_SCORE_COMMON_CUH
#define TERSE_BACKEND_CUDA_KV_SCORE_COMMON_CUH

#include "backend/cuda/kv/attend_common.cuh"
#include "backend/cuda/kv/select.h"
#include "backend/cuda/launch.cuh"

/* Returns where the share's pages lie, which have one rate. */
ATTEND_INLINE const struct place_view *scored_place(const struct attend_decode &a, const struct share &s) {
    const struct place_view *const own = s.sequence->rates[0].places;
    return (own ? own : a.places) + (size_t)a.layer * a.heads.kv_heads + s.head;
}

/* Returns the share's number among all rows and KV heads. */
ATTEND_INLINE size_t scored_share(const struct attend_decode &a, const struct share &s) {
    return (size_t)s.row * a.heads.kv_heads + s.head;
}

/* Returns the grid of CTAs that take `pages` at a time, of which a multiprocessor holds `resident` at once. */
static inline dim3 score_grid(const struct select_tokens *select, unsigned pages, unsigned resident) {
    const struct attend_decode *a = &select->attend;
    const unsigned shares = a->heads.kv_heads * a->n_rows,
                   held = resident * (unsigned)device_attribute(cudaDevAttrMultiProcessorCount),
                   most = held > shares ? held / shares : 1, all = (select->to.pages + pages - 1) / pages;
    return dim3(a->heads.kv_heads, a->n_rows, all < most ? all : most);
}

#endif
