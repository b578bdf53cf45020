/* A session: one sequence with its cache and its sampler. Owns the limits of a sequence (context, token ids) and the choice of step
 * kinds; leaves the computing to forward.c. */
#include "backend/cpu/executor.h"
#include "backend/cpu/gemm.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

struct terse_session {
    const struct terse_model *model;
    struct terse_session_options options; /* names in options.cache are not kept: see method */
    struct method method;
    struct cache *cache;
    struct workspace workspace;
    struct sampler sampler;
    struct terse_counters counters;
    float *logits; /* [vocabulary] */
    bool has_logits;
};

struct terse_session_options terse_session_options_defaults(void) {
    return (struct terse_session_options){.cache = terse_cache_options_defaults(), .prefill = TERSE_PREFILL_EXACT, .batch = 512};
}

struct terse_sampling terse_sampling_defaults(void) {
    return (struct terse_sampling){
        .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .repeat_last = 64, .seed = 1};
}

static struct cache_shape cache_shape_of(const struct terse_model *m) {
    return (struct cache_shape){.layers = m->layers,
                                .query_heads = m->query_heads,
                                .kv_heads = m->kv_heads,
                                .head_dim = m->head_dim,
                                .scale = 1 / sqrtf((float)m->head_dim),
                                .rope = &m->rope,
                                .slopes = m->slopes};
}

/* Learned positions went into the keys with the embeddings: a token cannot be moved to another one. */
static enum terse_status check_positions(const struct terse_model *m, const struct method *method, struct terse_error *error) {
    if (!m->positions.data || !method->policy->positions_by_index) return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED,
                       "%s moves tokens to other positions, which a model with learned ones (position_embd) does not allow: use "
                       "another --kv",
                       method->name);
}

enum terse_status terse_cache_bytes(const struct terse_model *model, const struct terse_cache_options *options, uint64_t tokens,
                                    struct terse_cache_report *report, struct terse_error *error) {
    struct method method;
    struct cache_shape shape = cache_shape_of(model);
    enum terse_status status = method_resolve(options, model->head_dim, &method, error);
    if (!status) status = method_check(&method, shape.head_dim, shape.query_heads / shape.kv_heads, error);
    if (!status) status = check_positions(model, &method, error);
    if (!status) cache_predict(&shape, &method, tokens, report);
    return status;
}

/* Returns the caller's number of threads, to be set again. */
static int use_threads(const struct terse_session *s) {
    int threads = omp_get_max_threads();
    omp_set_num_threads((int)s->options.threads);
    return threads;
}

/* Fills in what 0 stands for and refuses what cannot be. */
static enum terse_status check_options(struct terse_session *s, struct terse_error *error) {
    struct terse_session_options *o = &s->options;
    bool evicts = s->method.policy->positions_by_index;
    const struct matrix *positions = &s->model->positions;
    enum terse_status status = check_positions(s->model, &s->method, error);
    if (status) return status;
    if (!o->context) o->context = s->model->context;
    if (positions->data && o->context > positions->rows)
        return status_fail(error, TERSE_E_CONTEXT,
                           "a context of %u tokens is longer than the %u positions that the model has learned: use -c %u",
                           o->context, positions->rows, positions->rows);
    if (o->context > s->model->context && !o->allow_longer_context)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "a context of %u tokens is longer than the %u the model was trained for: use -c %u, or "
                           "--allow-longer-context to try it all the same",
                           o->context, s->model->context, s->model->context);
    if (evicts && s->method.parameters.budget >= o->context)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "%s leaves no room for the next token in a context of %u: use a smaller number, or raise -c",
                           s->method.name, o->context);
    if (policy_evicts(s->method.policy) && o->prefill == TERSE_PREFILL_PAPER)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%s evicts tokens while it reads, which --paper, where every token reads all before it, cannot "
                           "measure: leave --paper away",
                           s->method.name);
    if ((unsigned)o->prefill > TERSE_PREFILL_PAPER)
        return status_fail(error, TERSE_E_ARGUMENT, "there is no prefill mode %d", (int)o->prefill);
    if (!o->batch) return status_fail(error, TERSE_E_ARGUMENT, "a batch of 0 tokens reads nothing: use -b 1 or more");
    if (!o->threads) o->threads = (uint32_t)omp_get_num_procs();
    if (o->threads > 1024)
        return status_fail(error, TERSE_E_ARGUMENT, "%u threads are more than the 1024 that terse can use", o->threads);
    return TERSE_OK;
}

