/* Shows the slots to other threads: the scheduler's thread writes the views, any thread reads them. */
#ifndef TERSE_SERVE_SLOT_VIEW_H
#define TERSE_SERVE_SLOT_VIEW_H

#include "slots.h"

#include <pthread.h>

enum { SLOT_PARTS = 96 }; /* in which a slot's tokens are shown */

/* A slot_view is the state of a slot; after a reply, the state that the reply left. */
struct slot_view {
    enum generation_state state;
    char task[48];                 /* the reply's id, "" before the first */
    uint64_t prompt, read, cached; /* tokens of the prompt */
    int64_t tokens;                /* written */
    struct terse_cache_report cache;
    struct terse_token_share parts[SLOT_PARTS];
};

struct slot_views {
    pthread_mutex_t lock; /* of what stands below until the next empty line */
    struct slot_view *of; /* [n] */
    uint64_t kv_bytes;    /* terse_engine_kv_bytes */

    /* These members are the scheduler's own. */
    uint32_t n;
    double written;            /* when views were last written, as console_seconds has it */
    double written_with_parts; /* and with the parts of the tokens */
    bool stale;                /* a slot was taken or left since */
};

/* Makes views of n slots. Returns false when memory is refused. */
bool slot_views_init(struct slot_views *views, uint32_t n);
void slot_views_free(struct slot_views *views);

/* ---- The scheduler's thread */

/* Writes all views, unless they were written a moment ago and are not stale. */
void slot_views_write(struct slot_views *views, const struct slots *slots, const struct terse_engine *engine);
/* Writes the view of a generation that is about to leave its slot, so that the state it leaves is visible before the client has the
 * end of its reply. */
void slot_views_write_last(struct slot_views *views, const struct slots *slots, const struct generation *g);

/* ---- Any thread */

/* Copies all views into copies[n]. Returns the bytes that the engine's caches take. */
uint64_t slot_views_read(struct slot_views *views, struct slot_view *copies);

#endif
