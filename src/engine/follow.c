/* Follows rank 0 (lead.h): a rank other than 0 has a cache for each of rank 0's, and does with it, and with steps, as it is told. */
#include "engine/orders.h"
#include "engine/session.h"

#include "base/memory.h"
#include "format/codebook.h"
#include "kv/parts.h"

#include <stdlib.h>
#include <string.h>

/* A followed is this rank's share of a cache, with what makes an empty one of its kind. */
struct followed {
    uint64_t number;
    struct cache *cache;
    struct method method;
    uint32_t context;
};

/* A running is a step that has begun. */
struct running {
    uint64_t number; /* of the first part's cache */
    struct pass *pass;
    struct step_part *parts;
    void *data; /* of the order, with the tokens */
};

struct follower {
    struct terse_engine *engine;
    struct followed *caches;
    size_t n_caches, cache_capacity;
    struct running *passes;
    size_t n_passes, pass_capacity;
    struct terse_codebook **codebooks; /* kept as long as this rank follows */
    size_t n_codebooks, codebook_capacity;
    float *logits; /* [vocabulary], which are not read */
};

/* ---- Lists */

/* Makes room for one more of items[n] of `each` bytes. */
static enum terse_status grow(void **items, size_t n, size_t *capacity, size_t each, struct terse_error *error) {
    if (n < *capacity) return TERSE_OK;
    const size_t more = *capacity ? 2 * *capacity : 16;
    void *larger = realloc(*items, more * each);
    if (!larger) return status_no_memory(error, more * each, "what rank 0 has");
    *items = larger;
    *capacity = more;
    return TERSE_OK;
}

static struct followed *find(const struct follower *f, uint64_t number) {
    for (size_t i = f->n_caches; i-- > 0;)
        if (f->caches[i].number == number) return &f->caches[i];
    return NULL;
}

static enum terse_status add_cache(struct follower *f, const struct followed *followed, struct terse_error *error) {
    enum terse_status status = grow((void **)&f->caches, f->n_caches, &f->cache_capacity, sizeof *f->caches, error);
    if (status)
        parts_destroy(followed->cache);
    else
        f->caches[f->n_caches++] = *followed;
    return status;
}

static enum terse_status unknown(const struct order *order, struct terse_error *error) {
    return status_fail(error, TERSE_E_ARGUMENT, "an order %u of rank 0 for a cache %llu that is not here", order->kind,
                       (unsigned long long)order->cache);
}

/* ---- Caches */

static enum terse_status make(struct terse_engine *e, struct followed *followed, struct terse_error *error) {
    const struct cache_shape shape = engine_cache_shape(e, followed->context);
    enum terse_status status =
        parts_create(e->backend.kv->storage, &shape, &followed->method, thread_pool_threads(e->pool), &followed->cache, error);
    if (status || !(status = parts_limit(followed->cache, &e->budget, error))) return status;
    parts_destroy(followed->cache);
    followed->cache = NULL;
    return status;
}

struct making {
    struct terse_engine *engine;
    struct followed *followed;
};

static enum terse_status make_on_driver(void *user, struct terse_error *error) {
    const struct making *m = user;
    return make(m->engine, m->followed, error);
}

/* Finds the codebook of a hash, which file[size] may bring. */
static enum terse_status find_codebook(struct follower *f, const struct order_create *create, const void *file, size_t size,
                                       const struct terse_codebook **codebook, struct terse_error *error) {
    *codebook = NULL;
    for (size_t i = 0; i < f->n_codebooks && create->codebook; i++)
        if (codebook_hash(f->codebooks[i]) == create->codebook) *codebook = f->codebooks[i];
    if (*codebook || !create->brings) return TERSE_OK;
    enum terse_status status = grow((void **)&f->codebooks, f->n_codebooks, &f->codebook_capacity, sizeof(void *), error);
    if (!status) status = terse_codebook_load_memory(file, size, "the codebook of rank 0", &f->codebooks[f->n_codebooks], error);
    if (!status) *codebook = f->codebooks[f->n_codebooks++];
    return status;
}

static const char *name_of(const char text[ORDER_NAME]) { return *text ? text : NULL; }

static enum terse_status create(struct follower *f, const struct order *order, const uint8_t *data, struct terse_error *error) {
    struct order_create c;
    struct followed followed = {.number = order->cache};
    memcpy(&c, data, sizeof c);
    c.options.method = name_of(c.method);
    c.options.key_type = name_of(c.key_type);
    c.options.value_type = name_of(c.value_type);
    c.options.evict = name_of(c.evict);
    followed.context = c.context;
    enum terse_status status = find_codebook(f, &c, data + sizeof c, order->bytes - sizeof c, &c.options.codebook, error);
    if (!status) status = session_resolve_method(f->engine, &c.options, &followed.method, error);
    if (!status) status = engine_run(f->engine, make_on_driver, &(struct making){f->engine, &followed}, error);
    return status ? status : add_cache(f, &followed, error);
}

