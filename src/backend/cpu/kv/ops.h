/* Implements kv_ops of the CPU, for caches of one or two parts (kv/parts.h). */
#ifndef TERSE_BACKEND_CPU_KV_OPS_H
#define TERSE_BACKEND_CPU_KV_OPS_H

#include "backend/backend.h"

extern const struct kv_ops cpu_kv_ops;

#endif
