/* Measures one long window, since a rate costs more the more compressed tokens a step reads. It is read exactly to a depth at which
 * caches are used; from there it goes by steps through an f16 cache and one of each rate side by side, so that only the rows of a
 * step are held. */
#include "rate_costs.h"

#include "apart.h"
#include "score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double rates[] = {4, 3, 2, 1.5, 1};
enum {
    RATES = sizeof rates / sizeof rates[0],
    WINDOW = 8192,   /* tokens, to whose first TERSE_FIT_TOKENS_MOST caches fit themselves */
    SCORED_PART = 4, /* the last quarter of the window is scored, the rest is read exactly */
    STEP = 64,       /* tokens */
    LEAST = 256      /* tokens of the window: of fewer the exact first and newest tokens would be most */
};

struct measuring {
    struct setup *setup;
    const struct rate_costs_text *text;
    struct terse_session *exact, *session[RATES];
    uint32_t read, scored; /* tokens of a window */
    int32_t *window;       /* [read + scored] */
    uint32_t vocabulary;
    float *base, *rows; /* [STEP][vocabulary] logits: of f16, of a rate */
    double divergence[STEP];
    size_t n; /* rows of the step */
    double sum[RATES], squares[RATES];
    uint64_t positions;
    uint64_t done, total; /* tokens, of all sessions */
};

/* ---- Rows of a step */

struct rows {
    float *to;
    uint32_t vocabulary;
};

static void take_row(void *user, size_t i, const float *logits) {
    const struct rows *rows = user;
    memcpy(rows->to + i * rows->vocabulary, logits, rows->vocabulary * sizeof *logits);
}

static void compare_rows(void *user) {
    struct measuring *m = user;
    int threads = (int)terse_engine_threads(m->setup->engine);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (size_t i = 0; i < m->n; i++)
        m->divergence[i] = score_divergence(m->base + i * m->vocabulary, m->rows + i * m->vocabulary, m->vocabulary).kld;
}

/* ---- The window */

static bool report(void *user, const char *what, uint64_t done, uint64_t total) {
    const struct measuring *m = user;
    (void)what;
    uint64_t read = (uint64_t)((double)m->read * (double)done / (double)total);
    return progress_show(NULL, "measuring what rates cost", m->done + read, m->total);
}

/* Returns one of the sessions that are measured: the i-th rate's, or f16's at last. */
static struct terse_session *session_at(struct measuring *m, size_t i) { return i < RATES ? m->session[i] : m->exact; }

static enum terse_status read_window(struct measuring *m, struct terse_error *error) {
    for (size_t i = 0; i <= RATES; i++) {
        terse_session_reset(session_at(m, i));
        enum terse_status status = terse_session_prefill(session_at(m, i), m->window, m->read, NULL, error);
        if (status) return status;
        m->done += m->read;
    }
    return TERSE_OK;
}

static enum terse_status step(struct measuring *m, const int32_t *tokens, struct terse_error *error) {
    struct rows base = {m->base, m->vocabulary}, rows = {m->rows, m->vocabulary};
    const struct terse_logits_sink base_sink = {take_row, &base, 0}, sink = {take_row, &rows, 0};
    enum terse_status status = terse_session_decode(m->exact, tokens, m->n, &base_sink, error);
    for (size_t rate = 0; rate < RATES && !status; rate++) {
        if ((status = terse_session_decode(m->session[rate], tokens, m->n, &sink, error))) break;
        run_apart(compare_rows, m);
        for (size_t i = 0; i < m->n; i++) {
            m->sum[rate] += m->divergence[i];
            m->squares[rate] += m->divergence[i] * m->divergence[i];
        }
    }
    m->positions += m->n;
    m->done += m->n * (RATES + 1);
    return status;
}

static enum terse_status measure_window(struct measuring *m, size_t start, struct terse_error *error) {
    bool add_bos;
    int32_t bos = terse_token_bos(m->setup->model, &add_bos);
    memcpy(m->window, m->text->tokens + start, (m->read + m->scored) * sizeof *m->window);
    if (add_bos) m->window[0] = bos;
    enum terse_status status = read_window(m, error);
    for (uint32_t at = 0; at < m->scored && !status; at += (uint32_t)m->n) {
        m->n = m->scored - at < STEP ? m->scored - at : STEP;
        status = step(m, m->window + m->read + at, error);
        if (!status && !progress_show(NULL, "measuring what rates cost", m->done, m->total)) status = TERSE_E_INTERRUPTED;
    }
    return status;
}

/* Returns where the window begins: in the middle of what lies between two windows that were learned from, as terse_calibrate takes
 * them, near the middle of the text; the text's length where there is no room. */
