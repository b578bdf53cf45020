/* Declares the GPU's executor: it keeps weights and activations on the device; the caches keep keys and values (kv/cache.h). */
#ifndef TERSE_BACKEND_CUDA_EXECUTOR_H
#define TERSE_BACKEND_CUDA_EXECUTOR_H

#include "backend/backend.h"

/* backend.h has the contracts. weight_profile is NULL: the CPU's function computes a profile from the model alone. */
extern const struct executor_ops cuda_executor_ops;

#endif
