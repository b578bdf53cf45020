#include "scheduler.h"

#include "console.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A turn records when a client last began a reply, so that clients take turns; the oldest is forgotten first. */
enum { TURNS = 64 };
struct turn {
    uint64_t client, number; /* number 0: none */
};

struct scheduler {
    struct scheduler_options options;
    pthread_t thread;

    pthread_mutex_t lock; /* of what stands below until the next empty line */
    pthread_cond_t changed;
    struct task *arrived, *newest; /* a list: submitted, not yet seen by the thread */
    uint32_t waiting;              /* tasks that have not begun, there and in `queue` */
    bool stopping, idle;
    bool saved;              /* a session has come back from the saver */
    struct slot_view *views; /* [slots] */
    uint64_t kv_bytes;       /* terse_engine_kv_bytes */

    /* The thread's own */
    struct task *queue;        /* in the order of arrival */
    struct generation **slots; /* [slots], NULL: free */
    struct terse_step_item *items;
    struct turn turns[TURNS];
    uint64_t newest_turn;
    double looked;          /* when views were last written */
    double looked_at_parts; /* and with the parts of the tokens */
    bool views_stale;       /* a slot was taken or left since */
    struct saver *saver;    /* NULL: there is no store */
    uint32_t saving;        /* sessions that are with it */
    bool blocked;           /* the queue's next task had no room in the budget; until a reply ends */
};

/* ---- The queue */

enum scheduler_answer scheduler_submit(struct scheduler *s, struct task *task) {
    enum scheduler_answer answer = SCHEDULER_TAKEN;
    pthread_mutex_lock(&s->lock);
    if (s->stopping) {
        answer = SCHEDULER_STOPPING;
    } else if (s->waiting >= s->options.queue) {
        answer = SCHEDULER_FULL;
    } else {
        s->waiting++;
        s->idle = false;
        if (s->arrived)
            s->newest->next = task;
        else
            s->arrived = task;
        s->newest = task;
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return answer;
}

static uint32_t active(const struct scheduler *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->options.slots; i++) n += s->slots[i] != NULL;
    return n;
}

/* Returns whether a slot's generation takes part in steps. */
static bool runs(const struct generation *g) {
    return g && g->session && (g->state == GENERATION_READING || g->state == GENERATION_WRITING);
}

static uint32_t running(const struct scheduler *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->options.slots; i++) n += runs(s->slots[i]);
    return n;
}

/* Sleeps while there is nothing to do. False: it is over. */
static bool wait_for_work(struct scheduler *s) {
    bool busy = s->queue || active(s), only_saves = s->saving && !running(s); /* for the rest there was no room */
    pthread_mutex_lock(&s->lock);
    while (only_saves ? !s->saved && !s->arrived : !busy && !s->arrived && !s->stopping) {
        s->idle = !busy;
        pthread_cond_wait(&s->changed, &s->lock);
    }
    s->saved = false;
    struct task **end = &s->queue;
    while (*end) end = &(*end)->next;
    *end = s->arrived;
    s->arrived = s->newest = NULL;
    bool over = s->stopping && !s->queue && !busy && !s->saving;
    s->idle = over;
    pthread_mutex_unlock(&s->lock);
    return !over;
}

static void leave_queue(struct scheduler *s, struct task *task) {
    struct task **at = &s->queue;
    while (*at != task) at = &(*at)->next;
    *at = task->next;
    task->next = NULL;
}

static void no_longer_waits(struct scheduler *s) {
    pthread_mutex_lock(&s->lock);
    s->waiting--;
    pthread_mutex_unlock(&s->lock);
}

/* ---- Ends */

/* `parts`: those of the tokens, too, which takes longer than all the rest. */
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

/* The generation has one. */
static uint32_t slot_of(const struct scheduler *s, const struct generation *g) {
    uint32_t i = 0;
    while (s->slots[i] != g) i++;
    return i;
}

static void leave_slot(struct scheduler *s, struct generation *g) {
    uint32_t slot = slot_of(s, g);
    pthread_mutex_lock(&s->lock);
    if (g->state != GENERATION_SAVING) write_view(&s->views[slot], g, true); /* else that was done */
    s->views[slot].state = GENERATION_DONE;                                  /* before the client has the end of its reply */
    s->slots[slot] = NULL;
    pthread_mutex_unlock(&s->lock);
    if (g->saving) g->saving->owner = NULL;
    g->saving = NULL;
    s->views_stale = true;
    s->blocked = false;
    g->task->running--;
}

