/* Implements the engine's life. Owns the choice of the backend; leaves computing to the backend and sequences to session.c. */
#include "engine/engine.h"

#include "backend/plugin.h"

#include "base/memory.h"
#include "base/options.h"
#include "kv/lower.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct terse_engine_options terse_engine_options_defaults(void) {
    return (struct terse_engine_options){.size = sizeof(struct terse_engine_options), .prefixes = 16, .prompt_ms = 50};
}

/* ---- Work on the driver thread */

struct call {
    enum terse_status (*function)(void *user, struct terse_error *error);
    void *user;
    struct terse_error *error;
    enum terse_status status;
};

static void run_call(void *user) {
    struct call *call = user;
    call->status = call->function(call->user, call->error);
}

enum terse_status engine_run(struct terse_engine *engine, enum terse_status (*function)(void *user, struct terse_error *error),
                             void *user, struct terse_error *error) {
    struct call call = {function, user, error, TERSE_OK};
    thread_pool_run(engine->pool, run_call, &call);
    return call.status;
}

/* The bits to which pages are lowered so that prefixes stay which are read again otherwise: less would make replies worse so that they come
 * sooner. On SmolLM2 135M pages lowered to 3 bits cost 0.0042 of KL divergence (docs/choosing-a-method.md), of which `--kv auto` allows 0.005. */
#define PREFIX_BITS 3

bool engine_drops_prefix(struct terse_engine *engine, enum terse_status status, bool any) {
    return status == TERSE_E_MEMORY && prefix_index_drop_next(&engine->prefixes, any ? PREFIX_NOW : PREFIX_NEVER);
}

bool engine_makes_room(struct terse_engine *engine, enum terse_status status, uint64_t due) {
    struct prefix_index *index = &engine->prefixes;
    if (status != TERSE_E_MEMORY) return false;
    if (prefix_index_drop_next(index, PREFIX_NEVER)) return true;
    if (due == PREFIX_NEVER) return false;
    const bool for_prefixes = due != PREFIX_NOW || prefix_index_expects(index);
    return lower_make_room(&engine->budget, for_prefixes ? PREFIX_BITS : 0) || prefix_index_drop_next(index, due);
}

struct asking {
    struct terse_engine *engine;
    uint64_t due;
};

static enum terse_status make_room(void *user, struct terse_error *error) {
    const struct asking *asking = user;
    (void)error;
    return engine_makes_room(asking->engine, TERSE_E_MEMORY, asking->due) ? TERSE_OK : TERSE_E_MEMORY;
}

bool engine_asks_for_room(struct terse_engine *engine, enum terse_status status, uint64_t due) {
    return status == TERSE_E_MEMORY && !engine_run(engine, make_room, &(struct asking){engine, due}, NULL);
}

enum terse_status engine_run_in_budget(struct terse_engine *engine,
                                       enum terse_status (*call)(void *user, struct terse_error *error), void *user,
                                       struct terse_error *error) {
    enum terse_status status;
    do status = engine_run(engine, call, user, error);
    while (engine_asks_for_room(engine, status, PREFIX_NOW));
    return status;
}

/* ---- Life */

static enum terse_status load_executor(void *user, struct terse_error *error) {
    struct terse_engine *e = user;
    return e->backend.executor->load(e->model, e->backend.kv, thread_pool_threads(e->pool), &e->executor, error);
}

/* Ranks must have these in common: kernels, since these decide how steps are cut and so how many exchanges there are, and the model. */
struct rank_kind {
    uint64_t model; /* its fingerprint */
    char kernels[40];
};

static enum terse_status compare_ranks(const struct collective *ranks, const struct rank_kind *all, struct terse_error *error) {
    for (uint32_t rank = 1; rank < ranks->ranks; rank++) {
        if (strcmp(all[rank].kernels, all[0].kernels) != 0)
            return status_fail(
                error, TERSE_E_UNSUPPORTED,
                "rank %u computes with kernels for %s, rank 0 with those for %s: give all the same GPUs, or set TERSE_CPU to the "
                "lesser of them for all processors",
                rank, all[rank].kernels, all[0].kernels);
        if (all[rank].model != all[0].model)
            return status_fail(error, TERSE_E_ARGUMENT,
                               "rank %u has another model (fingerprint %016" PRIx64 ") than rank 0 (%016" PRIx64
                               "): give all the same",
                               rank, all[rank].model, all[0].model);
    }
    return TERSE_OK;
}

