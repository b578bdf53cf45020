/* Measures perplexity and divergence over windows of a text, in two protocols, against one base: a cache in half precision that
 * reads the first part of the window, by default half, in an exact prefill and the rest in decoding steps.
 *
 * "default" is the protocol of `terse perplexity`: every cache reads the window as the base does. One exact prefill serves all of
 * them. "paper" is `terse perplexity --paper`: every token of the window reads compressed keys and values, its own included. */
#include "fidelity.h"

#include "base/clock.h"
#include "console.h"
#include "fidelity_prefill.h"
#include "fidelity_score.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct window {
    struct fidelity *f;
    uint32_t number;
    int32_t *tokens; /* [context] */
    struct scores *scores;
    const struct run **runs; /* [n_runs]: those in `opened` */
    struct opened *opened;   /* [n_runs] */
    size_t n_opened;
    struct opened lead;
    double prefill_seconds;
};

static size_t prompt_tokens(const struct fidelity *f) { return (size_t)(f->context - f->scored); }

static size_t scored_rows(const struct fidelity *f) { return (size_t)(f->scored - 1); }

static const int32_t *scored_next(const struct window *w) { return w->tokens + prompt_tokens(w->f) + 1; }

static bool is_done(const struct window *w, const struct run *run, const char *protocol) {
    char what[64], key[256];
    snprintf(what, sizeof what, "%s|%u", protocol, w->number);
    return store_has(w->f->store, STORE_PERPLEXITY, fidelity_key(run, what, key, sizeof key));
}

/* ---- Results */

static double mean(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i];
    return sum / (double)n;
}

/* Writes a file name without the characters that some systems refuse. */
static void values_name(const struct window *w, const struct run *run, const char *protocol, char *name, size_t capacity) {
    int length = snprintf(name, capacity, "%s.%s.%u.f32", run->spec, protocol, w->number);
    for (int i = 0; i < length && name[i]; i++)
        if (strchr(":/%= ", name[i])) name[i] = '_';
}

static int add_result(struct window *w, const struct run *run, const char *protocol, const struct terse_session *session,
                      double seconds) {
    size_t n = scored_rows(w->f);
    const float *values = scores_end(w->scores);
    char what[64], key[256], name[160];
    struct terse_cache_report report;
    if (!values) return complain("%s: the logits of window %u are not finite", run->spec, w->number);
    double kld = mean(values + SCORE_KLD * n, n), delta = mean(values + SCORE_DELTA * n, n);
    values_name(w, run, protocol, name, sizeof name);
    int status = store_values(w->f->store, name, values, SCORE_COLUMNS * n);
    if (status != EXIT_OK) return status;
    cJSON *line = fidelity_line(run);
    cJSON_AddStringToObject(line, "protocol", protocol);
    cJSON_AddNumberToObject(line, "window", w->number);
    cJSON_AddNumberToObject(line, "positions", (double)n);
    cJSON_AddStringToObject(line, "values", name);
    cJSON_AddNumberToObject(line, "nll", mean(values + SCORE_NLL * n, n));
    cJSON_AddNumberToObject(line, "log_ratio", delta);
    cJSON_AddNumberToObject(line, "kld", kld);
    cJSON_AddNumberToObject(line, "same_top", mean(values + SCORE_SAME * n, n));
    terse_session_cache(session, &report);
    fidelity_add_report(line, &report);
    cJSON_AddNumberToObject(line, "seconds", seconds);
    snprintf(what, sizeof what, "%s|%u", protocol, w->number);
    status = store_add(w->f->store, STORE_PERPLEXITY, fidelity_key(run, what, key, sizeof key), line);
    progress_clear();
    printf("window %u  %-7s  %-36s  %8.4f bits  ratio %.5f  KLD %.6f  same top %.2f %%  %.1f s\n", w->number, protocol, run->spec,
           report.bits_per_value, exp(delta), kld, 100 * mean(values + SCORE_SAME * n, n), seconds);
    fflush(stdout);
    return status;
}

/* ---- Protocols */

/* Decodes the scored part of the window. */
static int decode_scored(struct window *w, struct terse_session *session, bool base, double *seconds) {
    const struct terse_logits_sink sink = {scores_row, w->scores, 0};
    struct terse_error error;
    size_t context = (size_t)w->f->context, ubatch = (size_t)w->f->ubatch;
    double start = clock_now();
    scores_begin(w->scores, scored_next(w), base);
    for (size_t at = prompt_tokens(w->f), n; at < context; at += n) {
        n = context - at < ubatch ? context - at : ubatch;
        if (terse_session_decode(session, w->tokens + at, n, &sink, &error) != TERSE_OK) return complain_error(&error);
        if (console_interrupted()) return EXIT_INTERRUPTED;
    }
    *seconds = clock_now() - start;
    return EXIT_OK;
}

