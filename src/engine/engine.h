/* Declares the inside of struct terse_engine: one model on one backend, and the threads that compute it. */
#ifndef TERSE_ENGINE_ENGINE_H
#define TERSE_ENGINE_ENGINE_H

#include "backend/backend.h"
#include "base/thread_pool.h"
#include "dist/collective.h"
#include "engine/lead.h"
#include "engine/prefix_index.h"

/* An engine_batch is the memory of a step of many sessions: step.c. */
struct engine_batch {
    struct reading *readings; /* [capacity] */
    struct step_part *parts;  /* [capacity] */
    size_t capacity;
};

struct terse_engine {
    const struct terse_model *model;
    struct backend backend;
    struct thread_pool *pool; /* everything that computes runs on its driver thread */
    struct executor *executor;
    struct collective *ranks;              /* one rank, unless terse_engine_options.over_ranks */
    struct lead *lead;                     /* of rank 0 of several; NULL: no rank follows */
    struct terse_codebook *weight_profile; /* NULL until a session needs it */
    struct engine_batch batch;
    double prompt_seconds; /* that a step goes on with prompts */
    uint64_t turns;        /* that prompts have had */
    struct prefix_index prefixes;
    uint32_t most_prefixes;
    uint64_t sessions;       /* made so far */
    struct kv_budget budget; /* of all its sessions' caches */
};

/* Does the same as terse_engine_new on a backend of the caller's choice, of which it keeps a copy: another backend's tables, or a
 * backend's with some functions of one's own in front of them. */
enum terse_status engine_new(const struct backend *backend, const struct terse_model *model,
                             const struct terse_engine_options *options, struct terse_engine **engine, struct terse_error *error);

/* Makes an engine without sessions one of those of these ranks, of which rank 0's leads. engine_new does it where options say so. */
enum terse_status engine_join(struct terse_engine *engine, struct collective *ranks, struct terse_error *error);

/* Returns the profile that the model's weights alone imply, made when it is first asked for; lives as long as the engine. */
enum terse_status engine_weight_profile(struct terse_engine *engine, const struct terse_codebook **profile,
                                        struct terse_error *error);

/* Returns the shape of caches of the engine's sequences of up to `context` tokens. */
struct cache_shape engine_cache_shape(const struct terse_engine *engine, uint32_t context);

/* Returns the executor as passes reach it that others may compute as well. */
static inline struct led engine_led(const struct terse_engine *engine) {
    return (struct led){engine->backend.executor, engine->executor, engine->lead};
}

/* Runs a call that may fail on the engine's driver thread. */
enum terse_status engine_run(struct terse_engine *engine, enum terse_status (*call)(void *user, struct terse_error *error),
                             void *user, struct terse_error *error);

/* Does the same for a call that changes nothing when it fails. Where memory was refused, the budget's or the system's, it makes room
 * and makes the call again, as long as there is any to make. */
enum terse_status engine_run_in_budget(struct terse_engine *engine,
                                       enum terse_status (*call)(void *user, struct terse_error *error), void *user,
                                       struct terse_error *error);
/* Returns whether what failed with `status` may be tried again, as there is more room: a prefix that is not expected has left
 * (prefix_index.h); or where there is none, pages were lowered (kv/lower.h), to no less than 3 bits where that is done for
 * prefixes that are expected; or one of these has left. `due`: when what needs the room is expected, PREFIX_NOW unless it is a prefix;
 * prefixes that are expected earlier stay, and for one that is not expected nothing is lowered. engine_makes_room is for the driver
 * thread, engine_asks_for_room for others. engine_drops_prefix lowers nothing, and drops none that is expected unless `any`. */
bool engine_makes_room(struct terse_engine *engine, enum terse_status status, uint64_t due);
bool engine_asks_for_room(struct terse_engine *engine, enum terse_status status, uint64_t due);
bool engine_drops_prefix(struct terse_engine *engine, enum terse_status status, bool any);

#endif
