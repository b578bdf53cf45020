/* Lets tokens that leave the window compete with exact rows for their places (MAT, algorithm 1; method/policy_mat.c).
 *
 * With the logits of each token's own queries to token 0, the policy evicts, whenever a token leaves, the one of the highest among
 * the exact rows behind token 0 and the one that leaves; of equal ones the older. What stays after many have left is then what a
 * selection finds: token 0 and the exact - 1 tokens of the lowest logits, of equal ones the younger, in order of age. In shallow
 * layers the token behind the sinks goes instead: the sinks stay, and the youngest others. So a step chooses once, however many
 * tokens leave.
 *
 * Exact row i stands at position i and is rotated by it for attention. Its key before rotation lies beside it, so that rounding does
 * not add up as rows move. All pointers are to the device's memory. */
#ifndef TERSE_BACKEND_CUDA_KV_VICTIMS_H
#define TERSE_BACKEND_CUDA_KV_VICTIMS_H

#include "backend/cuda/kv/view.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tokens [from, from + count) leave. In layer l of n_layers and head h, token t's rows are source[side] + l layer_stride + h
 * head_stride + (t - origin) % capacity token_stride, keys rotated by their token. */
struct leaving_tokens {
    uint32_t from, count;
    const device_half *source[2];
    uint32_t origin, capacity;
    size_t layer_stride, head_stride, token_stride; /* in halves */
};

struct victims {
    struct head_view heads;
    struct rotary_view rotary;
    uint32_t first_layer, n_layers; /* the arrays below begin with the first */
    uint32_t exact, budget;         /* exact rows, and they and the window */
    uint32_t shallow, sinks;        /* layers, and what stays in them */
    device_half *rows;              /* [layers][Hk][keys, values][exact][hd] */
    device_half *unrotated;         /* [layers][Hk][exact][hd]: keys before rotation */
    float *logits;   /* [layers][Hk][budget]: of the exact rows, then of token t in the window at exact + t % (budget - exact) */
    uint32_t *moves; /* [layers][Hk][exact + 1], scratch */
    const float
        *fresh; /* [layers][Hq][fresh_capacity]: of new token t, of each query head, at (t - fresh_origin) % fresh_capacity */
    uint32_t fresh_origin, fresh_capacity;
    uint32_t first_new;     /* token */
    uint32_t filled, fills; /* exact rows [filled, fills) are those of new tokens and get their logits first */
    struct leaving_tokens leave;
    uint32_t note, note_end; /* tokens [note, note_end) are new in the window, which gets their logits last */
};

/* The most exact rows that there may be. */
#define VICTIMS_EXACT_MOST 8192
cudaError_t replace_victims(const struct victims *victims, cudaStream_t stream);

/* Writes logits[Hq][capacity] of queries q[n][Hq][hd], rotated by their positions, which are tokens from `first` on, the first of
 * them at `at`: with token 0, whose key stands at position `moved`. unrotated[Hk][exact][hd] begins with its key. */
struct first_logits {
    struct head_view heads;
    struct rotary_view rotary;
    const float *q;
    uint32_t n, exact, moved;
    const device_half *unrotated;
    float *logits;
    uint32_t at, capacity;
};
cudaError_t find_first_logits(const struct first_logits *logits, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
