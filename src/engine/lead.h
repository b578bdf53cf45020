/* Leads: an engine over several ranks is rank 0's. It alone has sessions and prefixes, samples and decides; the other ranks follow it
 * (follow.c). They have a cache for each of its caches, of the same sequence with another share of the pages, and compute the same
 * steps, in the same order. So all that the engine does with caches between steps, and with passes, goes through the functions
 * below, which tell the others of it (orders.h).
 *
 * `lead` is NULL where no rank follows. Several threads may call, one at a time but for what terse.h allows beside work. */
#ifndef TERSE_ENGINE_LEAD_H
#define TERSE_ENGINE_LEAD_H

#include "backend/backend.h"
#include "dist/collective.h"

struct lead;
struct state_file;   /* kv/state_file.h */
struct state_writer; /* the same */

enum terse_status lead_new(struct collective *ranks, struct lead **lead, struct terse_error *error);
/* Lets the others end; accepts NULL. */
void lead_free(struct lead *lead);

/* Has a cache made by the others that was made here for such options, with a codebook of this hash, or without one. After a failure
 * the cache is to be destroyed. */
enum terse_status lead_create(struct lead *lead, const struct terse_session_options *options, const struct terse_codebook *codebook,
                              uint64_t hash, struct cache *cache, struct terse_error *error);
/* Has a cache replaced by an empty one of its kind, as `cache` is to replace `before` here. */
enum terse_status lead_renew(struct lead *lead, const struct cache *before, struct cache *cache, struct terse_error *error);

/* These do what the functions of the same names of kv/parts.h and kv_ops do, here and elsewhere. */
enum terse_status lead_fork(struct lead *lead, const struct cache *from, struct cache **copy, struct terse_error *error);
enum terse_status lead_truncate(struct lead *lead, struct cache *cache, uint64_t n, struct terse_error *error);
enum terse_status lead_fill(struct lead *lead, const struct kv_ops *kv, struct cache *cache, size_t n, uint64_t seed,
                            struct terse_error *error);
/* May be called beside work on other caches, which then waits. */
void lead_save(struct lead *lead, const struct cache *cache, struct state_writer *writer);
enum terse_status lead_load(struct lead *lead, struct cache *cache, struct state_file *file, struct terse_error *error);
void lead_reset(struct lead *lead, struct cache *cache);
void lead_destroy(struct lead *lead, struct cache *cache);

/* A led is an executor whose passes others compute as well. */
struct led {
    const struct executor_ops *ops;
    struct executor *executor;
    struct lead *lead;
};

/* These do what the functions of the same names of executor_ops do, here and elsewhere; `step` is the pass's, the same in all three.
 * `whole`: the pass is advanced to its end, or until it fails, before anything else is done, so that the others need not be told of
 * every piece. */
enum terse_status lead_begin(const struct led *led, const struct step *step, bool whole, struct pass **pass, size_t *failed,
                             struct terse_error *error);
enum terse_status lead_advance(const struct led *led, const struct step *step, struct pass *pass, struct terse_error *error);
void lead_end(const struct led *led, const struct step *step, struct pass *pass);

#endif
