/* Declares steps of many tokens of one cache; step.h says in which order. */
#ifndef TERSE_BACKEND_CUDA_KV_PROMPT_H
#define TERSE_BACKEND_CUDA_KV_PROMPT_H

#include "backend/backend.h"

/* Reserves what the plan's step needs; prompt_release gives it back. */
enum terse_status prompt_reserve(struct cache *cache, struct terse_error *error);
void prompt_release(struct cache *cache);
/* Tells a step that is under way that sealed pages lie elsewhere, or were lowered. */
void prompt_pages_changed(struct cache *cache);

/* Takes keys and values of some of the step's tokens, in order; all of a layer's tokens come before any query attends. */
enum terse_status prompt_append(struct cache *cache, const struct kv_rows *rows, struct terse_error *error);
/* Rotates queries in place; their outputs are not wanted. */
enum terse_status prompt_observe(struct cache *cache, const struct kv_rows *rows, struct terse_error *error);
enum terse_status prompt_attend(struct cache *cache, const struct kv_rows *rows, struct terse_error *error);
enum terse_status prompt_seal(struct cache *cache, uint32_t layer, struct terse_error *error);

#endif