static bool in_queue(const struct scheduler *s, const struct task *task) {
    for (const struct task *t = s->queue; t; t = t->next)
        if (t == task) return true;
    return false;
}

/* Ends all of a task, whatever it is doing. What is being saved comes back to nobody. */
static void drop_task(struct scheduler *s, struct task *task) {
    if (in_queue(s, task)) leave_queue(s, task);
    if (!task->next_prompt) no_longer_waits(s);
    for (uint32_t i = 0; i < s->options.slots; i++)
        if (s->slots[i] && s->slots[i]->task == task) leave_slot(s, s->slots[i]);
    task_free(task);
}

static void fail_task(struct scheduler *s, struct task *task, int status, const char *message) {
    struct api_error error = {0};
    api_fail(&error, status, NULL, NULL, "%s", message);
    reply_fail(task, &error);
    drop_task(s, task);
}

static int http_status(enum terse_status status) {
    switch (status) {
    case TERSE_E_ARGUMENT:
    case TERSE_E_CONTEXT:
    case TERSE_E_UNSUPPORTED: return 400;
    case TERSE_E_MEMORY: return 503;
    default: return 500;
    }
}

static void fail_with(struct scheduler *s, struct task *task, const struct terse_error *error) {
    fail_task(s, task, http_status(error->code), error->message);
}

/* All has been written, and kept. */
static void finish_generation(struct scheduler *s, struct generation *g) {
    struct task *task = g->task;
    leave_slot(s, g);
    generation_stop(g);
    if (++task->done < task->n_generations) return;
    metrics_observe(s->options.metrics, METRICS_REQUEST, console_seconds() - task->arrived);
    reply_end(task);
    drop_task(s, task);
}

/* Gives the session away to be saved; its end is told when it has come back, so that what a client has heard the end of is there after a kill. */
static bool save(struct scheduler *s, struct generation *g) {
    size_t n = terse_session_length(g->session), n_prompt = g->prompt->n;
    if (!s->saver || n < n_prompt || g->written.n < (n - n_prompt) * sizeof(int32_t)) return false;
    struct saving *saving = malloc(sizeof *saving);
    int32_t *tokens = malloc(n * sizeof *tokens);
    if (!saving || !tokens) {
        free(saving);
        free(tokens);
        return false;
    }
    memcpy(tokens, g->prompt->tokens, n_prompt * sizeof *tokens);
    if (n > n_prompt) memcpy(tokens + n_prompt, g->written.bytes, (n - n_prompt) * sizeof *tokens);
    terse_session_allow_any_text(g->session); /* what it was bound to is over, and cannot be saved */
    *saving = (struct saving){.session = g->session, .tokens = tokens, .n = n, .owner = g};
    pthread_mutex_lock(&s->lock);
    write_view(&s->views[slot_of(s, g)], g, true);
    pthread_mutex_unlock(&s->lock);
    g->session = NULL;
    g->saving = saving;
    g->state = GENERATION_SAVING;
    s->saving++;
    saver_give(s->saver, saving);
    return true;
}

static void take_saved(struct scheduler *s) {
    struct saving *saving;
    while (s->saving && (saving = saver_take(s->saver))) {
        struct generation *g = saving->owner;
        s->saving--;
        s->blocked = false; /* its pages are free */
        terse_session_free(saving->session);
        free(saving->tokens);
        free(saving);
        if (!g) continue;
        g->saving = NULL;
        finish_generation(s, g);
    }
}

/* A chat's next turn begins with this one. Where there is no memory to keep it, it is read again. */
static void end_generation(struct scheduler *s, struct generation *g) {
    struct terse_error error;
    reply_piece(g);
    if (g->task->request.use_prefix && g->choice == 0) {
        (void)terse_engine_keep_prefix(s->options.engine, g->session, &error);
        if (save(s, g)) return;
    }
    finish_generation(s, g);
}

static void cancel(struct scheduler *s, struct task *task) {
    metrics_add(s->options.metrics, &s->options.metrics->cancelled, 1);
    drop_task(s, task);
}