enum terse_status terse_session_new(const struct terse_model *model, const struct terse_session_options *options,
                                    struct terse_session **session, struct terse_error *error) {
    *session = NULL;
    struct terse_session *s = calloc(1, sizeof *s);
    if (!s) return status_no_memory(error, sizeof *s, "a session");
    s->model = model;
    s->options = *options;
    struct cache_shape shape = cache_shape_of(model);
    enum terse_status status = method_resolve(&options->cache, model->head_dim, &s->method, error);
    if (status) goto fail;
    status = method_check_codebook(&s->method, model->fingerprint, model->layers, model->kv_heads, model->head_dim, error);
    if (status) goto fail;
    if ((status = check_options(s, error))) goto fail;
    int threads = use_threads(s);
    status = gemm_prepare(error);
    omp_set_num_threads(threads);
    if (status) goto fail;
    if ((status = cache_create(&shape, &s->method, s->options.threads, &s->cache, error))) goto fail;
    if ((status = sampler_init(&s->sampler, model->vocabulary, error))) goto fail;
    if (!(s->logits = memory_array(model->vocabulary, sizeof *s->logits))) {
        status = status_no_memory(error, model->vocabulary * sizeof *s->logits, "logits");
        goto fail;
    }
    *session = s;
    return TERSE_OK;
fail:
    terse_session_free(s);
    return status;
}

void terse_session_free(struct terse_session *session) {
    if (!session) return;
    cache_destroy(session->cache);
    workspace_free(&session->workspace);
    sampler_destroy(&session->sampler);
    memory_free(session->logits);
    free(session);
}

void terse_session_reset(struct terse_session *session) {
    cache_reset(session->cache);
    sampler_forget(&session->sampler);
    session->has_logits = false;
}

uint64_t terse_session_length(const struct terse_session *session) { return cache_length(session->cache); }

/* ---- Steps */

static enum terse_status check_tokens(const struct terse_session *s, const int32_t *tokens, size_t n, struct terse_error *error) {
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no tokens: a step needs at least one");
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= s->model->vocabulary)
            return status_fail(error, TERSE_E_ARGUMENT, "token %" PRId32 " at %zu is outside the vocabulary of %u", tokens[i], i,
                               s->model->vocabulary);
    return TERSE_OK;
}

/* `n` tokens more, of which `together` meet in one step. Methods that evict read at positions by index, so for them it is what they
 * keep that must fit beside a step, not the whole sequence. */
static enum terse_status check_room(const struct terse_session *s, size_t n, size_t together, struct terse_error *error) {
    uint64_t length = cache_length(s->cache), budget = s->method.parameters.budget, context = s->options.context;
    if (!s->method.policy->positions_by_index) {
        if (n <= context && length <= context - n) return TERSE_OK;
        const struct matrix *positions = &s->model->positions;
        const char *or_else = ", raise -c, or use --kv streaming-N to go on without end";
        if (positions->data) or_else = context < positions->rows ? " or raise -c" : ", the model has learned no more positions";
        return status_fail(error, TERSE_E_CONTEXT, "%" PRIu64 " tokens do not fit the context of %" PRIu64 ": shorten the text%s",
                           length + n, context, or_else);
    }
    uint64_t kept = length < budget ? length : budget;
    if (together <= context && kept <= context - together) return TERSE_OK;
    return status_fail(error, TERSE_E_CONTEXT,
                       "%zu tokens at once do not fit the context of %" PRIu64 " beside the %" PRIu64
                       " that %s keeps: read them in "
                       "smaller chunks (--prefill compressed -b N), or raise -c",
                       together, context, kept, s->method.name);
}

/* Runs a step with the session's number of threads. */
static enum terse_status step(struct terse_session *s, const struct forward *f, const int32_t *tokens, size_t n,
                              struct terse_error *error) {
    int threads = use_threads(s);
    enum terse_status status = forward(f, tokens, n, error);
    omp_set_num_threads(threads);
    if (status == TERSE_OK) {
        s->has_logits = true;
        for (size_t i = 0; i < n; i++) sampler_add(&s->sampler, tokens[i]);
    }
    return status;
}

static struct forward forward_of(struct terse_session *s, enum cache_step_kind kind, const struct terse_logits_sink *sink,
                                 const struct terse_progress *progress) {
    return (struct forward){s->model, s->cache, &s->workspace, kind, sink, progress, s->logits};
}

/* A part of a longer call: rows are counted from the call's first token. */
struct shifted_sink {
    const struct terse_logits_sink *sink;
    size_t shift;
};

