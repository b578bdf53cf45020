/* Implements the cache of a whole model: kv_ops of the CPU.
 *
 * Where some layers slide and others do not, there are two caches, each with positions, plan and pages of its own: the first is
 * that of the layers that see everything, with the method as it is; the second that of the layers that slide, with the method's
 * codecs (method_of_window), which gives back the pages that no query will see any more. Where all layers are alike there is one
 * cache. The contracts are those of kv_ops, with layers by their numbers in the model. */
#ifndef TERSE_BACKEND_CPU_KV_PARTS_H
#define TERSE_BACKEND_CPU_KV_PARTS_H

#include "backend/backend.h"

extern const struct kv_ops parts_ops;

#endif
