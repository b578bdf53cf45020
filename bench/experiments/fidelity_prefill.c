/* Owns the calls that stand between the executor and the backend's caches, and the copies of a layer's keys and queries that the
 * followers need. */
#include "fidelity_prefill.h"

#include "backend/cpu/kv/anchor_scores.h"
#include "base/memory.h"
#include "engine/session.h"
#include "support/one_cache.h"

#include <string.h>

/* These are the calls of the backend itself. */
#define CPU (backend_cpu.kv)

#define PANEL 256 /* queries of one call of observe */

static const struct cpu_index *other_index; /* of prefill_index */

/* This is the prefill in progress. */
static struct {
    struct cache *lead; /* NULL: no prefill of several caches runs, and calls are passed on as they are */
    struct opened *followers;
    size_t n_followers, n;
    size_t kv_floats, q_floats; /* of all tokens */
    uint32_t layer;
    const float *v;
    float *keys;       /* [n][Hk][hd] before rotation */
    float *rotated[2]; /* copies for a follower, which may rotate its keys in place, and for the observer */
    float *queries;    /* [n][Hq][hd], if a follower observes them */
} prefill;

static bool observes(struct cache *cache) { return one_queries_to_observe(CPU, cache, 1) > 0; }

/* Returns whether the cache selects anchors by the attention that it observes. */
static bool scores(const struct cache *cache) { return cache->base.plan.anchors != 0; }

/* ---- Calls of the executor */

static enum terse_status create_with_index(const struct cache_shape *shape, const struct method *method, uint32_t threads,
                                           struct cache **cache, struct terse_error *error) {
    struct method changed = *method;
    *cache = NULL;
    if (shape->sliding) return CPU->storage->create(shape, method, threads, cache, error);
    if (other_index && !method->index)
        return status_fail(error, TERSE_E_ARGUMENT, "%s reads all tokens: omit index= or give read=", method->name);
    if (other_index) changed.index = other_index->format;
    enum terse_status status = CPU->storage->create(shape, &changed, threads, cache, error);
    if (!status && other_index) (*cache)->index = other_index;
    return status;
}

/* Reserves copies for a step of n tokens. Every follower has its plan by now, which says whether queries are needed. */
static enum terse_status reserve_copies(const struct cache *cache, size_t n, struct terse_error *error) {
    size_t hd = cache->base.shape.head_dim;
    bool queries = false;
    for (size_t i = 0; i < prefill.n_followers; i++) queries |= observes(prefill.followers[i].cache);
    prefill.n = n;
    prefill.kv_floats = n * cache->base.shape.kv_heads * hd;
    prefill.q_floats = queries ? n * cache->base.shape.query_heads * hd : 0;
    prefill.keys = memory_array(prefill.kv_floats, sizeof *prefill.keys);
    for (size_t i = 0; i < 2; i++) prefill.rotated[i] = memory_array(prefill.kv_floats, sizeof *prefill.keys);
    prefill.queries = memory_array(prefill.q_floats, sizeof *prefill.queries);
    if (prefill.keys && prefill.rotated[0] && prefill.rotated[1] && prefill.queries) return TERSE_OK;
    return status_no_memory(error, (3 * prefill.kv_floats + prefill.q_floats) * sizeof(float), "a layer's keys and queries");
}

static enum terse_status begin_all(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    enum terse_status status = CPU->begin(cache, kind, n, error);
    if (status || cache != prefill.lead) return status;
    for (size_t i = 0; i < prefill.n_followers && !status; i++) status = one_begin(CPU, prefill.followers[i].cache, kind, n, error);
    return status ? status : reserve_copies(cache, n, error);
}

static enum terse_status append_all(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    if (batch->caches[0] == prefill.lead) {
        prefill.layer = rows->layer;
        prefill.v = rows->v;
        memcpy(prefill.keys, rows->k, prefill.kv_floats * sizeof *rows->k);
    }
    return CPU->append(batch, rows, error);
}

static enum terse_status attend_all(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    size_t width = cache_shape_query_width(&batch->caches[0]->base.shape);
    if (batch->caches[0] == prefill.lead && prefill.q_floats)
        memcpy(prefill.queries + rows->first * width, rows->q, rows->count * width * sizeof *rows->q);
    return CPU->attend(batch, rows, error);
}

static enum terse_status append_copy(struct cache *follower, float *rotated, struct terse_error *error) {
    memcpy(rotated, prefill.keys, prefill.kv_floats * sizeof *rotated);
    return one_append(CPU, follower, prefill.layer, rotated, prefill.v, error);
}

