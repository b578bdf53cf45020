/* Seals off the critical path (MILLION, sections III-B and III-C): a worker thread encodes full pages of the window, while decoding
 * goes on, ahead of the step in which they leave the window.
 *
 * Token counts alone decide when that step comes; until then readers find the tokens in the window, and from then on in the page,
 * for which the step waits if it must. So no result depends on when the worker is done. A full page of the window does not change
 * any more, and a page set is not read before it is sealed: the two threads share nothing else that changes. */
#ifndef TERSE_BACKEND_CPU_KV_SEAL_AHEAD_H
#define TERSE_BACKEND_CPU_KV_SEAL_AHEAD_H

#include "backend/cpu/kv/state.h"

/* Waits for the pages that the plan's step seals and that were encoded ahead. It starts the worker where one is needed first. */
enum terse_status seal_ahead_begin(struct cache *cache, struct terse_error *error);
/* Gives the worker the pages that are full now, after the step. */
void seal_ahead_post(struct cache *cache);
/* Waits until the worker has nothing to do. */
void seal_ahead_wait(struct cache *cache);
void seal_ahead_free(struct cache *cache);

#endif
