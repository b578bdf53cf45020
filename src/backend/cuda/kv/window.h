/* Pages of the window. */
#ifndef TERSE_BACKEND_CUDA_KV_WINDOW_H
#define TERSE_BACKEND_CUDA_KV_WINDOW_H

#include "backend/cuda/kv/state.h"

/* Queued: the pages that the plan's step seals, of a step that decodes, are encoded. */
enum terse_status window_seal(struct cache *cache, struct terse_error *error);
/* After a step that decodes: pages that have become full are encoded on device_background(), into free page sets. */
enum terse_status window_seal_ahead(struct cache *cache, struct terse_error *error);
/* Until no page is being encoded there. */
void window_wait_ahead(struct cache *cache);

#endif
