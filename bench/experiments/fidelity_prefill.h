/* Does one exact prefill for several caches. What tokens compute during an exact prefill does not depend on how the cache stores
 * them afterwards, so the model is run once, on a leading session, and every other session's cache gets the same keys, values and,
 * where its policy observes attention, queries.
 *
 * The sessions belong to an engine whose kv_ops pass the executor's calls on to the CPU backend and repeat them for the followers'
 * caches.
 *
 * Threads: one thread makes sessions and runs them. */
#ifndef TERSE_BENCH_FIDELITY_PREFILL_H
#define TERSE_BENCH_FIDELITY_PREFILL_H

#include "backend/cpu/codec/index.h"
#include "backend/cpu/kv/step.h"

/* An `opened` is a session and the cache inside it, which belongs to the session. */
struct opened {
    struct terse_session *session;
    struct cache *cache;
};

/* Makes an engine on the CPU backend with calls in between; prefill_many needs sessions of such an engine. `threads` is that of
 * terse_engine_options. */
enum terse_status prefill_engine_new(const struct terse_model *model, uint32_t threads, struct terse_engine **engine,
                                     struct terse_error *error);

/* Sets the index by which caches that are made from here on select tokens; NULL: by their method's. */
void prefill_index(const struct cpu_index *index);

/* Does terse_session_new, and finds the cache of the session. */
enum terse_status opened_new(struct terse_engine *engine, const struct terse_session_options *options, struct opened *opened,
                             struct terse_error *error);
void opened_free(struct opened *opened);

/* Prefills `lead` and followers[n_followers] with tokens[n]; all of them are empty before. The cache of `lead` is f16, and followers must
 * have exact prefills. Afterwards each is as if it had read the tokens itself, except that terse_session_logits is valid for `lead`
 * alone. After a failure all are empty. */
enum terse_status prefill_many(struct opened *lead, struct opened *followers, size_t n_followers, const int32_t *tokens, size_t n,
                               struct terse_error *error);

#endif