static void shifted_row(void *user, size_t i, const float *logits) {
    const struct shifted_sink *shifted = user;
    shifted->sink->row(shifted->sink->user, shifted->shift + i, logits);
}

static enum terse_status prefill_in_chunks(struct terse_session *s, const int32_t *tokens, size_t n,
                                           const struct terse_logits_sink *sink, struct terse_error *error) {
    const struct terse_progress *progress = &s->options.progress;
    enum terse_status status = TERSE_OK;
    for (size_t first = 0; first < n && !status; first += s->options.batch) {
        size_t count = n - first < s->options.batch ? n - first : s->options.batch;
        struct shifted_sink shifted = {sink, first};
        struct terse_logits_sink part = {shifted_row, &shifted, sink && sink->first > first ? sink->first - first : 0};
        bool wanted = sink && sink->first < first + count;
        struct forward f = forward_of(s, CACHE_STEP_CHUNK, wanted ? &part : NULL, NULL);
        status = step(s, &f, tokens + first, count, error);
        if (!status && progress->report && !progress->report(progress->user, "prompt", first + count, n))
            status = status_fail(error, TERSE_E_INTERRUPTED, "interrupted after %zu of %zu tokens", first + count, n);
    }
    return status;
}

enum terse_status terse_session_prefill(struct terse_session *session, const int32_t *tokens, size_t n,
                                        const struct terse_logits_sink *sink, struct terse_error *error) {
    enum terse_prefill mode = session->options.prefill;
    bool chunks = mode == TERSE_PREFILL_COMPRESSED;
    enum terse_status status = check_tokens(session, tokens, n, error);
    if (!status) status = check_room(session, n, chunks && n > session->options.batch ? session->options.batch : n, error);
    if (status) return status;
    double start = clock_now();
    if (chunks) {
        status = prefill_in_chunks(session, tokens, n, sink, error);
    } else {
        struct forward f = forward_of(session, mode == TERSE_PREFILL_PAPER ? CACHE_STEP_PAPER : CACHE_STEP_PREFILL, sink,
                                      &session->options.progress);
        status = step(session, &f, tokens, n, error);
        if (status == TERSE_E_INTERRUPTED) terse_session_reset(session);
    }
    session->counters.prefill_seconds += clock_now() - start;
    if (!status) session->counters.prefill_tokens += n;
    cache_counters(session->cache, &(struct cache_counters){0}, true);
    return status;
}

enum terse_status terse_session_decode(struct terse_session *session, const int32_t *tokens, size_t n,
                                       const struct terse_logits_sink *sink, struct terse_error *error) {
    enum terse_status status = check_tokens(session, tokens, n, error);
    if (!status) status = check_room(session, n, n, error);
    if (status) return status;
    double start = clock_now();
    struct forward f = forward_of(session, CACHE_STEP_DECODE, sink, NULL);
    status = step(session, &f, tokens, n, error);
    struct cache_counters attention;
    cache_counters(session->cache, &attention, true);
    session->counters.decode_seconds += clock_now() - start;
    session->counters.attention_seconds += attention.seconds;
    session->counters.attention_bytes += attention.bytes;
    if (!status) session->counters.decode_tokens += n;
    return status;
}

enum terse_status terse_session_fill_random(struct terse_session *session, size_t n, uint64_t seed, struct terse_error *error) {
    enum terse_status status = check_room(session, n, 1, error);
    if (status) return status;
    int threads = use_threads(session);
    status = cache_fill_random(session->cache, n, seed, error);
    omp_set_num_threads(threads);
    session->has_logits = false;
    return status;
}

/* ---- Reading the session */

const float *terse_session_logits(const struct terse_session *session) { return session->has_logits ? session->logits : NULL; }

enum terse_status terse_session_set_sampling(struct terse_session *session, const struct terse_sampling *sampling,
                                             struct terse_error *error) {
    return sampler_set(&session->sampler, sampling, error);
}

enum terse_status terse_session_sample(struct terse_session *session, int32_t *token, struct terse_error *error) {
    *token = -1;
    if (!session->has_logits)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "nothing to sample from: no tokens have been read since the session was made, reset or filled");
    *token = sampler_choose(&session->sampler, session->logits);
    return TERSE_OK;
}

void terse_session_cache(const struct terse_session *session, struct terse_cache_report *report) {
    cache_report(session->cache, report);
}

void terse_session_counters(struct terse_session *session, struct terse_counters *counters, bool clear) {
    *counters = session->counters;
    if (clear) session->counters = (struct terse_counters){0};
}