static void drop_gone(struct scheduler *s) {
    for (struct task *task = s->queue, *next; task; task = next) {
        next = task->next;
        if (exchange_gone(task->exchange)) cancel(s, task);
    }
    for (uint32_t i = 0; i < s->options.slots; i++)
        if (s->slots[i] && exchange_gone(s->slots[i]->task->exchange)) cancel(s, s->slots[i]->task);
}

/* ---- Parking: where the budget has no room for the next pages of all, the newest give theirs back, and read again when another has ended */

static enum terse_status preempt(struct scheduler *s, struct generation *g, struct terse_error *error) {
    enum terse_status status = generation_preempt(g, error);
    if (status) return status;
    s->blocked = true;
    s->views_stale = true;
    metrics_add(s->options.metrics, &s->options.metrics->preempted, 1);
    return TERSE_OK;
}

/* Returns whether reply a began after b; of two replies to one prompt the later index is the newer. */
static bool is_newer(const struct generation *a, const struct generation *b) {
    return a->began > b->began || (a->began == b->began && a->index > b->index);
}

/* NULL: none does. */
static struct generation *newest_running(const struct scheduler *s) {
    struct generation *newest = NULL;
    for (uint32_t i = 0; i < s->options.slots; i++) {
        struct generation *g = s->slots[i];
        if (runs(g) && (!newest || is_newer(g, newest))) newest = g;
    }
    return newest;
}

static struct generation *oldest_preempted(const struct scheduler *s) {
    struct generation *oldest = NULL;
    for (uint32_t i = 0; i < s->options.slots; i++) {
        struct generation *g = s->slots[i];
        if (g && g->state == GENERATION_PREEMPTED && (!oldest || is_newer(oldest, g))) oldest = g;
    }
    return oldest;
}

/* Makes room for the older ones, or waits until one that is being saved does. False: there is but one, to which all the room belongs already. */
static bool park_newest(struct scheduler *s) {
    struct terse_error error;
    if (running(s) < 2 && !s->saving) return false;
    struct generation *g = newest_running(s);
    if (preempt(s, g, &error)) fail_with(s, g->task, &error);
    return true;
}

/* ---- Beginnings */

static size_t running_of(const struct scheduler *s, uint64_t client) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->options.slots; i++) n += s->slots[i] && s->slots[i]->task->client == client;
    return n;
}

static uint64_t turn_of(const struct scheduler *s, uint64_t client) {
    for (size_t i = 0; i < TURNS; i++)
        if (s->turns[i].number && s->turns[i].client == client) return s->turns[i].number;
    return 0;
}

static void take_turn(struct scheduler *s, uint64_t client) {
    size_t at = 0;
    for (size_t i = 0; i < TURNS; i++) {
        if (s->turns[i].number < s->turns[at].number) at = i;
        if (!s->turns[i].number || s->turns[i].client != client) continue;
        at = i;
        break;
    }
    s->turns[at] = (struct turn){client, ++s->newest_turn};
}

/* Returns whether task `a` goes before the older task `b`. Clients with fewer running replies go first, then those who have not begun one for longer;
 * of one client's tasks, the one with fewer running replies. */
static bool goes_before(const struct scheduler *s, const struct task *a, const struct task *b) {
    if (a->client == b->client) return a->running < b->running;
    size_t running_a = running_of(s, a->client), running_b = running_of(s, b->client);
    if (running_a != running_b) return running_a < running_b;
    return turn_of(s, a->client) < turn_of(s, b->client);
}

static struct task *next_in_turn(const struct scheduler *s) {
    struct task *best = s->queue;
    for (struct task *task = best ? best->next : NULL; task; task = task->next)
        if (goes_before(s, task, best)) best = task;
    return best;
}

static enum terse_status open_session(struct scheduler *s, struct generation *g, struct terse_error *error) {
    const struct request *r = &g->task->request;
    struct terse_engine *engine = s->options.engine;
    if (!r->use_prefix || generation_logs_prompt(g)) return terse_session_new(engine, &s->options.session, &g->session, error);
    return terse_session_new_with_prefix(engine, &s->options.session, g->prompt->tokens, g->prompt->n, &g->session, &g->cached,
                                         error);
}

static enum terse_status open_and_begin(struct scheduler *s, struct generation *g, struct terse_error *error) {
    enum terse_status status = g->session ? TERSE_OK : open_session(s, g, error);
    return status ? status : generation_begin_prompt(g, error);
}