static enum terse_status renew(struct follower *f, const struct order *order, struct terse_error *error) {
    struct followed *followed = find(f, order->cache);
    if (!followed) return unknown(order, error);
    parts_destroy(followed->cache);
    followed->cache = NULL;
    return make(f->engine, followed, error);
}

static enum terse_status fork_cache(struct follower *f, const struct order *order, struct terse_error *error) {
    const struct followed *from = find(f, order->cache);
    if (!from) return unknown(order, error);
    struct followed copy = *from;
    copy.number = order->other;
    enum terse_status status = parts_fork(from->cache, &copy.cache, error);
    return status ? status : add_cache(f, &copy, error);
}

/* Where an order to make the cache failed, there is none. */
static void destroy(struct follower *f, uint64_t number) {
    struct followed *followed = find(f, number);
    if (!followed) return;
    parts_destroy(followed->cache);
    *followed = f->caches[--f->n_caches];
}

static enum terse_status load(const struct follower *f, const struct order *order, const char *path, struct terse_error *error) {
    const struct followed *followed = find(f, order->cache);
    struct state_file *file;
    if (!followed) return unknown(order, error);
    enum terse_status status = state_file_open(path, &file, error);
    if (status) return status;
    if (state_file_checksum(file) != order->seed)
        status =
            status_fail(error, TERSE_E_ARGUMENT, "%s: is another file than that of rank 0: put the same one in its place", path);
    if (!status) status = parts_load(followed->cache, file, error);
    state_file_close(file); /* the cache owns it too, if it has pages in it */
    return status;
}

static enum terse_status give_pages(const struct follower *f, const struct order *order, struct terse_error *error) {
    const struct followed *followed = find(f, order->cache);
    if (!followed) return unknown(order, error);
    parts_save_share(followed->cache);
    return TERSE_OK;
}

static enum terse_status fill(const struct follower *f, const struct order *order, struct terse_error *error) {
    const struct followed *followed = find(f, order->cache);
    if (!followed) return unknown(order, error);
    return f->engine->backend.kv->fill_random(followed->cache, order->n, order->seed, error);
}

static enum terse_status cut(const struct follower *f, const struct order *order, struct terse_error *error) {
    const struct followed *followed = find(f, order->cache);
    if (!followed) return unknown(order, error);
    if (order->kind == ORDER_TRUNCATE) return parts_truncate(followed->cache, order->n, error);
    parts_reset(followed->cache);
    return TERSE_OK;
}

/* ---- Steps */

/* Takes rows of logits, which rank 0 alone needs. */
static void drop_rows(void *user, size_t first, size_t count, const float *logits) {
    (void)user, (void)first, (void)count, (void)logits;
}

static enum terse_status unpack(const struct follower *f, const struct order *order, uint8_t *data, struct step_part *parts,
                                struct terse_error *error) {
    const int32_t *tokens = (const int32_t *)(const void *)(data + order->n * sizeof(struct order_part));
    for (size_t i = 0; i < order->n; i++) {
        struct order_part part;
        memcpy(&part, data + i * sizeof part, sizeof part);
        const struct followed *followed = find(f, part.cache);
        if (!followed) return unknown(&(struct order){.kind = order->kind, .cache = part.cache}, error);
        parts[i] = (struct step_part){.cache = followed->cache,
                                      .kind = (enum cache_step_kind)part.kind,
                                      .tokens = tokens,
                                      .n = part.n,
                                      .last_logits = part.last_logits ? f->logits : NULL,
                                      .rows = part.rows ? drop_rows : NULL,
                                      .first_row = part.first_row};
        tokens += part.n;
    }
    return TERSE_OK;
}

static void end_pass(const struct follower *f, const struct running *running) {
    f->engine->backend.executor->end(running->pass);
    memory_free(running->parts);
    memory_free(running->data);
}

static void drop_pass(struct follower *f, struct running *running) {
    end_pass(f, running);
    *running = f->passes[--f->n_passes];
}

/* Begins a step, of which the order brings *data; the pass then has that. Returns whether all ranks have begun it. */
static bool begin(struct follower *f, const struct order *order, void **data) {
    const struct terse_engine *e = f->engine;
    struct terse_error error;
    struct running running = {.number = order->cache, .data = *data, .parts = memory_array(order->n, sizeof *running.parts)};
    const uint64_t refusals = e->ranks->refusals;
    size_t failed;
    *data = NULL;
    enum terse_status status = grow((void **)&f->passes, f->n_passes, &f->pass_capacity, sizeof *f->passes, &error);
    if (!status && !running.parts) status = status_no_memory(&error, order->n * sizeof *running.parts, "a step");
    if (!status) status = unpack(f, order, running.data, running.parts, &error);
    if (!status)
        status = e->backend.executor->begin(e->executor, &(struct step){running.parts, order->n}, &running.pass, &failed, &error);
    status = collective_conclude(e->ranks, refusals, status, &error);
    if (status)
        end_pass(f, &running);
    else
        f->passes[f->n_passes++] = running;
    return !status;
}

