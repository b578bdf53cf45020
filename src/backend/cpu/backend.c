/* Holds the CPU backend's tables of functions. */
#include "backend/backend.h"

#include "backend/cpu/executor.h"
#include "backend/cpu/kv/ops.h"

const struct backend backend_cpu = {.name = "cpu", .executor = &cpu_executor_ops, .kv = &cpu_kv_ops};
