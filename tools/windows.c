/* Owns the order in which caches read a window, and the progress over all windows. */
#include "windows.h"

#include "console.h"

#include <stdlib.h>
#include <string.h>

void windows_free(struct windows *w) {
    for (size_t c = 0; c < w->n_caches; c++) {
        scorer_free(w->scorers[c]);
        terse_session_free(w->sessions[c]);
    }
    w->n_caches = 0;
}

/* ---- The text */

int windows_choose(struct windows *w, const int32_t *tokens, size_t n_tokens, uint64_t most, const char *name) {
    size_t available = n_tokens / w->context;
    w->tokens = tokens;
    if (!available) return complain("%s has %zu tokens, too few for a window of %u; use a smaller -c", name, n_tokens, w->context);
    if (available > INT32_MAX) available = INT32_MAX;
    w->n = most && most < available ? (uint32_t)most : (uint32_t)available;
    w->asked = most;
    return EXIT_OK;
}

int windows_each(struct windows *w, int (*read)(void *user, const int32_t *tokens), void *user) {
    bool add_bos;
    int32_t bos = terse_token_bos(w->model, &add_bos);
    int status = EXIT_OK;
    int32_t *window = malloc(w->context * sizeof *window);
    if (!window) return complain("no memory for a window of %u tokens", w->context);
    if (w->asked > w->n) remark("the text has %u windows of %u tokens only", w->n, w->context);
    for (w->window = 0; w->window < w->n && status == EXIT_OK; w->window++) {
        memcpy(window, w->tokens + (size_t)w->window * w->context, w->context * sizeof *window);
        if (add_bos) window[0] = bos;
        status = read(user, window);
    }
    free(window);
    return status;
}

/* ---- Progress */

/* Shows that so many more tokens are read than w->done. Returns false after an interrupt, or when the time is over. */
static bool show_progress(const struct windows *w, uint64_t more) {
    uint64_t work = (uint64_t)w->context * w->n_caches;
    bool over = w->until > 0 && console_seconds() >= w->until;
    return progress_show(NULL, "scoring", w->window * work + w->done + more, w->n * work) && !over;
}

static size_t prompt_length(const struct windows *w) { return w->paper ? w->context : w->context / 2; }

static bool report_prefill(void *user, const char *what, uint64_t done, uint64_t total) {
    const struct windows *w = user;
    (void)what;
    return show_progress(w, (uint64_t)((double)prompt_length(w) * (double)done / (double)total));
}

struct terse_progress windows_progress(struct windows *w) {
    return (struct terse_progress){report_prefill, w};
}

/* ---- One window */

static int read_prompts(struct windows *w, const int32_t *window) {
    struct terse_error error;
    size_t n = prompt_length(w);
    for (size_t c = 0; c < w->n_caches; c++) terse_session_reset(w->sessions[c]);
    for (size_t c = 0; c < w->n_caches; c++) {
        const struct terse_logits_sink sink = {scorer_row, w->scorers[c], w->context / 2};
        scorer_expect(w->scorers[c], window, 0);
        if (terse_session_prefill(w->sessions[c], window, n, w->paper ? &sink : NULL, &error) != TERSE_OK)
            return complain_error(&error);
        w->done += n;
    }
    return EXIT_OK;
}

/* Feeds the tokens from `at` on, n of them, to one cache after another. Rows of several caches are compared at once, so that only
 * those of one step are held. */
static int take_step(struct windows *w, const int32_t *window, size_t at, size_t n) {
    struct terse_error error;
    int status = EXIT_OK;
    for (size_t c = 0; c < w->n_caches && status == EXIT_OK; c++) {
        const struct terse_logits_sink sink = {scorer_row, w->scorers[c], 0};
        scorer_expect(w->scorers[c], window, at);
        if (terse_session_decode(w->sessions[c], window + at, n, &sink, &error) != TERSE_OK) return complain_error(&error);
        w->done += n;
        if (w->n_caches > 1) status = scorer_flush(w->scorers[c]);
        if (status == EXIT_OK && !show_progress(w, 0)) status = EXIT_INTERRUPTED;
    }
    return status;
}

int windows_read(struct windows *w, const int32_t *window) {
    w->done = 0;
    int status = read_prompts(w, window);
    for (size_t at = prompt_length(w), n; at < w->context && status == EXIT_OK; at += n) {
        n = w->context - at < w->step ? w->context - at : w->step;
        status = take_step(w, window, at, n);
    }
    return status == EXIT_OK && w->n_caches == 1 ? scorer_flush(w->scorers[0]) : status;
}