/* Shows the queries to a follower's policy. Attention's output is the lead's. */
static enum terse_status observe_copy(struct cache *follower, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    size_t width = follower->base.shape.query_heads * (size_t)follower->base.shape.head_dim;
    for (size_t first = 0; first < prefill.n && !status; first += PANEL) {
        size_t count = prefill.n - first < PANEL ? prefill.n - first : PANEL;
        status = one_observe(CPU, follower, prefill.layer, prefill.queries + first * width, first, count, error);
    }
    return status;
}

/* Returns whether both caches score the same tokens in the same way. */
static bool same_scores(const struct cache *a, const struct cache *b) {
    return a->base.plan.sealed == b->base.plan.sealed && a->base.plan.grid == b->base.plan.grid &&
           a->base.plan.skip == b->base.plan.skip &&
           a->base.method.policy->rank_by_attention == b->base.method.policy->rank_by_attention;
}

/* Seals the layer of all caches. Anchor Scores depend on the exact attention alone: the first follower that needs them observes the queries,
 * others that seal the same tokens share its scores, and its layer is sealed last. */
static enum terse_status seal_all(const struct kv_batch *batch, uint32_t layer, struct terse_error *error) {
    struct cache *observer = NULL;
    enum terse_status status = CPU->seal(batch, layer, error);
    if (batch->caches[0] != prefill.lead) return status;
    for (size_t i = 0; i < prefill.n_followers && !status; i++) {
        struct cache *follower = prefill.followers[i].cache;
        bool shares = scores(follower) && observer && same_scores(follower, observer), first = scores(follower) && !observer;
        status = append_copy(follower, prefill.rotated[first], error);
        if (shares) anchor_scores_copy(follower, observer);
        if (!status && observes(follower) && !shares) status = observe_copy(follower, error);
        if (first)
            observer = follower;
        else if (!status)
            status = one_seal(CPU, follower, layer, error);
    }
    if (observer && !status) status = one_seal(CPU, observer, layer, error);
    return status;
}

static enum terse_status commit_all(struct cache *cache, struct terse_error *error) {
    enum terse_status status = CPU->commit(cache, error);
    for (size_t i = 0; cache == prefill.lead && i < prefill.n_followers && !status; i++)
        status = CPU->commit(prefill.followers[i].cache, error);
    return status;
}

/* ---- Engine and sessions */

enum terse_status prefill_engine_new(const struct terse_model *model, uint32_t threads, struct terse_engine **engine,
                                     struct terse_error *error) {
    static struct kv_ops ops;
    static struct kv_storage storage;
    struct terse_engine_options options = terse_engine_options_defaults();
    struct backend backend = backend_cpu;
    ops = *backend_cpu.kv;
    storage = *CPU->storage;
    storage.create = create_with_index;
    ops.storage = &storage;
    ops.begin = begin_all;
    ops.append = append_all;
    ops.attend = attend_all;
    ops.seal = seal_all;
    ops.commit = commit_all;
    backend.kv = &ops;
    options.threads = threads;
    return engine_new(&backend, model, &options, engine, error);
}

void prefill_index(const struct cpu_index *index) { other_index = index; }

enum terse_status opened_new(struct terse_engine *engine, const struct terse_session_options *options, struct opened *opened,
                             struct terse_error *error) {
    enum terse_status status = terse_session_new(engine, options, &opened->session, error);
    opened->cache = status ? NULL : opened->session->cache;
    return status;
}

void opened_free(struct opened *opened) {
    terse_session_free(opened->session);
    *opened = (struct opened){0};
}

static void ignore_row(void *user, size_t i, const float *logits) {
    (void)user;
    (void)i;
    (void)logits;
}

enum terse_status prefill_many(struct opened *lead, struct opened *followers, size_t n_followers, const int32_t *tokens, size_t n,
                               struct terse_error *error) {
    /* Without a sink the last layer attends with its last query alone, but observers must see all queries. */
    const struct terse_logits_sink all = {ignore_row, NULL, 0};
    bool observed = false;
    for (size_t i = 0; i < n_followers; i++) {
        const struct policy *policy = followers[i].cache->base.method.policy;
        observed |= policy->anchors || policy->pick_victim;
    }
    prefill.lead = lead->cache;
    prefill.followers = followers;
    prefill.n_followers = n_followers;
    enum terse_status status = terse_session_prefill(lead->session, tokens, n, observed ? &all : NULL, error);
    memory_free(prefill.keys);
    memory_free(prefill.rotated[0]);
    memory_free(prefill.rotated[1]);
    memory_free(prefill.queries);
    memset(&prefill, 0, sizeof prefill);
    if (!status) return TERSE_OK;
    terse_session_reset(lead->session);
    for (size_t i = 0; i < n_followers; i++) terse_session_reset(followers[i].session);
    return status;
}
