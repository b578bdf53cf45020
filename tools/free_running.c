/* Writes texts from prompts, token by token, with the six sequences of a prompt in one step; scores and compares them. Owns the sequences, the
 * random numbers, and the sums over windows. */
#include "free_running.h"

#include "apart.h"
#include "random.h"
#include "score.h"

#include <terse_choice.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    GREEDY_TOKENS = 256, /* compared at most */
    STEP_TOKENS = 16     /* tokens of a prompt that take about as long as a step of six sequences */
};
enum cache { METHOD, F16, CACHES };
enum role { WRITES, READS, GREEDY, ROLES }; /* READS: what the other cache writes */

/* A sums holds a sum of windows' means, and of their squares. Windows are the independent samples: what a cache writes depends on
 * all that it wrote before. */
struct sums {
    double sum, squares;
};

struct totals {
    uint32_t windows;
    struct sums written_kld, given_kld; /* of the text of the method, and of f16's */
    struct sums written_nll, given_nll; /* of these texts, by f16 */
    struct sums ratio;                  /* of the first less the second */
    struct sums unexpected;   /* of the first less the entropy of f16's distributions there: 0 of what f16 itself would draw */
    struct sums same, prefix; /* of greedy tokens: the part that is equal, and how many are before the first difference */
};

/* These are sums over the positions of the current window. */
struct window {
    double kld[CACHES], nll[CACHES], entropy[CACHES]; /* by the cache that wrote the text; the latter two by f16 */
    size_t same, prefix;
};

struct free_running {
    const struct setup *setup;
    size_t n_prompt, n_tokens, n_greedy;
    uint32_t windows;
    struct terse_session_options options[CACHES];
    struct terse_session *sessions[CACHES][ROLES];
    struct window window;
    struct totals totals;
    uint64_t done; /* of the window in hand: tokens, a step as STEP_TOKENS */
};

/* ---- Progress */

static uint64_t window_work(const struct free_running *f) { return CACHES * f->n_prompt + STEP_TOKENS * f->n_tokens; }

/* Shows that so much more of the window is done than f->done. Returns false after an interrupt. */
static bool show_progress(const struct free_running *f, uint64_t more) {
    uint64_t work = window_work(f);
    return progress_show(NULL, "writing", f->totals.windows * work + f->done + more, f->windows * work);
}

/* Shows the progress of a prefill. */
static bool report_prefill(void *user, const char *what, uint64_t done, uint64_t total) {
    const struct free_running *f = user;
    (void)what;
    return show_progress(f, (uint64_t)((double)f->n_prompt * (double)done / (double)total));
}

/* ---- Sessions */

/* Computes the most bytes that the sequences of one cache hold together: pages of the prompt once, the rest each for itself. */
static enum terse_status count_bytes(const struct free_running *f, enum cache cache, uint64_t *bytes, struct terse_error *error) {
    const struct terse_cache_options *options = &f->options[cache].cache;
    struct terse_cache_report prompt;
    uint64_t most;
    enum terse_status status = setup_cache_bytes(f->setup, options, f->n_prompt, &prompt, error);
    if (!status)
        status = terse_cache_peak(f->setup->model, setup_device(f->setup), options, f->n_prompt + f->n_tokens, &most, error);
    if (status) return status;
    uint64_t own = most > prompt.codes ? most - prompt.codes : 0;
    *bytes = prompt.codes + ROLES * own;
    return TERSE_OK;
}

static int check_budget(const struct free_running *f) {
    uint64_t bytes[CACHES];
    struct terse_error error;
    for (enum cache c = METHOD; c < CACHES; c++)
        if (count_bytes(f, c, &bytes[c], &error) != TERSE_OK) return complain_error(&error);
    if (!f->setup->kv_budget || bytes[METHOD] + bytes[F16] <= f->setup->kv_budget) return EXIT_OK;
    return complain(
        "--free-running holds two caches, of three sequences each: %.1f MiB, and %.1f MiB of f16 beside it, are more than "
        "--kv-budget allows: raise that, or use a smaller -c",
        (double)bytes[METHOD] / 0x1p20, (double)bytes[F16] / 0x1p20);
}

