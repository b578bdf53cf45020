/* Owns: the wrapped calls of cache.h and the copies of a layer's keys and queries that the followers need. */
#include "fidelity_prefill.h"

#include "backend/cpu/kv/anchors.h"
#include "base/memory.h"

#include <string.h>

/* What the linker makes of the functions of cache.h (CMakeLists.txt lists them): calls from other files come to __wrap_, and __real_ is
 * the function itself. */
enum terse_status __real_cache_create(const struct cache_shape *shape, const struct method *method, uint32_t threads,
                                      struct cache **cache, struct terse_error *error);
enum terse_status __real_cache_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error);
enum terse_status __real_cache_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error);
enum terse_status __real_cache_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out,
                                      struct terse_error *error);
enum terse_status __real_cache_end_layer(struct cache *cache, struct terse_error *error);
enum terse_status __real_cache_commit(struct cache *cache, struct terse_error *error);

enum terse_status __wrap_cache_create(const struct cache_shape *shape, const struct method *method, uint32_t threads,
                                      struct cache **cache, struct terse_error *error);
enum terse_status __wrap_cache_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error);
enum terse_status __wrap_cache_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error);
enum terse_status __wrap_cache_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out,
                                      struct terse_error *error);
enum terse_status __wrap_cache_end_layer(struct cache *cache, struct terse_error *error);
enum terse_status __wrap_cache_commit(struct cache *cache, struct terse_error *error);

#define PANEL 256 /* queries that a follower is shown at a time */

static struct cache *newest;            /* of cache_create, until opened_new has taken it */
static const struct index *other_index; /* of prefill_index */

/* The prefill in progress. */
static struct {
    struct cache *lead; /* NULL: none, and calls just pass */
    struct opened *followers;
    size_t n_followers, n;
    size_t kv_floats, q_floats; /* of all tokens */
    uint32_t layer;
    const float *v;
    float *keys;       /* [n][Hk][hd] before rotation */
    float *rotated[2]; /* the same for a follower, which may rotate them, and for the one that observes */
    float *queries;    /* [n][Hq][hd], when a follower observes them */
} many;

static bool observes(const struct cache *cache) { return cache_queries_to_observe(cache, 1) > 0; }

/* Whether it observes the attention, to choose anchors. */
static bool scores(const struct cache *cache) { return cache->plan.anchors != 0; }

/* ---- The wrapped calls */

enum terse_status __wrap_cache_create(const struct cache_shape *shape, const struct method *method, uint32_t threads,
                                      struct cache **cache, struct terse_error *error) {
    struct method changed = *method;
    *cache = NULL;
    if (other_index && !method->index)
        return status_fail(error, TERSE_E_ARGUMENT, "%s reads all tokens: leave index= away or give read=", method->name);
    if (other_index) changed.index = other_index;
    enum terse_status status = __real_cache_create(shape, &changed, threads, cache, error);
    newest = status ? NULL : *cache;
    return status;
}

/* Copies for the step of n tokens; whether queries are needed is known once every plan is made. */
static enum terse_status reserve_copies(const struct cache *cache, size_t n, struct terse_error *error) {
    size_t hd = cache->shape.head_dim;
    bool queries = false;
    for (size_t i = 0; i < many.n_followers; i++) queries |= observes(many.followers[i].cache);
    many.n = n;
    many.kv_floats = n * cache->shape.kv_heads * hd;
    many.q_floats = queries ? n * cache->shape.query_heads * hd : 0;
    many.keys = memory_array(many.kv_floats, sizeof *many.keys);
    for (size_t i = 0; i < 2; i++) many.rotated[i] = memory_array(many.kv_floats, sizeof *many.keys);
    many.queries = memory_array(many.q_floats, sizeof *many.queries);
    if (many.keys && many.rotated[0] && many.rotated[1] && many.queries) return TERSE_OK;
    return status_no_memory(error, (3 * many.kv_floats + many.q_floats) * sizeof(float), "a layer's keys and queries");
}

enum terse_status __wrap_cache_begin(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    enum terse_status status = __real_cache_begin(cache, kind, n, error);
    if (status || cache != many.lead) return status;
    for (size_t i = 0; i < many.n_followers && !status; i++) status = __real_cache_begin(many.followers[i].cache, kind, n, error);
    return status ? status : reserve_copies(cache, n, error);
}

