/* The caches of the backend, as the engine sees them. */
#ifndef TERSE_BACKEND_CUDA_KV_OPS_H
#define TERSE_BACKEND_CUDA_KV_OPS_H

#include "backend/backend.h"

/* Keys, values and queries of its steps lie on the device, for several caches at once: what of kv_ops takes them from the host is NULL, and its
 * executor calls step.h. */
extern const struct kv_ops cuda_kv_ops;

#endif