static int open_steps(struct window *w, bool steps) {
    struct fidelity *f = w->f;
    const struct run exact = {.cache = terse_cache_options_defaults()};
    struct terse_error error;
    struct terse_session_options options = fidelity_session_options(&exact, (uint32_t)f->context);
    if (opened_new(f->engine, &options, &w->lead, &error) != TERSE_OK) return complain_error(&error);
    for (size_t i = 0; steps && i < f->n_runs; i++) {
        if (is_done(w, &f->runs[i], "default")) continue;
        options = fidelity_session_options(&f->runs[i], (uint32_t)f->context);
        if (opened_new(f->engine, &options, &w->opened[w->n_opened], &error) != TERSE_OK) return complain_error(&error);
        w->runs[w->n_opened++] = &f->runs[i];
    }
    double start = clock_now();
    if (prefill_many(&w->lead, w->opened, w->n_opened, w->tokens, prompt_tokens(f), &error) != TERSE_OK)
        return complain_error(&error);
    w->prefill_seconds = clock_now() - start;
    return EXIT_OK;
}

static int run_steps(struct window *w, bool steps) {
    double seconds = 0;
    int status = open_steps(w, steps);
    if (status == EXIT_OK) status = decode_scored(w, w->lead.session, true, &seconds);
    if (status == EXIT_OK && !scores_end(w->scores)) status = complain("the base's logits of window %u are not finite", w->number);
    if (status == EXIT_OK) {
        progress_clear();
        printf("window %u  base   prefill for %zu caches %.1f s, the rest %.1f s\n", w->number, w->n_opened + 1, w->prefill_seconds,
               seconds);
    }
    opened_free(&w->lead);
    for (size_t i = 0; i < w->n_opened; i++) {
        if (status == EXIT_OK) status = decode_scored(w, w->opened[i].session, false, &seconds);
        if (status == EXIT_OK) status = add_result(w, w->runs[i], "default", w->opened[i].session, seconds);
        opened_free(&w->opened[i]);
    }
    w->n_opened = 0;
    return status;
}

static int run_paper(struct window *w, const struct run *run) {
    const struct fidelity *f = w->f;
    const struct terse_logits_sink sink = {scores_row, w->scores, prompt_tokens(f)};
    struct terse_session_options options = fidelity_session_options(run, (uint32_t)f->context);
    struct terse_session *session;
    struct terse_error error;
    options.prefill = TERSE_PREFILL_PAPER;
    if (terse_session_new(f->engine, &options, &session, &error) != TERSE_OK) return complain("%s: %s", run->spec, error.message);
    double start = clock_now();
    scores_begin(w->scores, scored_next(w), false);
    int status = EXIT_OK;
    if (terse_session_prefill(session, w->tokens, (size_t)f->context, &sink, &error) != TERSE_OK) status = complain_error(&error);
    if (status == EXIT_OK) status = add_result(w, run, "paper", session, clock_now() - start);
    terse_session_free(session);
    return status;
}

/* ---- Windows */

static bool has_work(const struct window *w, bool steps, bool paper) {
    for (size_t i = 0; i < w->f->n_runs; i++) {
        if (steps && !is_done(w, &w->f->runs[i], "default")) return true;
        if (paper && !is_done(w, &w->f->runs[i], "paper")) return true;
    }
    return false;
}

static int run_window(struct window *w, bool steps, bool paper) {
    struct fidelity *f = w->f;
    bool add_bos;
    int32_t bos = terse_token_bos(f->model, &add_bos);
    if (!has_work(w, steps, paper)) return EXIT_OK;
    memcpy(w->tokens, f->tokens + (size_t)w->number * (size_t)f->context, (size_t)f->context * sizeof *w->tokens);
    if (add_bos) w->tokens[0] = bos;
    int status = run_steps(w, steps);
    for (size_t i = 0; paper && i < f->n_runs && status == EXIT_OK; i++)
        if (!is_done(w, &f->runs[i], "paper")) status = console_interrupted() ? EXIT_INTERRUPTED : run_paper(w, &f->runs[i]);
    return status;
}

int fidelity_perplexity(struct fidelity *f, bool steps, bool paper) {
    int threads = f->threads ? (int)f->threads : omp_get_num_procs(), status = EXIT_OK;
    struct window w = {.f = f};
    w.tokens = malloc((size_t)f->context * sizeof *w.tokens);
    w.runs = calloc(f->n_runs, sizeof *w.runs);
    w.opened = calloc(f->n_runs, sizeof *w.opened);
    w.scores = scores_new(f->info.vocabulary, scored_rows(f), threads);
    if (!w.tokens || !w.runs || !w.opened || !w.scores) status = complain("no memory for the base's logits of a window");
    for (w.number = 0; w.number < f->windows && status == EXIT_OK; w.number++) status = run_window(&w, steps, paper);
    scores_free(w.scores);
    free(w.opened);
    free(w.runs);
    free(w.tokens);
    return status;
}