static void free_forks(struct free_running *f) {
    for (enum cache c = METHOD; c < CACHES; c++) {
        for (enum role r = READS; r < ROLES; r++) {
            terse_session_free(f->sessions[c][r]);
            f->sessions[c][r] = NULL;
        }
    }
}

void free_running_free(struct free_running *f) {
    if (!f) return;
    free_forks(f);
    for (enum cache c = METHOD; c < CACHES; c++) terse_session_free(f->sessions[c][WRITES]);
    free(f);
}

int free_running_new(const struct setup *setup, const struct terse_session_options *options, size_t n_prompt, size_t n_tokens,
                     uint32_t windows, struct free_running **free_running) {
    struct terse_error error;
    int status = EXIT_OK;
    *free_running = NULL;
    struct free_running *f = calloc(1, sizeof *f);
    if (!f) return complain("no memory for the texts");
    *f = (struct free_running){.setup = setup, .n_prompt = n_prompt, .n_tokens = n_tokens, .windows = windows};
    f->n_greedy = n_tokens < GREEDY_TOKENS ? n_tokens : GREEDY_TOKENS;
    f->options[METHOD] = *options;
    f->options[F16] = terse_session_options_defaults();
    f->options[F16].context = options->context;
    f->options[F16].allow_longer_context = options->allow_longer_context;
    for (enum cache c = METHOD; c < CACHES; c++) f->options[c].progress = (struct terse_progress){report_prefill, f};
    status = check_budget(f);
    for (enum cache c = METHOD; c < CACHES && status == EXIT_OK; c++)
        if (terse_session_new(setup->engine, &f->options[c], &f->sessions[c][WRITES], &error) != TERSE_OK)
            status = complain_error(&error);
    if (status == EXIT_OK)
        *free_running = f;
    else
        free_running_free(f);
    return status;
}

/* Reads the prompt with both caches, once each; the other sequences are forks. */
static int read_prompt(struct free_running *f, const int32_t *prompt) {
    struct terse_error error;
    free_forks(f);
    for (enum cache c = METHOD; c < CACHES; c++) terse_session_reset(f->sessions[c][WRITES]);
    for (enum cache c = METHOD; c < CACHES; c++) {
        if (terse_session_prefill(f->sessions[c][WRITES], prompt, f->n_prompt, NULL, &error) != TERSE_OK)
            return complain_error(&error);
        f->done += f->n_prompt;
        for (enum role r = READS; r < ROLES; r++)
            if (terse_session_fork(f->sessions[c][WRITES], &f->sessions[c][r], &error) != TERSE_OK) return complain_error(&error);
    }
    return EXIT_OK;
}

/* ---- Tokens */

/* Returns a random number in (0, 1) for every position and token, so that both caches draw by the same ones. */
static double uniform(uint64_t index) { return ((double)(random_bits(index) >> 11) + 0.5) * 0x1p-53; }

/* Draws a token from each of the rows' distributions: that with the largest sum of logit and noise, which is of a Gumbel distribution (Gumbel 1954).
 * Rows that are alike seldom differ in it. */
static void draw(const float *const rows[CACHES], uint32_t vocabulary, uint64_t position, int32_t tokens[CACHES]) {
    double best[CACHES] = {-INFINITY, -INFINITY};
    tokens[METHOD] = tokens[F16] = 0;
    for (uint32_t i = 0; i < vocabulary; i++) {
        double noise = -log(-log(uniform(position * vocabulary + i)));
        for (enum cache c = METHOD; c < CACHES; c++) {
            double value = (double)rows[c][i] + noise;
            if (!(value > best[c])) continue;
            best[c] = value;
            tokens[c] = (int32_t)i;
        }
    }
}

static int32_t likeliest(const float *row, uint32_t vocabulary) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocabulary; i++)
        if (row[i] > row[best]) best = i;
    return (int32_t)best;
}

/* ---- Positions */