enum terse_status __wrap_cache_append(struct cache *cache, uint32_t layer, float *k, const float *v, struct terse_error *error) {
    if (cache == many.lead) {
        many.layer = layer;
        many.v = v;
        memcpy(many.keys, k, many.kv_floats * sizeof *k);
    }
    return __real_cache_append(cache, layer, k, v, error);
}

enum terse_status __wrap_cache_attend(struct cache *cache, const float *q, size_t first, size_t count, float *out,
                                      struct terse_error *error) {
    size_t width = cache->shape.query_heads * (size_t)cache->shape.head_dim;
    if (cache == many.lead && many.q_floats) memcpy(many.queries + first * width, q, count * width * sizeof *q);
    return __real_cache_attend(cache, q, first, count, out, error);
}

static enum terse_status append(struct cache *follower, float *rotated, struct terse_error *error) {
    memcpy(rotated, many.keys, many.kv_floats * sizeof *rotated);
    return __real_cache_append(follower, many.layer, rotated, many.v, error);
}

/* What an exact prefill's attention leaves for the policy, without its output, which is the lead's. */
static enum terse_status observe(struct cache *follower, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    size_t width = follower->shape.query_heads * (size_t)follower->shape.head_dim;
    for (size_t first = 0; first < many.n && !status; first += PANEL) {
        size_t count = many.n - first < PANEL ? many.n - first : PANEL;
        status = cache_observe(follower, many.queries + first * width, first, count, error);
    }
    return status;
}

/* Whether the same attention tells both the same of the same tokens. */
static bool same_scores(const struct cache *a, const struct cache *b) {
    return a->plan.sealed == b->plan.sealed && a->plan.grid == b->plan.grid && a->plan.skip == b->plan.skip &&
           a->method.policy->rank_by_attention == b->method.policy->rank_by_attention;
}

/* Anchor Scores are of the exact attention, the same for all: followers that seal the same tokens take them from the first of them,
 * whose layer ends last. */
enum terse_status __wrap_cache_end_layer(struct cache *cache, struct terse_error *error) {
    struct cache *observer = NULL;
    enum terse_status status = __real_cache_end_layer(cache, error);
    if (cache != many.lead) return status;
    for (size_t i = 0; i < many.n_followers && !status; i++) {
        struct cache *follower = many.followers[i].cache;
        bool shares = scores(follower) && observer && same_scores(follower, observer), first = scores(follower) && !observer;
        status = append(follower, many.rotated[first], error);
        if (shares) anchors_share(follower, observer);
        if (!status && observes(follower) && !shares) status = observe(follower, error);
        if (first)
            observer = follower;
        else if (!status)
            status = __real_cache_end_layer(follower, error);
    }
    if (observer && !status) status = __real_cache_end_layer(observer, error);
    return status;
}

enum terse_status __wrap_cache_commit(struct cache *cache, struct terse_error *error) {
    enum terse_status status = __real_cache_commit(cache, error);
    for (size_t i = 0; cache == many.lead && i < many.n_followers && !status; i++)
        status = __real_cache_commit(many.followers[i].cache, error);
    return status;
}

/* ---- Sessions */

void prefill_index(const struct index *index) { other_index = index; }

enum terse_status opened_new(struct terse_engine *engine, const struct terse_session_options *options, struct opened *opened,
                             struct terse_error *error) {
    enum terse_status status = terse_session_new(engine, options, &opened->session, error);
    opened->cache = status ? NULL : newest;
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
    /* Without a sink the last layer asks for its last query alone; whoever observes must see them all. */
    const struct terse_logits_sink all = {ignore_row, NULL, 0};
    bool observed = false;
    for (size_t i = 0; i < n_followers; i++) {
        const struct policy *policy = followers[i].cache->method.policy;
        observed |= policy->anchors || policy->pick_victim;
    }
    many.lead = lead->cache;
    many.followers = followers;
    many.n_followers = n_followers;
    enum terse_status status = terse_session_prefill(lead->session, tokens, n, observed ? &all : NULL, error);
    memory_free(many.keys);
    memory_free(many.rotated[0]);
    memory_free(many.rotated[1]);
    memory_free(many.queries);
    memset(&many, 0, sizeof many);
    if (!status) return TERSE_OK;
    terse_session_reset(lead->session);
    for (size_t i = 0; i < n_followers; i++) terse_session_reset(followers[i].session);
    return status;
}
