/* Steps of many tokens of one cache: step.h says in which order. */
#ifndef TERSE_BACKEND_CUDA_KV_PROMPT_H
#define TERSE_BACKEND_CUDA_KV_PROMPT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct cache;

/* Reserves what the plan's step needs; prompt_release gives it back. */
enum terse_status prompt_reserve(struct cache *cache, struct terse_error *error);
void prompt_release(struct cache *cache);

/* Keys and values of the step's tokens first .. first + count - 1, in order; all of a layer's before any are attended to. */
enum terse_status cache_append_rows(struct cache *cache, uint32_t layer, size_t first, size_t count, const float *k, const float *v,
                                    struct terse_error *error);
/* Queries of the same, rotated in place; out[count][Hq][hd], which may be q. */
enum terse_status cache_attend_rows(struct cache *cache, uint32_t layer, size_t first, size_t count, float *q, float *out,
                                    struct terse_error *error);
/* The first of the step's queries that must be attended with, when outputs are wanted from token `needed` on. */
size_t cache_first_query(const struct cache *cache, size_t needed);
/* Rotates queries whose outputs are not wanted, in place. */
enum terse_status cache_observe_rows(struct cache *cache, size_t first, size_t count, float *q, struct terse_error *error);
enum terse_status cache_end_layer_rows(struct cache *cache, uint32_t layer, struct terse_error *error);

#endif