static bool waits_for(const struct generation *g, const struct generation *reader) {
    return g != reader && g->prompt == reader->prompt && g->state == GENERATION_READING && !g->session;
}

/* A generation of the prompt has read it: others that wait for that go on from there, or are preempted where there is no room for them yet. */
static enum terse_status share_prompt(struct scheduler *s, struct generation *reader, struct terse_error *error) {
    struct task *task = reader->task;
    for (size_t i = 0; i < task->n_generations; i++) {
        struct generation *g = &task->generations[i];
        if (!waits_for(g, reader)) continue;
        enum terse_status status = terse_session_fork(reader->session, &g->session, error);
        if (!status) status = generation_copy_logs(g, reader, error);
        if (status && status != TERSE_E_MEMORY) return status;
        if (status) {
            if ((status = preempt(s, g, error))) return status;
            continue;
        }
        g->cached = reader->cached;
        g->read = reader->read;
        if ((status = generation_start(g, error))) return status;
    }
    return generation_start(reader, error);
}

static void take_slots(struct scheduler *s, struct generation *first, size_t n) {
    for (uint32_t i = 0; n && i < s->options.slots; i++) {
        if (s->slots[i]) continue;
        s->slots[i] = first;
        first->state = GENERATION_READING;
        first->began = console_seconds();
        first->task->running++;
        first++;
        n--;
    }
    s->views_stale = true;
}

/* Back into the queue: the budget has no room while others run. */
static void put_back(struct scheduler *s, struct generation *first, size_t n) {
    for (size_t i = 0; i < n; i++) {
        leave_slot(s, &first[i]);
        terse_session_free(first[i].session);
        first[i].session = NULL;
        first[i].cached = first[i].read = 0;
        first[i].state = GENERATION_QUEUED;
    }
    s->blocked = true;
}

/* The prompt was read: its replies begin. One without tokens has ended by then, and an echoed prompt is sent. Another question about the same
 * text begins with the prompt as it is now: when a reply is there, what came before it may have left the window. */
static void start_writing(struct scheduler *s, struct generation *reader) {
    struct task *task = reader->task;
    struct generation *first = reader - reader->choice;
    struct terse_error error;
    size_t n = (size_t)task->request.n, left = task->n_generations - task->done;
    if (task->request.use_prefix) (void)terse_engine_keep_prefix(s->options.engine, reader->session, &error);
    if (share_prompt(s, reader, &error)) {
        fail_with(s, task, &error);
        return;
    }
    for (size_t i = 0; i < n && left; i++) { /* the task ends with the last one */
        struct generation *g = &first[i];
        if (g->state != GENERATION_WRITING || g->tokens) continue;
        if (g->finish) {
            left--;
            end_generation(s, g);
        } else if (g->text.n) {
            reply_piece(g);
        }
    }
}

static void count_prompt(struct scheduler *s, const struct generation *g) {
    struct metrics *m = s->options.metrics;
    metrics_add(m, &m->prompts, 1);
    metrics_add(m, &m->prefix_hits, g->cached > 0);
    metrics_add(m, &m->prompt_tokens, g->prompt->n);
    metrics_add(m, &m->cached_tokens, g->cached);
}

static void count_token(struct scheduler *s, const struct generation *g) {
    struct metrics *m = s->options.metrics;
    metrics_add(m, &m->written_tokens, 1);
    if (g->waited > 0)
        metrics_observe(m, METRICS_NEXT_TOKEN, g->waited);
    else
        metrics_observe(m, METRICS_FIRST_TOKEN, g->first_token - g->task->arrived);
}

static void show(struct scheduler *s);

/* Begins the next prompt of the task. False: nothing more can begin now. */
static bool begin(struct scheduler *s, struct task *task) {
    size_t n = (size_t)task->request.n, free_slots = s->options.slots - active(s);
    struct generation *first = &task->generations[task->next_prompt * n];
    struct terse_error error;
    if (free_slots < n) return false;
    take_turn(s, task->client);
    take_slots(s, first, n);
    enum terse_status status = open_and_begin(s, first, &error);
    if (status == TERSE_E_MEMORY && active(s) > n) {
        put_back(s, first, n);
        return false;
    }
    if (task->next_prompt + 1 == task->request.n_prompts) leave_queue(s, task);
    if (task->next_prompt++ == 0) {
        no_longer_waits(s);
        metrics_observe(s->options.metrics, METRICS_QUEUE, first->began - task->arrived);
    }
    if (status) {
        fail_with(s, task, &error);
        return true;
    }
    count_prompt(s, first);
    show(s); /* who has read that the reply begins may look for its slot */
    for (size_t i = 0; i < n; i++) reply_begin(&first[i]);
    return true;
}

