#include "saver.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

struct list {
    struct saving *first, **end;
};

struct saver {
    struct store *store;
    void (*done)(void *user);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* of what stands below */
    pthread_cond_t changed;
    struct list given, saved;
    bool stopping;
};

static void list_add(struct list *list, struct saving *saving) {
    saving->next = NULL;
    *list->end = saving;
    list->end = &saving->next;
}

static struct saving *list_take(struct list *list) {
    struct saving *saving = list->first;
    if (!saving) return NULL;
    list->first = saving->next;
    if (!list->first) list->end = &list->first;
    return saving;
}

static void save(struct store *store, struct saving *saving) {
    struct stat about;
    if (!saving->action) {
        store_save(store, saving->session, saving->tokens, saving->n);
        return;
    }
    saving->status = terse_session_save(saving->session, saving->action->path, &saving->error);
    if (!saving->status && stat(saving->action->path, &about) == 0) saving->bytes = (uint64_t)about.st_size;
}

static void *saver_thread(void *user) {
    struct saver *s = user;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        struct saving *saving;
        while (!(saving = list_take(&s->given)) && !s->stopping) pthread_cond_wait(&s->changed, &s->lock);
        if (!saving) break;
        pthread_mutex_unlock(&s->lock);
        save(s->store, saving);
        pthread_mutex_lock(&s->lock);
        list_add(&s->saved, saving);
        pthread_mutex_unlock(&s->lock);
        s->done(s->user);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

struct saver *saver_start(struct store *store, void (*done)(void *user), void *user) {
    struct saver *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    *s = (struct saver){.store = store, .done = done, .user = user};
    s->given.end = &s->given.first;
    s->saved.end = &s->saved.first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&s->thread, NULL, saver_thread, s) == 0) return s;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
    return NULL;
}

void saver_give(struct saver *s, struct saving *saving) {
    pthread_mutex_lock(&s->lock);
    list_add(&s->given, saving);
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

struct saving *saver_take(struct saver *s) {
    if (!s) return NULL;
    pthread_mutex_lock(&s->lock);
    struct saving *saving = list_take(&s->saved);
    pthread_mutex_unlock(&s->lock);
    return saving;
}

void saver_stop(struct saver *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}
