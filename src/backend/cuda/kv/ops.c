/* Fills in kv_ops of the backend. */
#include "backend/cuda/kv/ops.h"

#include "backend/cuda/kv/fill.h"
#include "backend/cuda/kv/step.h"
#include "backend/cuda/kv/storage.h"

const struct kv_ops cuda_kv_ops = {.storage = &cuda_storage,
                                   .begin = kv_begin,
                                   .join = kv_join,
                                   .append = kv_append,
                                   .queries_to_observe = kv_queries_to_observe,
                                   .observe = kv_observe,
                                   .attend = kv_attend,
                                   .seal = kv_seal,
                                   .commit = kv_commit,
                                   .fill_random = kv_fill_random};