/* Computes a piece of a pass. What fails for the model's numbers (TERSE_E_FORMAT) fails alike on rank 0, which says so; *failed. What fails for
 * another reason, for want of memory or by an exchange, may fail on this rank alone, which others would wait for: it is returned. */
static enum terse_status advance(const struct follower *f, struct pass *pass, bool *failed, struct terse_error *error) {
    const enum terse_status status = f->engine->backend.executor->advance(pass, error);
    *failed = status;
    return status == TERSE_E_FORMAT ? TERSE_OK : status;
}

/* Computes the pass that has begun last to its end, or until it fails. */
static enum terse_status finish(struct follower *f, struct terse_error *error) {
    const struct executor_ops *ops = f->engine->backend.executor;
    struct running *running = &f->passes[f->n_passes - 1];
    struct step_progress at = {0, 1};
    enum terse_status status = TERSE_OK;
    for (bool failed = false; at.done < at.total && !failed; at = ops->progress(running->pass))
        status = advance(f, running->pass, &failed, error);
    drop_pass(f, running);
    return status;
}

static struct running *find_pass(const struct follower *f, uint64_t number) {
    for (size_t i = 0; i < f->n_passes; i++)
        if (f->passes[i].number == number) return &f->passes[i];
    return NULL;
}

/* ---- Orders */

static void agree(const struct follower *f, enum terse_status status, struct terse_error *error) {
    (void)collective_agree(f->engine->ranks, status, error);
}

struct obeying {
    struct follower *follower;
    const struct order *order;
    void **data; /* that the order brings */
};

/* Does what rank 0 orders. A failure that all have agreed on is rank 0's. What is returned ends this rank. */
static enum terse_status obey(void *user, struct terse_error *error) {
    const struct obeying *o = user;
    struct follower *f = o->follower;
    const struct order *order = o->order;
    struct running *running = find_pass(f, order->cache);
    struct terse_error own;
    bool failed;
    switch ((enum order_kind)order->kind) {
    case ORDER_FORK: agree(f, fork_cache(f, order, &own), &own); break;
    case ORDER_FILL: agree(f, fill(f, order, &own), &own); break;
    case ORDER_LOAD: agree(f, load(f, order, *o->data, &own), &own); break;
    case ORDER_SAVE: return give_pages(f, order, error);
    case ORDER_RENEW: return renew(f, order, error);
    case ORDER_DESTROY: destroy(f, order->cache); break;
    case ORDER_TRUNCATE:
    case ORDER_RESET: return cut(f, order, error);
    case ORDER_STEP:
        if (begin(f, order, o->data)) return finish(f, error);
        break;
    case ORDER_BEGIN: (void)begin(f, order, o->data); break;
    case ORDER_ADVANCE:
        if (running) return advance(f, running->pass, &failed, error);
        break;
    case ORDER_STOP:
        if (running) drop_pass(f, running);
        break;
    case ORDER_CREATE:
    case ORDER_END: break;
    }
    return TERSE_OK;
}

static enum terse_status follow(struct follower *f, struct terse_error *error) {
    struct order order = {.kind = ORDER_END};
    enum terse_status status;
    do {
        struct terse_error own;
        void *data;
        status = order_receive(f->engine->ranks, &order, &data, error);
        if (!status && order.kind == ORDER_CREATE) /* which may have a profile made, on the driver thread */
            agree(f, create(f, &order, data, &own), &own);
        else if (!status)
            status = engine_run(f->engine, obey, &(struct obeying){f, &order, &data}, error);
        memory_free(data);
    } while (!status && order.kind != ORDER_END);
    return status;
}

enum terse_status terse_engine_follow(struct terse_engine *engine, struct terse_error *error) {
    struct follower f = {.engine = engine};
    if (!engine->ranks->rank)
        return status_fail(error, TERSE_E_ARGUMENT, "this process is rank 0 of %u, which the others follow", engine->ranks->ranks);
    f.logits = memory_array(engine->model->vocabulary, sizeof *f.logits);
    enum terse_status status =
        f.logits ? follow(&f, error) : status_no_memory(error, engine->model->vocabulary * sizeof *f.logits, "logits");
    while (f.n_passes) drop_pass(&f, f.passes);
    while (f.n_caches) destroy(&f, f.caches->number);
    for (size_t i = 0; i < f.n_codebooks; i++) terse_codebook_free(f.codebooks[i]);
    free(f.caches);
    free(f.passes);
    free(f.codebooks);
    memory_free(f.logits);
    return status;
}