struct position {
    const struct free_running *f;
    uint64_t number;                           /* over all windows */
    const float *rows[CACHES][ROLES];          /* logits; of GREEDY NULL where no more are compared */
    int32_t tokens[CACHES], greedy[CACHES];    /* what comes next */
    struct row_divergence divergences[CACHES]; /* by the cache that writes the text */
};

/* Divides a position's work into pieces for threads. */
enum piece { DRAW, DIVERGENCE, CHOOSE = DIVERGENCE + CACHES, PIECES = CHOOSE + CACHES };

static void work_off(struct position *p, int piece) {
    uint32_t vocabulary = p->f->setup->info.vocabulary;
    if (piece == DRAW) {
        draw((const float *const[CACHES]){p->rows[METHOD][WRITES], p->rows[F16][WRITES]}, vocabulary, p->number, p->tokens);
    } else if (piece < CHOOSE) {
        enum cache writer = (enum cache)(piece - DIVERGENCE);
        bool own = writer == METHOD;
        p->divergences[writer] =
            score_divergence(p->rows[F16][own ? READS : WRITES], p->rows[METHOD][own ? WRITES : READS], vocabulary);
    } else if (p->rows[piece - CHOOSE][GREEDY]) {
        p->greedy[piece - CHOOSE] = likeliest(p->rows[piece - CHOOSE][GREEDY], vocabulary);
    }
}

static void work_off_all(void *user) {
    struct position *p = user;
#pragma omp parallel for schedule(dynamic) num_threads((int)terse_engine_threads(p->f->setup->engine))
    for (int piece = 0; piece < PIECES; piece++) work_off(p, piece);
}

/* Chooses and scores the t-th tokens. */
static int choose_tokens(struct free_running *f, size_t t, struct position *p) {
    *p = (struct position){.f = f, .number = (uint64_t)f->totals.windows * f->n_tokens + t};
    for (enum cache c = METHOD; c < CACHES; c++)
        for (enum role r = WRITES; r < ROLES; r++)
            if ((r != GREEDY || t < f->n_greedy) && !(p->rows[c][r] = terse_session_logits(f->sessions[c][r])))
                return complain("the logits of token %zu cannot be fetched from the device", f->n_prompt + t);
    run_apart(work_off_all, p);
    struct window *w = &f->window;
    for (enum cache c = METHOD; c < CACHES; c++) {
        const float *scores = p->rows[F16][c == METHOD ? READS : WRITES];
        w->kld[c] += p->divergences[c].kld;
        w->entropy[c] += p->divergences[c].base_entropy;
        w->nll[c] += p->divergences[c].base_log_sum - (double)scores[p->tokens[c]];
    }
    if (t >= f->n_greedy) return EXIT_OK;
    bool same = p->greedy[METHOD] == p->greedy[F16];
    w->prefix += same && w->prefix == t;
    w->same += same;
    return EXIT_OK;
}

/* Appends the t-th tokens to the sequences, in one step. */
static int append_tokens(struct free_running *f, size_t t, const struct position *p) {
    struct terse_step_item items[CACHES * ROLES];
    struct terse_error error;
    size_t n = 0;
    for (enum cache c = METHOD; c < CACHES; c++) {
        const int32_t *tokens[ROLES] = {&p->tokens[c], &p->tokens[c == METHOD ? F16 : METHOD], &p->greedy[c]};
        for (enum role r = WRITES; r < ROLES; r++)
            if (r != GREEDY || t + 1 < f->n_greedy)
                items[n++] = (struct terse_step_item){.session = f->sessions[c][r], .tokens = tokens[r], .n = 1};
    }
    return terse_engine_step(f->setup->engine, items, n, &error) == TERSE_OK ? EXIT_OK : complain_error(&error);
}

/* ---- Windows */

static void add(struct sums *sums, double value) {
    sums->sum += value;
    sums->squares += value * value;
}

static struct estimate estimate_sums(const struct totals *totals, const struct sums *sums) {
    return estimate_mean(sums->sum, sums->squares, totals->windows);
}

