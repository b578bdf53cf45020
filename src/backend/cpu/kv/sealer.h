/* Sealing off the critical path (MILLION, section III-D): a worker encodes full window blocks ahead of the step in which they leave
 * the window, while decoding goes on.
 *
 * When that step comes is a matter of token counts alone; until then readers find the tokens in the window, and from then on in the
 * block, which the step waits for if it must. So nothing that anyone computes depends on when the worker is done. A full window block
 * does not change any more, and nobody reads a span before it is sealed: the two threads share nothing else that changes.
 */
#ifndef TERSE_BACKEND_CPU_KV_SEALER_H
#define TERSE_BACKEND_CPU_KV_SEALER_H

#include "backend/cpu/kv/state.h"

/* A worker for up to `most` jobs at a time; the cache outlives it. */
enum terse_status sealer_new(const struct cache *cache, size_t most, struct sealer **sealer, struct terse_error *error);
/* Waits for what it was given. Accepts NULL. */
void sealer_free(struct sealer *sealer);

/* Encodes a full window block, all layers, heads and sides, into the blocks of a span. */
void sealer_post(struct sealer *sealer, const struct set *set, const uint8_t *window);
/* Until at most `left` of the jobs are not done; they are done in order. Accepts NULL. */
void sealer_wait(struct sealer *sealer, size_t left);

#endif
