#include "slot_view.h"

#include "console.h"

#include <stdlib.h>
#include <string.h>

bool slot_views_init(struct slot_views *views, uint32_t n) {
    *views = (struct slot_views){.n = n, .of = calloc(n, sizeof *views->of)};
    pthread_mutex_init(&views->lock, NULL);
    return views->of != NULL;
}

void slot_views_free(struct slot_views *views) {
    pthread_mutex_destroy(&views->lock);
    free(views->of);
}

/* Writes a view; with `parts` also those of the tokens, which takes longer than all the rest. */
static void write_view(struct slot_view *view, const struct generation *g, bool parts) {
    view->state = g->state;
    memcpy(view->task, g->task->id, sizeof view->task);
    view->prompt = g->prompt->n;
    view->read = g->read;
    view->cached = g->cached;
    view->tokens = g->tokens;
    view->cache = (struct terse_cache_report){0};
    if (!g->session) return;
    terse_session_cache(g->session, &view->cache);
    if (parts) terse_session_map(g->session, view->parts, SLOT_PARTS);
}

void slot_views_write(struct slot_views *views, const struct slots *slots, const struct terse_engine *engine) {
    double now = console_seconds();
    if (!views->stale && now - views->written < 0.05) return;
    bool parts = views->stale || now - views->written_with_parts >= 0.25;
    pthread_mutex_lock(&views->lock);
    views->kv_bytes = terse_engine_kv_bytes(engine);
    for (uint32_t i = 0; i < slots->n; i++) {
        const struct generation *g = slots->of[i];
        if (g)
            write_view(&views->of[i], g, parts);
        else
            views->of[i].state = views->of[i].task[0] ? GENERATION_DONE : GENERATION_QUEUED;
    }
    pthread_mutex_unlock(&views->lock);
    views->written = now;
    if (parts) views->written_with_parts = now;
    views->stale = false;
}

void slot_views_write_last(struct slot_views *views, const struct slots *slots, const struct generation *g) {
    struct slot_view *view = &views->of[slots_find(slots, g)];
    pthread_mutex_lock(&views->lock);
    write_view(view, g, true);
    view->state = GENERATION_DONE;
    pthread_mutex_unlock(&views->lock);
    views->stale = true;
}

uint64_t slot_views_read(struct slot_views *views, struct slot_view *copies) {
    pthread_mutex_lock(&views->lock);
    memcpy(copies, views->of, views->n * sizeof *copies);
    uint64_t kv_bytes = views->kv_bytes;
    pthread_mutex_unlock(&views->lock);
    return kv_bytes;
}
