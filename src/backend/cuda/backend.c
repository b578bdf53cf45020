/* Defines the CUDA backend's tables, and what the plug-in exports. */
#include "backend/cuda/backend.h"

#include "backend/cuda/executor.h"
#include "backend/cuda/kv/ops.h"
#include "backend/cuda/learning.h"
#include "backend/plugin.h"

const struct backend backend_cuda = {
    .name = "cuda", .executor = &cuda_executor_ops, .kv = &cuda_kv_ops, .learning = &cuda_learning_ops};

__attribute__((visibility("default"))) extern const struct backend_plugin terse_backend_plugin;
const struct backend_plugin terse_backend_plugin = BACKEND_PLUGIN(&backend_cuda);
