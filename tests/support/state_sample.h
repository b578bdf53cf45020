/* Saved states of small caches, for the fuzz target and its seeds. */
#ifndef TESTS_SUPPORT_STATE_SAMPLE_H
#define TESTS_SUPPORT_STATE_SAMPLE_H

#include "backend/cpu/kv/step.h"

#define STATE_SAMPLES 10

/* An empty cache of the i-th of STATE_SAMPLES methods, of one layer and one KV head; aborts where it cannot be made. */
struct cache *state_sample_cache(size_t i);
/* Appends n tokens, at most 300; to a cache that waits for tokens to fit to, before them a prompt of as many as it still wants. */
enum terse_status state_sample_step(struct cache *cache, enum cache_step_kind kind, size_t n);
/* Saves it, with sections of a session that has no vocabulary; the identity's codebook is i. */
enum terse_status state_sample_save(const struct cache *cache, size_t i, const char *path, struct terse_error *error);

#endif