/* Finds out whether all ranks can compute the model together, and connects them. */
static enum terse_status connect_ranks(struct collective *ranks, const struct backend *backend, const struct terse_model *model,
                                       struct terse_error *error) {
    struct rank_kind own = {.model = model->fingerprint}, *all = memory_array(ranks->ranks, sizeof *all);
    if (!all) return status_no_memory(error, ranks->ranks * sizeof *all, "an exchange between ranks");
    snprintf(own.kernels, sizeof own.kernels, "%s", backend->executor->kernels ? backend->executor->kernels() : backend->name);
    enum terse_status status = collective_gather(ranks, &own, sizeof own, all, error);
    if (!status) status = compare_ranks(ranks, all, error);
    memory_free(all);
    return status || !backend->executor->connect ? status : backend->executor->connect(ranks, error);
}

enum terse_status engine_join(struct terse_engine *engine, struct collective *ranks, struct terse_error *error) {
    engine->ranks = ranks;
    if (ranks->ranks == 1 || ranks->rank) return TERSE_OK;
    const enum terse_status status = lead_new(ranks, &engine->lead, error);
    engine->prefixes.lead = engine->lead;
    return status;
}

enum terse_status engine_new(const struct backend *backend, const struct terse_model *model,
                             const struct terse_engine_options *options, struct terse_engine **engine, struct terse_error *error) {
    const struct terse_engine_options defaults = terse_engine_options_defaults();
    *engine = NULL;
    if (!options) options = &defaults;
    enum terse_status status = OPTIONS_CHECK(options, terse_engine_options, error);
    if (!status) status = backend_serves(backend, model, error);
    struct collective *ranks = &collective_local;
    if (!status && options->over_ranks) status = collective_open(&ranks, error);
    if (!status && ranks->ranks > 1) status = connect_ranks(ranks, backend, model, error);
    if (status) return status;
    const uint32_t threads = options->threads || !options->over_ranks ? options->threads : collective_processors();
    struct terse_engine *e = calloc(1, sizeof *e);
    if (!e) return status_no_memory(error, sizeof *e, "an engine");
    e->model = model;
    e->backend = *backend;
    e->most_prefixes = options->prefixes;
    e->prompt_seconds = 1e-3 * options->prompt_ms;
    e->budget.most = options->kv_budget ? options->kv_budget : UINT64_MAX;
    status = thread_pool_new(threads, &e->pool, error);
    if (!status) status = engine_run(e, load_executor, e, error);
    if (!status) status = engine_join(e, ranks, error);
    if (status)
        terse_engine_free(e);
    else
        *engine = e;
    return status;
}

enum terse_status terse_engine_new(const struct terse_model *model, const struct terse_engine_options *options,
                                   struct terse_engine **engine, struct terse_error *error) {
    const char *device = options && options->size >= sizeof *options ? options->device : NULL;
    const struct backend *backend;
    *engine = NULL;
    enum terse_status status = backend_for(model, device, &backend, error);
    if (status) return status;
    status = engine_new(backend, model, options, engine, error);
    /* A GPU that serves the model may have no room for it. What ranks compute on they would have to agree on. */
    const bool again = status && backend != &backend_cpu && strcmp(device, "auto") == 0 && !options->over_ranks;
    return again ? engine_new(&backend_cpu, model, options, engine, error) : status;
}

struct cache_shape engine_cache_shape(const struct terse_engine *engine, uint32_t context) {
    struct cache_shape shape = cache_shape_of(engine->model, context);
    if (engine->ranks->ranks > 1) shape.ranks = engine->ranks;
    return shape;
}

const char *terse_engine_device(const struct terse_engine *engine) { return engine->backend.name; }

void terse_engine_free(struct terse_engine *engine) {
    if (!engine) return;
    prefix_index_clear(&engine->prefixes);
    lead_free(engine->lead);
    engine->backend.executor->unload(engine->executor);
    terse_codebook_free(engine->weight_profile);
    thread_pool_free(engine->pool);
    memory_free(engine->batch.readings);
    memory_free(engine->batch.parts);
    free(engine);
}

static enum terse_status make_weight_profile(void *user, struct terse_error *error) {
    struct terse_engine *e = user;
    const struct executor_ops *own = e->backend.executor;
    return (own->weight_profile ? own : backend_cpu.executor)->weight_profile(e->model, &e->weight_profile, error);
}

enum terse_status engine_weight_profile(struct terse_engine *engine, const struct terse_codebook **profile,
                                        struct terse_error *error) {
    enum terse_status status = engine->weight_profile ? TERSE_OK : engine_run(engine, make_weight_profile, engine, error);
    *profile = engine->weight_profile;
    return status;
}

uint64_t terse_engine_kv_bytes(const struct terse_engine *engine) { return engine->budget.used; }

uint32_t terse_engine_threads(const struct terse_engine *engine) { return thread_pool_threads(engine->pool); }

const struct terse_model *terse_engine_model(const struct terse_engine *engine) { return engine->model; }
