/* Measures all candidates alike: speeds one after another, each by turns with f16's; divergences side by side, so that whenever the
 * time is over all of them have read the same text. */
#include "tune.h"

#include "codebooks.h"
#include "speed.h"

#include <terse_choice.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WINDOWS = 2,
    WINDOW = 5120, /* tokens, half of them a prompt: longer than what terse-N fits itself to */
    REPEATS = 3,
    STEPS = 8, /* of a repeat */
    ADDED = 1 + REPEATS * STEPS
};

enum terse_status tune_add(struct tune *t, const char *method, int *status, struct terse_error *error) {
    struct tune_candidate *c = &t->candidates[t->n];
    struct setup *setup = t->setup;
    struct terse_cache_report report;
    *status = EXIT_OK;
    *c = (struct tune_candidate){.row.method = c->name};
    snprintf(c->name, sizeof c->name, "%s", method);
    setup->method = c->name;
    c->options = setup_session_options(setup);
    enum terse_status failed = setup_try_cache(setup, error);
    if (failed) return failed;
    *status = codebooks_provide(setup, &c->options);
    if (*status != EXIT_OK) return TERSE_OK;
    failed = setup_cache_bytes(setup, &c->options.cache, t->context, &report, error);
    if (!failed) failed = terse_cache_peak(setup->model, setup_device(setup), &c->options.cache, t->context, &c->row.peak, error);
    if (failed) return failed;
    c->row.bytes = report.resident;
    c->row.bits = report.bits_per_value;
    c->codes = report.codes > 0;
    t->n++;
    return TERSE_OK;
}

/* ---- Speed */

static int open_session(const struct tune *t, const struct tune_candidate *c, struct terse_session **session) {
    struct terse_session_options options = c->options;
    struct terse_error error;
    options.context = t->context;
    return terse_session_new(t->setup->engine, &options, session, &error) == TERSE_OK ? EXIT_OK : complain_error(&error);
}

static int time_steps(const struct speed_batch *one, const int32_t *tokens, struct speed_samples *samples) {
    double begin = speed_begin(one);
    int status = speed_decode(one, tokens, STEPS);
    if (status == EXIT_OK) speed_end(one, begin, STEPS, samples);
    return status;
}

/* Fills the cache, and takes a step that is not timed: it touches weights and grows buffers. */
static int prepare(const struct tune *t, const struct speed_batch *one, const int32_t *tokens) {
    int status = speed_fill(one->items[0].session, t->context - ADDED, 1);
    return status == EXIT_OK ? speed_decode(one, tokens, 1) : status;
}

/* Times a candidate by turns with f16, so that other load on the machine affects both; the fastest repeats are compared. */
static int time_beside(struct tune *t, const struct speed_batch *half, struct tune_candidate *c, const int32_t *tokens,
                       double until) {
    struct speed_samples *own = calloc(2, sizeof *own), *base = own + 1;
    struct terse_step_item item = {0};
    const struct speed_batch one = {t->setup->engine, &item, 1};
    int status = own ? open_session(t, c, &item.session) : complain("no memory for the samples");
    if (status == EXIT_OK) status = prepare(t, half, tokens);
    if (status == EXIT_OK) status = prepare(t, &one, tokens);
    for (int i = 0; i < REPEATS && status == EXIT_OK && (!i || console_seconds() < until); i++) {
        status = time_steps(half, tokens, base);
        if (status == EXIT_OK) status = time_steps(&one, tokens, own);
    }
    if (status == EXIT_OK) {
        struct front_row *f16 = &t->candidates[0].row;
        c->row.rate = speed_fastest(own);
        c->row.speed = c->row.rate / speed_fastest(base);
        c->row.attention = own->attention > 0 ? base->attention / own->attention : 0; /* a GPU does not tell */
        f16->rate = fmax(f16->rate, speed_fastest(base));
    }
    terse_session_free(item.session);
    free(own);
    return status;
}

int tune_speed(struct tune *t, double seconds) {
    int32_t tokens[STEPS];
    struct terse_step_item item = {0};
    const struct speed_batch half = {t->setup->engine, &item, 1};
    double until = console_seconds() + seconds;
    int status = open_session(t, &t->candidates[0], &item.session);
    if (status != EXIT_OK) return status;
    speed_tokens(t->setup->info.vocabulary, tokens, STEPS);
    for (size_t i = 1; i < t->n && status == EXIT_OK && console_seconds() < until; i++) {
        status = time_beside(t, &half, &t->candidates[i], tokens, until);
        if (status == EXIT_OK && !progress_show(NULL, "timing", i, t->n - 1)) status = EXIT_INTERRUPTED;
    }
    progress_clear();
    if (t->candidates[0].row.rate > 0) t->candidates[0].row.speed = 1;
    terse_session_free(item.session);
    return status;
}

