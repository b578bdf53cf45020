/* The worker and its queue. */
#include "backend/cpu/kv/sealer.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

struct job {
    struct set set;
    const uint8_t *window;
};

struct sealer {
    const struct cache *cache;
    pthread_t thread;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t changed;
    bool stop;
    uint64_t posted, done; /* job i lies in jobs[i % most] */
    size_t most;
    struct job *jobs; /* [most] */
    float *rows;      /* [2][64][hd], the worker's */
};

static void seal(const struct cache *cache, const struct job *job, float *rows) {
    static const enum codec_side sides[] = {CODEC_KEYS, CODEC_VALUES};
    for (uint32_t layer = 0; layer < cache->shape.layers; layer++) {
        for (uint32_t head = 0; head < cache->shape.kv_heads; head++) {
            const uint8_t *halves = window_page(cache, job->window, layer, head);
            for (size_t s = 0; s < 2; s++) {
                codec_f16.decode(window_shape(cache, 1), sides[s], halves + s * cache->half_bytes, rows);
                seal_page(cache, &job->set, layer, head, sides[s], rows);
            }
        }
    }
}

static void *work(void *user) {
    struct sealer *s = user;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (s->done == s->posted && !s->stop) pthread_cond_wait(&s->changed, &s->mutex);
        if (s->done == s->posted) break;
        struct job job = s->jobs[s->done % s->most];
        pthread_mutex_unlock(&s->mutex);
        seal(s->cache, &job, s->rows);
        pthread_mutex_lock(&s->mutex);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* Signals are for the threads that the caller knows of; and the worker takes what processor time they leave. */
static int start(struct sealer *s) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&s->thread, NULL, work, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#ifdef SCHED_IDLE
    if (!failed) pthread_setschedparam(s->thread, SCHED_IDLE, &(struct sched_param){0});
#endif
    return failed;
}

enum terse_status sealer_new(const struct cache *cache, size_t most, struct sealer **sealer, struct terse_error *error) {
    *sealer = NULL;
    struct sealer *s = calloc(1, sizeof *s);
    if (!s) return status_no_memory(error, sizeof *s, "the KV cache's worker");
    *s = (struct sealer){.cache = cache, .most = most};
    s->jobs = calloc(most, sizeof *s->jobs);
    s->rows = calloc(2 * PAGE_TOKENS * (size_t)cache->shape.head_dim, sizeof *s->rows);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (s->jobs && s->rows && !start(s)) {
        *sealer = s;
        return TERSE_OK;
    }
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free(s->jobs);
    free(s->rows);
    free(s);
    return status_fail(error, TERSE_E_MEMORY, "the system refused a thread for the KV cache's worker");
}

void sealer_free(struct sealer *sealer) {
    if (!sealer) return;
    pthread_mutex_lock(&sealer->mutex);
    sealer->stop = true;
    pthread_cond_broadcast(&sealer->changed);
    pthread_mutex_unlock(&sealer->mutex);
    pthread_join(sealer->thread, NULL);
    pthread_mutex_destroy(&sealer->mutex);
    pthread_cond_destroy(&sealer->changed);
    free(sealer->jobs);
    free(sealer->rows);
    free(sealer);
}

void sealer_post(struct sealer *sealer, const struct set *set, const uint8_t *window) {
    pthread_mutex_lock(&sealer->mutex);
    sealer->jobs[sealer->posted++ % sealer->most] = (struct job){*set, window};
    pthread_cond_broadcast(&sealer->changed);
    pthread_mutex_unlock(&sealer->mutex);
}

void sealer_wait(struct sealer *sealer, size_t left) {
    if (!sealer) return;
    pthread_mutex_lock(&sealer->mutex);
    while (sealer->posted - sealer->done > left) pthread_cond_wait(&sealer->changed, &sealer->mutex);
    pthread_mutex_unlock(&sealer->mutex);
}
