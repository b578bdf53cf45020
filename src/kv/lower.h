/* Lowers pages. Where a method has a least rate (method_rates), and the budget has no room for what a step needs, pages that lie in
 * memory are encoded again in fewer bits, instead of refusing the step. Who calls it decides when; this file has the rule:
 *
 *     The oldest pages of the sequence that holds pages at the highest rate go first, to the next lower rate; of two such sequences
 *     those of the one that holds more of them. Pages that the step has yet to seal count as held by its sequence. So all sequences
 *     of an engine come down together, and each holds two rates, as a rule, the lower one in its oldest pages. New pages are sealed
 *     at the highest rate that the sequence holds (but see rates_begin_step). Nothing is lowered where all of it would not do.
 *
 * Pages of several rates have the same transforms and other layouts, so that a page is decoded by one layout and encoded by another.
 * Chunks are lowered as a whole (block_table.h), for all caches that hold pages of them; a chunk stays as it is while some of its
 * page sets wait to be sealed, or while another thread saves a cache of its pool. For the time of encoding it lies in memory twice,
 * as a workspace that the budget does not count. */
#ifndef TERSE_KV_LOWER_H
#define TERSE_KV_LOWER_H

#include "kv/rates.h"

/* Returns how many bytes lowering all that the budget's caches hold would give back. */
uint64_t lower_could_free(const struct kv_budget *budget);
/* Lowers pages until what the budget refused last has room. Returns false where it changed nothing: the call may be made again
 * otherwise. No step is being computed, but some may be under way; on the thread that computes them. `least_bits`: nothing is lowered to fewer
 * bits this time; 0: the methods' own least rates are the limit. */
bool lower_make_room(struct kv_budget *budget, double least_bits);

#endif