static size_t window_start(const struct measuring *m) {
    const struct rate_costs_text *t = m->text;
    size_t available = t->n / t->learned_window, learned = t->learned_windows, length = m->read + m->scored;
    size_t before = learned / 2;
    size_t begin = (before * available / learned + 1) * t->learned_window;
    size_t end = before + 1 < learned ? (before + 1) * available / learned * t->learned_window : t->n;
    return end >= begin + length ? begin + (end - begin - length) / 2 : t->n;
}

/* ---- All of it */

static enum terse_status open_sessions(struct measuring *m, const struct terse_codebook *profile, struct terse_error *error) {
    struct terse_session_options options = terse_session_options_defaults();
    enum terse_status status = TERSE_OK;
    options.context = m->read + m->scored;
    options.progress = (struct terse_progress){report, m};
    for (size_t i = 0; i <= RATES && !status; i++) {
        char method[32] = "f16";
        if (i < RATES) snprintf(method, sizeof method, "terse-%g", rates[i]);
        options.cache.method = method;
        options.cache.codebook = i < RATES ? profile : NULL;
        status = terse_session_new(m->setup->engine, &options, i < RATES ? &m->session[i] : &m->exact, error);
    }
    return status;
}

static void note(const struct measuring *m, struct terse_codebook *profile) {
    struct terse_rate_cost costs[RATES];
    for (size_t i = 0; i < RATES; i++) {
        struct estimate mean = estimate_mean(m->sum[i], m->squares[i], m->positions);
        costs[i] = (struct terse_rate_cost){(float)rates[i], mean.mean > 0 ? (float)mean.mean : 0, (float)mean.error};
    }
    terse_codebook_set_rate_costs(profile, costs, RATES, m->text->corpus, m->positions, NULL);
}

static int measure(struct measuring *m, struct terse_codebook *profile) {
    struct terse_error error;
    size_t length = m->read + m->scored, row = m->vocabulary;
    m->total = length * (RATES + 1);
    m->window = malloc(length * sizeof *m->window);
    m->base = malloc(STEP * row * sizeof *m->base);
    m->rows = malloc(STEP * row * sizeof *m->rows);
    if (!m->window || !m->base || !m->rows) return complain("no memory for %d rows of %u logits", 2 * STEP, m->vocabulary);
    enum terse_status status = open_sessions(m, profile, &error);
    if (!status) status = measure_window(m, window_start(m), &error);
    progress_clear();
    if (status == TERSE_E_INTERRUPTED) {
        remark("interrupted: the profile is kept without what rates cost");
        return EXIT_OK;
    }
    if (status) return complain_error(&error);
    note(m, profile);
    return EXIT_OK;
}

/* Sets how much of the window is read and scored, by the model's context. */
static void set_window(const struct terse_model_info *model, struct measuring *m) {
    uint32_t length = model->context < WINDOW ? model->context : WINDOW;
    m->scored = length / SCORED_PART;
    m->read = length - m->scored;
}

uint64_t rate_costs_tokens(const struct terse_model_info *model) {
    struct measuring m;
    set_window(model, &m);
    return (uint64_t)(m.read + m.scored) * (RATES + 1);
}

/* Has the CPU measure where the device has no kernels for the model's caches. */
static void choose_device(struct setup *setup) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_cache_report report;
    struct terse_error error;
    options.method = "terse-4";
    if (setup->engine || setup_cache_bytes(setup, &options, 1, &report, &error) != TERSE_E_UNSUPPORTED) return;
    remark("the processor measures what rates cost: %s", error.message);
    setup->device = "cpu";
    setup->gpu_layers = -1;
}

int rate_costs_measure(struct setup *setup, const struct rate_costs_text *text, struct terse_codebook *profile) {
    struct measuring m = {.setup = setup, .text = text, .vocabulary = setup->info.vocabulary};
    set_window(&setup->info, &m);
    if (m.read + m.scored < LEAST || window_start(&m) >= text->n) {
        remark("what rates cost is not measured: the text has no %u tokens in a row that were not learned from", m.read + m.scored);
        return EXIT_OK;
    }
    choose_device(setup);
    int status = setup_engine(setup);
    if (status == EXIT_OK) status = measure(&m, profile);
    for (size_t i = 0; i <= RATES; i++) terse_session_free(session_at(&m, i));
    free(m.window);
    free(m.base);
    free(m.rows);
    return status;
}

void rate_costs_print(const struct terse_codebook *profile) {
    struct terse_codebook_info info;
    terse_codebook_describe(profile, &info);
    if (!info.n_costs) return;
    printf("what rates cost on this model, over %llu tokens of %s that it was not learned from: KL divergence of the next token's\n"
           "probabilities from those with an f16 cache\n",
           (unsigned long long)info.costs_positions, info.costs_corpus);
    for (size_t i = 0; i < info.n_costs; i++)
        printf("  terse-%-4g %.4g +/- %.2g\n", (double)info.costs[i].bits, (double)info.costs[i].divergence,
               (double)info.costs[i].error);
}
