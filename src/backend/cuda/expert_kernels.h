/* Declares the kernels of feed-forward layers of experts. Plain C.
 *
 * A pair is a row and one of the experts that it goes to: `used` of each row, one after another. Pairs are put in slots by expert:
 * an item is 16 slots of one expert, of which the first `rows` hold a pair. How many items hold any is known on the device alone;
 * arrays have room for expert_items_most() of them. */
#ifndef TERSE_BACKEND_CUDA_EXPERT_KERNELS_H
#define TERSE_BACKEND_CUDA_EXPERT_KERNELS_H

#include "backend/cuda/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expert_item {
    uint32_t expert, rows; /* rows 0: it is empty */
};

#define EXPERT_PAIRS 4096 /* of rows that are routed together at most */

/* Returns how many items so many pairs take at most. */
static inline uint32_t expert_items_most(uint32_t pairs, uint32_t experts) {
    const uint32_t most = pairs / EACH_ROWS + experts;
    return most < pairs ? most : pairs;
}

/* An expert_routes says where rows go. All arrays are on the device. */
struct expert_routes {
    uint32_t experts, used; /* in all; those of a row */
    float *logits;          /* [rows][experts]: products with the router */
    float *share;           /* [rows][used] */
    uint32_t *chosen;       /* [rows][used]: experts, the best first */
    uint32_t *slot;         /* [rows][used] */
    int32_t *row;           /* [slots]; -1: the slot is empty */
    struct expert_item *items;
};

/* Chooses the experts of rows by their logits and writes all of the routes. As backend/cpu/experts.h has it, but for groups,
 * sigmoids and biases. rows * used is at most EXPERT_PAIRS. */
cudaError_t route_rows(const struct expert_routes *routes, const struct routing *routing, uint32_t rows, cudaStream_t stream);

/* Computes out[slot][rows] of products with the experts' matrices, biases included. An item has at most `rows_most` rows. */
cudaError_t experts_each(const struct device_product *products, size_t n_products, const struct device_vectors *x,
                         const struct expert_item *items, uint32_t n_items, uint32_t rows_most, cudaStream_t stream);

/* Adds to out[rows][width] what the experts made of each row, made[slot][width], times their shares. */
cudaError_t experts_add(const struct expert_routes *routes, const float *made, uint32_t rows, uint32_t width, float *out,
                        cudaStream_t stream);
/* Adds made[rows][width], times the sigmoid of gate[rows] unless that is NULL. */
cudaError_t experts_add_shared(const float *made, const float *gate, uint32_t rows, uint32_t width, float *out,
                               cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
