/* A cache cut short, and a second one of the same sequence. Sealed pages never change, so a cut drops whole pages and reads of one no more
 * than its first tokens, and caches of one sequence hold the same pages. */
#ifndef TERSE_BACKEND_CPU_KV_FORK_H
#define TERSE_BACKEND_CPU_KV_FORK_H

#include "backend/cpu/kv/cache.h"

/* Forgets the tokens from the n-th on, between steps. What was learned of the sequence stays as long as a sealed page does.
 * TERSE_E_ARGUMENT where n is above the length; TERSE_E_UNSUPPORTED where a token before n was evicted, or where anchors of tokens before n
 * would be fewer in one head than in another. Both leave the cache as it is. */
enum terse_status cache_truncate(struct cache *cache, uint64_t n, struct terse_error *error);
/* Whether it would succeed. */
enum terse_status cache_check_truncate(const struct cache *cache, uint64_t n, struct terse_error *error);

/* kv_ops.common_prefix. 0 but for the whole length where the method evicts tokens, keeps anchors, or has learned from more than the first n
 * tokens (fit_tokens): all that depends on what follows. Where a prompt of `prompt` tokens would have sealed at least what this cache has, n
 * tokens that end in the window; else whole pages of a prompt, the last of which leaves `tail_tokens` tokens to be read anew: so the text that
 * differs finds as many exact neighbours as behind a prompt of its own, or those that this one has left. 0 where no page was sealed yet: so few
 * tokens are soon read. */
uint64_t cache_common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt);

/* A second cache of the same sequence, between steps: it holds the same sealed pages, and copies of what else there is. One thread at a
 * time works on caches that were forked from one another. */
enum terse_status cache_fork(const struct cache *cache, struct cache **copy, struct terse_error *error);

#endif
