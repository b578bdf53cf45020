/* Sealing off the critical path (MILLION, sections III-B and III-C): a worker thread encodes full pages of the window, while decoding
 * goes on, ahead of the step in which they leave the window.
 *
 * When that step comes is a matter of token counts alone; until then readers find the tokens in the window, and from then on in the
 * page, for which the step waits if it must. So no result depends on when the worker is done. A full page of the window does not
 * change any more, and nobody reads a page set before it is sealed: the two threads share nothing else that changes.
 */
#ifndef TERSE_BACKEND_CPU_KV_SEAL_AHEAD_H
#define TERSE_BACKEND_CPU_KV_SEAL_AHEAD_H

#include "backend/cpu/kv/state.h"

/* Full pages of the window after the plan's step, which the worker is to encode before they leave it. None where the window is shorter
 * than a page, since there is no time for it, and none where tokens are evicted, since there is no need. */
size_t seal_ahead_pages(const struct cache *cache, const struct plan *plan);

/* Waits for the pages that the plan's step seals and fills in plan->ready; what was encoded for a step that looks at every token that
 * it seals, as a prefill does, is given up. Starts the worker where it is needed first. */
enum terse_status seal_ahead_begin(struct cache *cache, struct plan *plan, struct terse_error *error);
/* After the step: gives the worker the pages that are full now. */
void seal_ahead_post(struct cache *cache);
/* Waits for the worker and gives up what it has encoded. */
void seal_ahead_forget(struct cache *cache);
void seal_ahead_free(struct cache *cache);

#endif
