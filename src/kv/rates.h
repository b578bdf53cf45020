/* The rates of a cache are those at which it holds pages, where a method has a least rate (method_rates): its own, and those to which
 * kv/lower.h lowers pages where a budget has no room. All have the transforms of the cache, and layouts of their own. */
#ifndef TERSE_KV_RATES_H
#define TERSE_KV_RATES_H

#include "kv/cache_base.h"

/* Finds the rates of a new cache, whose method and index_page_bytes are set. */
enum terse_status rates_init(struct cache_base *base, struct terse_error *error);
/* Returns the method as pages of a rate have it. */
struct method rates_method(const struct cache_base *base, uint32_t rate);
/* Returns the number of rates at which the cache may hold pages. */
static inline uint32_t rates_of(const struct cache_base *base) { return base->rates.n > 1 ? (uint32_t)base->rates.n : 1; }

/* Chooses, for a step that is planned, at which rate its pages are sealed: at the method's own again, where RATES_FREE of the budget
 * stay free beside them; else at the one that was set when pages were lowered last. */
#define RATES_FREE 8 /* an eighth: far more than lowering leaves */
void rates_begin_step(struct cache_base *base);
/* Forgets what the step needs, when it has ended or is given up. */
void rates_end_step(struct cache_base *base);

/* Make caches that may be lowered known to their budget, and unknown. */
void rates_join(struct cache_base *base);
void rates_leave(struct cache_base *base);

#endif
