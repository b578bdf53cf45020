/* Pages of the window. */
#ifndef TERSE_BACKEND_CUDA_KV_WINDOW_H
#define TERSE_BACKEND_CUDA_KV_WINDOW_H

#include "backend/cuda/kv/state.h"

/* Queues the encoding of the pages that the plan's step seals, of a step that decodes. */
enum terse_status window_seal(struct cache *cache, struct terse_error *error);
/* After a step that decodes. Queues on device_background() the encoding of pages that have become full, into free page sets. */
enum terse_status window_seal_ahead(struct cache *cache, struct terse_error *error);
/* Waits until no page is being encoded there. */
void window_wait_ahead(struct cache *cache);

#endif
