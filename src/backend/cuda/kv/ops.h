/* Declares the caches of the backend, as the engine sees them. */
#ifndef TERSE_BACKEND_CUDA_KV_OPS_H
#define TERSE_BACKEND_CUDA_KV_OPS_H

#include "backend/backend.h"

/* A batch that decodes has a batch_memory (batch.h). */
extern const struct kv_ops cuda_kv_ops;

#endif
