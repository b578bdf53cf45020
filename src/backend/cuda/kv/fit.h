/* Fits transforms to a sequence, from the tokens in the window, and makes the tables that kernels read them from. Plain C. */
#ifndef TERSE_BACKEND_CUDA_KV_FIT_H
#define TERSE_BACKEND_CUDA_KV_FIT_H

#include "backend/cuda/kv/state.h"

/* Fits the transforms of all layers at the beginning of a step. A failure leaves nothing fitted. */
enum terse_status kv_fit_transforms(struct cache *cache, struct terse_error *error);

/* Implements kv_storage.layouts_changed: makes the device's tables of what is fitted now. */
enum terse_status kv_layouts_changed(struct cache *cache, struct terse_error *error);

/* Returns the bytes of device memory of these tables; 0: nothing is ever fitted. */
size_t kv_fitted_bytes(const struct cache_shape *shape, const struct method *method);
void kv_fitted_free(struct cache *cache);

#endif
