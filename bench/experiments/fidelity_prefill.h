/* One exact prefill for many caches. What tokens compute during an exact prefill does not depend on how the cache keeps them afterwards,
 * so the model is run once, on a leading session, and every other session takes in the same keys, values and, where it chooses anchors,
 * queries.
 *
 * No hook of the library is needed: this program is linked so that the calls of the forward pass to the cache arrive here first (the
 * linker's --wrap), are passed on as they are, and are repeated for the followers' caches.
 *
 * Threads: one thread makes sessions and runs them.
 */
#ifndef TERSE_BENCH_FIDELITY_PREFILL_H
#define TERSE_BENCH_FIDELITY_PREFILL_H

#include "backend/cpu/kv/cache.h"

/* A session and the cache inside it, which belongs to the session. */
struct opened {
    struct terse_session *session;
    struct cache *cache;
};

/* Caches that are made from here on find tokens by this index instead of their method's; NULL: by their method's. */
void prefill_index(const struct index *index);

/* terse_session_new. */
enum terse_status opened_new(struct terse_engine *engine, const struct terse_session_options *options, struct opened *opened,
                             struct terse_error *error);
void opened_free(struct opened *opened);

/* terse_session_prefill of `lead`, and the same for followers[n_followers], which are empty as it is. `lead` keeps its cache as f16;
 * followers must be exact in their prefill. Afterwards each is as if it had read tokens[n] itself, but for terse_session_logits,
 * which only `lead` has. After a failure all are empty. */
enum terse_status prefill_many(struct opened *lead, struct opened *followers, size_t n_followers, const int32_t *tokens, size_t n,
                               struct terse_error *error);

#endif