/* ---- Divergence */

/* Opens the next cache, that of the n-th candidate, and its scorer. */
static int open_cache(struct tune *t, size_t n) {
    struct windows *w = &t->windows;
    struct terse_session_options options = t->candidates[n].options;
    struct terse_error error;
    const struct scorer_base base = {.kept = n == 0, .scorer = n == 0 ? NULL : w->scorers[0]};
    options.context = w->context;
    options.progress = windows_progress(w);
    w->n_caches = n + 1;
    if (terse_session_new(t->setup->engine, &options, &w->sessions[n], &error) != TERSE_OK) return complain_error(&error);
    return scorer_new(t->setup->info.vocabulary, w->context, w->n, &base, (int)terse_engine_threads(t->setup->engine),
                      &w->scorers[n]);
}

static int choose_windows(struct tune *t, const int32_t *tokens, size_t n, const char *name) {
    struct windows *w = &t->windows;
    *w = (struct windows){.model = t->setup->model, .step = WINDOWS_STEP, .until = t->until};
    w->context = t->context < WINDOW ? t->context : WINDOW;
    if (w->context > n) w->context = (uint32_t)n;
    size_t most = n / w->context < WINDOWS ? n / w->context : WINDOWS;
    return windows_choose(w, tokens, n, most, name);
}

/* Reads the window with f16 alone, and opens as many other caches as there is time for by that. */
static int open_caches(struct tune *t, const int32_t *window) {
    struct windows *w = &t->windows;
    double begin = console_seconds();
    int status = windows_read(w, window);
    double now = console_seconds(), caches = (t->until - now) / fmax(now - begin, 1e-3) - 1;
    for (size_t i = 1; i < t->n && (i == 1 || (double)i <= caches) && status == EXIT_OK; i++) status = open_cache(t, i);
    return status;
}

static int read_window(void *user, const int32_t *window) {
    struct tune *t = user;
    int status = t->windows.window ? EXIT_OK : open_caches(t, window);
    return status == EXIT_OK ? windows_read(&t->windows, window) : status;
}

/* Notes the mean of the first n positions, which all have scored. */
static void note(struct front_row *row, const struct score_totals *totals, uint64_t n) {
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < n; i++) {
        sum += (double)totals->kld_values[i];
        squares += (double)totals->kld_values[i] * (double)totals->kld_values[i];
    }
    struct estimate mean = estimate_mean(sum, squares, n);
    row->positions = n;
    row->divergence = fabs(mean.mean) < 5e-9 ? 0 : fabs(mean.mean); /* the base's 16-bit codes can leave a sum just below 0 */
    row->error = mean.error;
}

static void note_all(struct tune *t) {
    const struct windows *w = &t->windows;
    uint64_t n = UINT64_MAX;
    for (size_t i = 1; i < w->n_caches; i++) {
        uint64_t count = w->scorers[i] ? scorer_totals(w->scorers[i])->count : 0;
        n = count < n ? count : n;
    }
    if (w->n_caches < 2 || !n) return;
    t->candidates[0].row.positions = n;
    for (size_t i = 1; i < w->n_caches; i++) {
        struct terse_cache_report report;
        struct tune_candidate *c = &t->candidates[i];
        terse_session_cache(w->sessions[i], &report);
        if (c->codes && !report.codes)
            remark("without %s: it compresses nothing of a window of %u tokens: give a longer text", c->name, w->context);
        else
            note(&c->row, scorer_totals(w->scorers[i]), n);
    }
}

int tune_divergence(struct tune *t, const int32_t *tokens, size_t n, const char *name) {
    int status = choose_windows(t, tokens, n, name);
    if (status == EXIT_OK) status = open_cache(t, 0);
    if (status == EXIT_OK) status = windows_each(&t->windows, read_window, t);
    progress_clear();
    note_all(t);
    bool over = status == EXIT_INTERRUPTED && !console_interrupted();
    return over ? EXIT_OK : status;
}

void tune_free(struct tune *t) { windows_free(&t->windows); }