static void refuse_queued(struct scheduler *s) {
    for (struct task *task = s->queue, *next; task; task = next) {
        next = task->next;
        if (!task->next_prompt) fail_task(s, task, 503, "the server is stopping");
    }
}

/* The reply that a call failed for ends: full context, and memory that is full of it alone, cut it short. */
static void end_at_fault(struct scheduler *s, struct generation *g, enum terse_status status, const struct terse_error *error) {
    if ((status != TERSE_E_CONTEXT && status != TERSE_E_MEMORY) || !generation_started(g)) {
        fail_with(s, g->task, error);
        return;
    }
    g->piece = g->text.n; /* its newest token was sent */
    g->logs_piece = g->n_logs;
    generation_finish(g, FINISH_LENGTH);
    end_generation(s, g);
}

/* Resumes preempted replies before any waiting task begins: they have waited longer. One that does not fit though nobody else runs never will. */
static void resume_preempted(struct scheduler *s) {
    struct generation *g;
    if (!running(s) && !s->saving) s->blocked = false;
    while (!s->blocked && (g = oldest_preempted(s))) {
        struct terse_error error;
        enum terse_status status = open_and_begin(s, g, &error);
        if (!status) {
            g->state = GENERATION_READING;
            s->views_stale = true;
        } else if (status == TERSE_E_MEMORY && (running(s) || s->saving)) {
            if (!generation_started(g)) (void)generation_preempt(g, &error); /* the session that was opened */
            s->blocked = true;
        } else {
            end_at_fault(s, g, status, &error);
        }
    }
}

static void admit(struct scheduler *s) {
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    pthread_mutex_unlock(&s->lock);
    if (stopping) refuse_queued(s);
    resume_preempted(s);
    while (!s->blocked) {
        struct task *task = next_in_turn(s);
        if (!task || !begin(s, task)) return;
    }
}

/* ---- Steps */

/* Chooses a token for every reply that is being written; those that go on become the step's items, and so do prompts that are being read. */
static size_t choose_tokens(struct scheduler *s) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->options.slots; i++) {
        struct generation *g = s->slots[i];
        struct terse_error error;
        if (!g || g->state != GENERATION_WRITING || g->chosen) continue;
        if (generation_next(g, &error)) {
            fail_with(s, g->task, &error);
            continue;
        }
        count_token(s, g);
        if (g->finish)
            end_generation(s, g);
        else
            reply_piece(g);
    }
    for (uint32_t i = 0; i < s->options.slots; i++) {
        struct generation *g = s->slots[i];
        if (!runs(g)) continue;
        s->items[n] = (struct terse_step_item){.session = g->session};
        if (g->state == GENERATION_WRITING) {
            s->items[n].tokens = &g->next;
            s->items[n].n = 1;
            g->chosen = false;
        }
        n++;
    }
    return n;
}

static struct generation *generation_of(const struct scheduler *s, const struct terse_session *session) {
    for (uint32_t i = 0; i < s->options.slots; i++)
        if (s->slots[i] && s->slots[i]->session == session) return s->slots[i];
    return NULL;
}

/* Takes those out of the step that have ended, or were preempted. */
static size_t without_ended(struct scheduler *s, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (runs(generation_of(s, s->items[i].session))) s->items[kept++] = s->items[i];
    return kept;
}

/* Takes note of how far a step has read a prompt; the reply to one that was read to its end begins. */
static void look_at_prompt(struct scheduler *s, const struct terse_step_item *item, const struct terse_error *error) {
    struct generation *g = generation_of(s, item->session); /* NULL: its task ended with another's prompt */
    struct terse_error own;
    uint64_t done, total;
    if (!g || g->state != GENERATION_READING) return;
    if (item->status) {
        if (item->status != TERSE_E_MEMORY || (running(s) < 2 && !s->saving) || preempt(s, g, &own))
            end_at_fault(s, g, item->status, error);
        return;
    }
    terse_session_prompt(g->session, &done, &total);
    g->read = g->prompt->n;
    if (total) g->read = g->cached + (size_t)((double)(g->prompt->n - g->cached) * (double)done / (double)total);
    if (total) return;
    if (generation_started(g))
        g->state = GENERATION_WRITING;
    else
        start_writing(s, g);
}

