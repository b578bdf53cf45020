/* The GPU's executor: weights and activations on the device, keys and values the caches' (kv/cache.h). */
#ifndef TERSE_BACKEND_CUDA_EXECUTOR_H
#define TERSE_BACKEND_CUDA_EXECUTOR_H

#include "backend/backend.h"

/* backend.h has the contracts. weight_profile is NULL: what is computed of the model alone is the CPU's. */
extern const struct executor_ops cuda_executor_ops;

#endif
