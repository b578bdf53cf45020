/* Declares the CPU's executor: it takes tokens through all layers, layer by layer, with the KV cache as the only memory between
 * steps. */
#ifndef TERSE_BACKEND_CPU_EXECUTOR_H
#define TERSE_BACKEND_CPU_EXECUTOR_H

#include "backend/backend.h"

/* backend.h has the contracts. */
extern const struct executor_ops cpu_executor_ops;

#endif