static void step(struct scheduler *s, size_t n) {
    struct terse_error error;
    while (n && terse_engine_step(s->options.engine, s->items, n, &error)) {
        size_t at = 0;
        while (at < n && !s->items[at].status) at++;
        struct generation *at_fault = at < n ? generation_of(s, s->items[at].session) : newest_running(s);
        if (error.code != TERSE_E_MEMORY || !park_newest(s)) end_at_fault(s, at_fault, error.code, &error);
        n = without_ended(s, n);
    }
    for (size_t i = 0; i < n; i++) look_at_prompt(s, &s->items[i], &error);
}

/* ---- Looking */

static void show(struct scheduler *s) {
    double now = console_seconds();
    if (!s->views_stale && now - s->looked < 0.05) return;
    bool parts = s->views_stale || now - s->looked_at_parts >= 0.25;
    pthread_mutex_lock(&s->lock);
    s->kv_bytes = terse_engine_kv_bytes(s->options.engine);
    for (uint32_t i = 0; i < s->options.slots; i++) {
        if (s->slots[i] && s->slots[i]->state == GENERATION_SAVING) continue; /* its session is away */
        if (s->slots[i])
            write_view(&s->views[i], s->slots[i], parts);
        else
            s->views[i].state = s->views[i].task[0] ? GENERATION_DONE : GENERATION_QUEUED;
    }
    pthread_mutex_unlock(&s->lock);
    s->looked = now;
    if (parts) s->looked_at_parts = now;
    s->views_stale = false;
}

void scheduler_look(struct scheduler *s, struct slot_view *views, struct metrics_state *state) {
    pthread_mutex_lock(&s->lock);
    memcpy(views, s->views, s->options.slots * sizeof *views);
    *state = (struct metrics_state){.slots = s->options.slots, .waiting = s->waiting, .kv_bytes = s->kv_bytes};
    pthread_mutex_unlock(&s->lock);
}

/* ---- The thread */

static void wake(void *scheduler) {
    struct scheduler *s = scheduler;
    pthread_mutex_lock(&s->lock);
    s->saved = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *run(void *scheduler) {
    struct scheduler *s = scheduler;
    while (wait_for_work(s)) {
        take_saved(s);
        drop_gone(s);
        admit(s);
        size_t n = choose_tokens(s);
        show(s);
        step(s, n);
    }
    return NULL;
}

static void free_memory(struct scheduler *s) {
    saver_stop(s->saver);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s->views);
    free(s->slots);
    free(s->items);
    free(s);
}

enum terse_status scheduler_start(const struct scheduler_options *options, struct scheduler **scheduler,
                                  struct terse_error *error) {
    struct terse_session *session;
    *scheduler = NULL;
    /* Options that no session can be made with are found before anyone asks. */
    enum terse_status status = terse_session_new(options->engine, &options->session, &session, error);
    if (status) return status;
    terse_session_free(session);
    struct scheduler *s = calloc(1, sizeof *s);
    if (s) {
        s->options = *options;
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->changed, NULL);
        s->views = calloc(options->slots, sizeof *s->views);
        s->slots = calloc(options->slots, sizeof *s->slots);
        s->items = calloc(options->slots, sizeof *s->items);
    }
    if (s && options->store) s->saver = saver_start(options->store, wake, s);
    bool ready = s && s->views && s->slots && s->items && (s->saver || !options->store);
    if (ready && pthread_create(&s->thread, NULL, run, s) == 0) {
        *scheduler = s;
        return TERSE_OK;
    }
    if (s) free_memory(s);
    *error = (struct terse_error){.code = TERSE_E_MEMORY, .offset = TERSE_NO_OFFSET, .message = "no memory for the scheduler"};
    return TERSE_E_MEMORY;
}

void scheduler_stop(struct scheduler *s) {
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

bool scheduler_idle(struct scheduler *s) {
    pthread_mutex_lock(&s->lock);
    bool idle = s->idle;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

void scheduler_wait(struct scheduler *s) { pthread_join(s->thread, NULL); }

void scheduler_free(struct scheduler *s) {
    if (s) free_memory(s);
}
