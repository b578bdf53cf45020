/* Implements the worker, its queue, and the jobs it is given. */
#include "backend/cpu/kv/seal_ahead.h"
#include "backend/cpu/codec/codec.h"

#include "backend/cpu/kv/fit.h"
#include "backend/cpu/kv/seal.h"
#include "backend/cpu/kv/side.h"
#include "base/thread.h"

#include <sched.h>
#include <stdlib.h>

/* ---- The worker and its queue */

/* A job is a full page of the window, all layers, heads and sides, to be encoded into a page set. */
struct job {
    struct page_set set;
    const uint8_t *window_set;
};

struct seal_worker {
    const struct cache *cache;
    pthread_t thread;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    bool stop;
    uint64_t posted, done; /* job i lies in jobs[i % capacity] */
    size_t capacity;
    struct job *jobs; /* [capacity] */
    float *rows;      /* [2][64][hd], the worker's */
};

static void seal(const struct cache *cache, const struct job *job, float *rows) {
    static const enum codec_side sides[] = {CODEC_KEYS, CODEC_VALUES};
    if (!page_set_is_here(&job->set)) return; /* another rank encodes it */
    for (uint32_t layer = 0; layer < cache->base.shape.layers; layer++) {
        for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++) {
            for (size_t s = 0; s < cache_sides_of(&cache->base.shape); s++) {
                cpu_codec_f16.decode(window_shape(cache, 1), sides[s], window_page(cache, job->window_set, sides[s], layer, head),
                                     rows);
                seal_page(cache, &job->set, layer, head, sides[s], rows);
            }
        }
    }
}

static void *work(void *user) {
    struct seal_worker *s = user;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (s->done == s->posted && !s->stop) pthread_cond_wait(&s->changed, &s->mutex);
        if (s->done == s->posted) break;
        struct job job = s->jobs[s->done % s->capacity];
        pthread_mutex_unlock(&s->mutex);
        seal(s->cache, &job, s->rows);
        pthread_mutex_lock(&s->mutex);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* Starts the worker, which takes the processor time that the other threads leave. */
static int start(struct seal_worker *s) {
    int failed = thread_start(&s->thread, work, s);
#ifdef SCHED_IDLE
    if (!failed) pthread_setschedparam(s->thread, SCHED_IDLE, &(struct sched_param){0});
#endif
    return failed;
}

static enum terse_status worker_new(const struct cache *cache, size_t capacity, struct seal_worker **worker,
                                    struct terse_error *error) {
    *worker = NULL;
    struct seal_worker *s = calloc(1, sizeof *s);
    if (!s) return status_no_memory(error, sizeof *s, "the KV cache's worker");
    *s = (struct seal_worker){.cache = cache, .capacity = capacity};
    s->jobs = calloc(capacity, sizeof *s->jobs);
    s->rows = calloc(2 * PAGE_TOKENS * (size_t)cache->base.shape.head_dim, sizeof *s->rows);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (s->jobs && s->rows && !start(s)) {
        *worker = s;
        return TERSE_OK;
    }
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free(s->jobs);
    free(s->rows);
    free(s);
    return status_fail(error, TERSE_E_MEMORY, "the system refused a thread for the KV cache's worker");
}

static void worker_free(struct seal_worker *worker) {
    if (!worker) return;
    pthread_mutex_lock(&worker->mutex);
    worker->stop = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
    pthread_join(worker->thread, NULL);
    pthread_mutex_destroy(&worker->mutex);
    pthread_cond_destroy(&worker->changed);
    free(worker->jobs);
    free(worker->rows);
    free(worker);
}

static void worker_post(struct seal_worker *worker, const struct page_set *set, const uint8_t *window_set) {
    pthread_mutex_lock(&worker->mutex);
    worker->jobs[worker->posted++ % worker->capacity] = (struct job){*set, window_set};
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
}

/* Waits until at most `left` of the jobs are not done; they are done in order. Accepts NULL. */
static void worker_wait(struct seal_worker *worker, size_t left) {
    if (!worker) return;
    pthread_mutex_lock(&worker->mutex);
    while (worker->posted - worker->done > left) pthread_cond_wait(&worker->changed, &worker->mutex);
    pthread_mutex_unlock(&worker->mutex);
}

/* ---- Which pages are encoded ahead */

void seal_ahead_wait(struct cache *cache) { worker_wait(cache->seal_worker, 0); }

void seal_ahead_free(struct cache *cache) { worker_free(cache->seal_worker); }

enum terse_status seal_ahead_begin(struct cache *cache, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    if (plan->ready) worker_wait(cache->seal_worker, cache->base.n_ahead - plan->ready);
    if (cache->seal_worker || !cache_pages_ahead(&cache->base, plan)) return TERSE_OK;
    return worker_new(cache, cache->base.method.tail_tokens / PAGE_TOKENS + 2, &cache->seal_worker, error);
}

void seal_ahead_post(struct cache *cache) {
    for (struct page_set *set; (set = cache_next_ahead(cache));)
        worker_post(cache->seal_worker, set, cache->window_sets[cache->base.n_ahead - 1]);
}
