/* The steps of caches on the device with keys, values and queries in the host's memory, one cache at a time: so the tests of all backends' caches
 * can drive them. They call what the executor calls (backend/cuda/kv/step.h). One thread. */
#ifndef TESTS_CUDA_HOST_KV_H
#define TESTS_CUDA_HOST_KV_H

#include "backend/backend.h"

/* cuda_kv_ops with all that it leaves out. */
const struct kv_ops *host_kv_ops(void);

#endif
