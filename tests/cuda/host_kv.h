/* The steps of caches on the device with keys, values, queries and outputs in the host's memory: so the tests of all backends' caches can drive
 * them. One thread. */
#ifndef TESTS_CUDA_HOST_KV_H
#define TESTS_CUDA_HOST_KV_H

#include "backend/backend.h"

/* cuda_kv_ops, but kv_rows are in the host's memory, and batches need no memory. */
const struct kv_ops *host_kv_ops(void);

#endif
