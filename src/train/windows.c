/* Chooses the tokens of each window and its labels, and reports the progress of all windows together. */
#include "train/windows.h"

#include "base/memory.h"
#include "base/random.h"

#include <string.h>

struct passing {
    const struct windows_sink *sink;
    struct terse_progress progress;
    uint64_t before, total; /* windows: run, of all */
};

static void pass_layer(void *user, uint32_t layer, const struct captured *rows) {
    const struct passing *p = user;
    p->sink->layer(p->sink->user, layer, rows);
}

static bool report_window(void *user, const char *what, uint64_t done, uint64_t total) {
    const struct passing *p = user;
    return p->progress.report(p->progress.user, what, p->before * total + done, p->total * total);
}

enum terse_status windows_check(const struct terse_model *model, const struct windows *w, size_t n, struct terse_error *error) {
    if (w->window < 2 || w->window > model->context)
        return status_fail(error, TERSE_E_ARGUMENT, "windows of %u tokens: give 2 to %u, the model's context", w->window,
                           model->context);
    if (n < w->window)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "the text has %zu tokens, too few for a window of %u: give a longer one or smaller windows", n,
                           w->window);
    return TERSE_OK;
}

size_t windows_count(const struct windows *w, size_t n) {
    size_t available = n / w->window;
    return w->most && w->most < available ? w->most : available;
}

enum terse_status windows_run(const struct terse_model *model, const struct windows *w, const int32_t *tokens, size_t n,
                              const struct windows_sink *sink, struct terse_error *error) {
    size_t available = n / w->window, count = windows_count(w, n);
    struct passing p = {sink, w->progress, 0, count};
    struct backward_sink layers = {pass_layer, &p};
    struct terse_progress progress = {w->progress.report ? report_window : NULL, &p};
    struct backward *backward = NULL;
    bool add_bos;
    int32_t bos = terse_token_bos(model, &add_bos);
    int32_t *window = memory_array(w->window, sizeof *window);
    double loss;
    if (!window) return status_no_memory(error, w->window * sizeof *window, "a window");
    const bool looks = !w->gradients && !model->recurrent; /* through recurrent layers the whole model is not run here */
    enum terse_status status = backward_new(w->ops, model, w->window, w->gradients, &progress, &backward, error);
    if (!status && looks) status = backward_look(backward, tokens, w->window, error);
    for (size_t i = 0; i < count && !status; i++) {
        memcpy(window, tokens + i * available / count * w->window, w->window * sizeof *window);
        if (add_bos) window[0] = bos;
        p.before = i;
        sink->begin(sink->user, i);
        if (w->drawn) backward_draw_labels(backward, random_mix(w->seed + (i + 1) * RANDOM_STEP));
        status = backward_run(backward, window, w->window, &layers, &progress, &loss, error);
    }
    backward_free(backward);
    memory_free(window);
    return status;
}