static void add_window(struct free_running *f) {
    const struct window *w = &f->window;
    struct totals *t = &f->totals;
    double n = (double)f->n_tokens;
    add(&t->written_kld, w->kld[METHOD] / n);
    add(&t->given_kld, w->kld[F16] / n);
    add(&t->written_nll, w->nll[METHOD] / n);
    add(&t->given_nll, w->nll[F16] / n);
    add(&t->ratio, (w->nll[METHOD] - w->nll[F16]) / n);
    add(&t->unexpected, (w->nll[METHOD] - w->entropy[METHOD]) / n);
    add(&t->same, (double)w->same / (double)f->n_greedy);
    add(&t->prefix, (double)w->prefix);
    t->windows++;
}

int free_running_window(struct free_running *f, const int32_t *prompt) {
    struct position position;
    f->window = (struct window){0};
    f->done = 0;
    int status = read_prompt(f, prompt);
    for (size_t t = 0; t < f->n_tokens && status == EXIT_OK; t++) {
        status = choose_tokens(f, t, &position);
        if (status == EXIT_OK && console_interrupted()) status = EXIT_INTERRUPTED;
        if (status == EXIT_OK && t + 1 < f->n_tokens) status = append_tokens(f, t, &position);
        f->done += STEP_TOKENS;
        if (status == EXIT_OK && !show_progress(f, 0)) status = EXIT_INTERRUPTED;
    }
    if (status != EXIT_OK) return status;
    add_window(f);
    progress_clear();
    const struct window *w = &f->window;
    double n = (double)f->n_tokens;
    printf("[%u] free-running KLD %.6f  PPL %.4f, of f16's text %.4f  same greedy tokens %.2f %%, the first %zu\n",
           f->totals.windows, w->kld[METHOD] / n, exp(w->nll[METHOD] / n), exp(w->nll[F16] / n),
           100 * (double)w->same / (double)f->n_greedy, w->prefix);
    return output_write("", 0) ? EXIT_OK : EXIT_FAILED;
}

/* ---- Results */

/* Prints "NAME = X +/- Y UNIT"; of one window there is no error to estimate. */
static void print_estimate(const char *name, struct estimate e, uint32_t windows, int decimals, const char *unit) {
    printf("%s = %.*f", name, decimals, e.mean);
    if (windows > 1) printf(" +/- %.*f", decimals, e.error);
    printf("%s\n", unit);
}

void free_running_print(const struct free_running *f) {
    const struct totals *t = &f->totals;
    struct estimate same = estimate_sums(t, &t->same);
    struct terse_cache_report cache;
    char method[128], unit[64];
    print_estimate("free-running KLD", estimate_sums(t, &t->written_kld), t->windows, 8, "");
    print_estimate("KLD on f16's text", estimate_sums(t, &t->given_kld), t->windows, 8, "");
    print_estimate("PPL(written)", estimate_exp(estimate_sums(t, &t->written_nll)), t->windows, 4, "");
    print_estimate("PPL(f16's text)", estimate_exp(estimate_sums(t, &t->given_nll)), t->windows, 4, "");
    print_estimate("PPL(written) / PPL(f16's text)", estimate_exp(estimate_sums(t, &t->ratio)), t->windows, 6, "");
    print_estimate("PPL(written) / expected", estimate_exp(estimate_sums(t, &t->unexpected)), t->windows, 6, "");
    snprintf(unit, sizeof unit, " %% of %zu", f->n_greedy);
    print_estimate("same greedy tokens", (struct estimate){100 * same.mean, 100 * same.error}, t->windows, 3, unit);
    snprintf(unit, sizeof unit, " of %zu tokens", f->n_greedy);
    print_estimate("same greedy prefix", estimate_sums(t, &t->prefix), t->windows, 2, unit);
    terse_session_cache(f->sessions[METHOD][WRITES], &cache);
    printf("KV cache = %" PRIu64 " bytes resident after %" PRIu64 " tokens, %.4f bits per value (%s), steps of 1 token\n",
           cache.resident, cache.tokens, cache.bits_per_value, setup_method_text(f->setup, method, sizeof method));
}
