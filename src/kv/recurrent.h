/* The states of a model's recurrent layers, which have no pages: of fixed size, whatever the number of tokens. A state cannot be taken
 * back to fewer tokens, so copies of it are kept at ends of pages, for truncating, prefixes and forks.
 *
 * With pages of 64 tokens that begin behind the method's exact ones, a state is kept at the two newest multiples of 1, 8, 64 and 512
 * pages: at most 8 copies beside the sequence's own state, however long it is. So a sequence that was never cut and goes back by D
 * tokens, at most 32,768, finds a state at most 16 D + 128 tokens before its new end. Its beginning needs none.
 *
 * States are immutable while several caches hold them. They lie in the host's memory and count in the budget, once. One thread at a
 * time works on caches that were forked from one another. */
#ifndef TERSE_KV_RECURRENT_H
#define TERSE_KV_RECURRENT_H

#include "kv/cache_base.h"
#include "kv/state_file.h"

/* Returns the bytes of a state; 0: no layer is recurrent. */
static inline uint64_t recurrent_bytes(const struct cache_shape *shape) {
    return (uint64_t)shape->recurrent_layers * shape->recurrent_floats * sizeof(float);
}
/* Returns how many states a sequence of so many tokens holds, read without truncating, behind `exact` exact ones. */
uint64_t recurrent_count(uint64_t exact, uint64_t tokens);
/* Returns the bytes of all states that a cache holds. */
uint64_t recurrent_held_bytes(const struct cache_base *base);

/* ---- Steps: kv/cache.c begins and ends them */

/* Makes the state one of this cache alone, and memory for those that the planned step will keep. TERSE_E_MEMORY. */
enum terse_status recurrent_begin_step(struct cache_base *base, struct terse_error *error);
void recurrent_end_step(struct cache_base *base);

/* Returns the state of a layer, by its number among the recurrent ones, for the executor to change in place: after the tokens of the
 * step that it has brought there. */
float *recurrent_layer(const struct cache_base *base, uint32_t layer);
/* Returns how many of a step's next n tokens, of which `token` is the first by its number in the sequence, a layer can take in before
 * its state is kept. */
size_t recurrent_run(const struct cache_base *base, uint64_t token, size_t n);
/* Keeps the layer's state after so many tokens of the sequence, if the step is to. */
void recurrent_keep(const struct cache_base *base, uint32_t layer, uint64_t tokens);

/* ---- Between steps */

void recurrent_forget(struct cache_base *base);
/* Returns the newest length, at most n, of which there is a state; without recurrent layers n. */
uint64_t recurrent_restorable(const struct cache_base *base, uint64_t n);
/* Takes the state back to one that is restorable. */
void recurrent_restore(struct cache_base *base, uint64_t n);
/* Makes a new cache share the states of another. */
void recurrent_share(struct cache_base *base, const struct cache_base *from);

/* Save and load the states, behind what else a section has: for each u64 tokens, then its floats, the sequence's own first.
 * recurrent_load reads bytes[n] and returns TERSE_E_FORMAT where these are no states of the sequence. */
void recurrent_save(const struct cache_base *base, struct state_writer *writer);
enum terse_status recurrent_load(struct cache_base *base, const struct state_file *file, const uint8_t *bytes, size_t n,
                                 struct terse_error *error);

#endif
