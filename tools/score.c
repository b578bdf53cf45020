/* Computes log-softmax in double precision, the sums over positions, and their statistics. It holds SCORER_ROWS rows of logits, never a
 * whole window of them. */
#include "score.h"

#include "apart.h"

#include "console.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct row_score {
    double nll, base_nll, kld;
    bool same_top;
};

struct scorer {
    uint32_t vocabulary, context;
    struct scorer_base base;
    int threads, status;
    const int32_t *window;
    size_t first;    /* position in the window of row 0 of the current call */
    size_t filled;   /* rows gathered */
    float *logits;   /* [SCORER_ROWS][vocabulary]; owned unless base.scorer is set */
    uint16_t *codes; /* [SCORER_ROWS][kld_row_words]; with a writer or reader, or kept */
    int32_t next[SCORER_ROWS];
    struct row_score scores[SCORER_ROWS];
    struct score_totals totals;
};

static bool encodes(const struct scorer *s) { return s->base.writer || s->base.kept; }
static bool compares(const struct scorer *s) { return s->base.reader || s->base.scorer; }

/* Makes room for the rows' codes and for what is kept of each position. */
static bool make_room(struct scorer *s, uint32_t windows) {
    struct score_totals *t = &s->totals;
    size_t positions = windows * kld_rows(s->context);
    s->logits = s->base.scorer ? s->base.scorer->logits : malloc((size_t)SCORER_ROWS * s->vocabulary * sizeof *s->logits);
    if (!s->logits) return false;
    if ((encodes(s) || s->base.reader) && !(s->codes = malloc(SCORER_ROWS * kld_row_words(s->vocabulary) * sizeof *s->codes)))
        return false;
    return !compares(s) || ((t->kld_values = malloc(positions * sizeof *t->kld_values)) &&
                            (t->nll_values = malloc(positions * sizeof *t->nll_values)));
}

int scorer_new(uint32_t vocabulary, uint32_t context, uint32_t windows, const struct scorer_base *base, int threads,
               struct scorer **scorer) {
    *scorer = NULL;
    struct scorer *s = calloc(1, sizeof *s);
    if (s) *s = (struct scorer){.vocabulary = vocabulary, .context = context, .base = *base, .threads = threads};
    if (s && make_room(s, windows)) {
        *scorer = s;
        return EXIT_OK;
    }
    scorer_free(s);
    return complain("no memory for %d rows of %u logits", SCORER_ROWS, vocabulary);
}

void scorer_free(struct scorer *scorer) {
    if (!scorer) return;
    if (!scorer->base.scorer) free(scorer->logits);
    free(scorer->codes);
    free(scorer->totals.kld_values);
    free(scorer->totals.nll_values);
    free(scorer);
}

const struct score_totals *scorer_totals(const struct scorer *scorer) { return &scorer->totals; }

/* ---- One row */

/* Returns log(sum(exp(logits))), and the index of the first largest in *top. */
static double log_sum_exp(const float *logits, uint32_t n, uint32_t *top) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    double most = (double)logits[best], sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    *top = best;
    return most + log(sum);
}

struct row_divergence score_divergence(const float *base, const float *logits, uint32_t vocabulary) {
    uint32_t top;
    double base_log_sum = log_sum_exp(base, vocabulary, &top), log_sum = log_sum_exp(logits, vocabulary, &top);
    struct row_divergence found = {.base_log_sum = base_log_sum};
    for (uint32_t i = 0; i < vocabulary; i++) {
        double log_p = (double)base[i] - base_log_sum, p = exp(log_p);
        if (!(p > 0)) continue;
        found.kld += p * (log_p - ((double)logits[i] - log_sum));
        found.base_entropy -= p * log_p;
    }
    return found;
}

/* Adds KL(base || logits), over the tokens that the base's codes tell apart from impossible ones: log p > -16, as llama.cpp
 * counts. */
static void compare_row(const float *logits, uint32_t n, double log_sum, uint32_t top, int32_t next, const uint16_t *row,
                        struct row_score *score) {
    const uint16_t *codes = kld_row_codes(row);
    uint32_t base_top = 0;
    float scale, minimum;
    double sum = 0;
    kld_row_scale(row, &scale, &minimum);
    for (uint32_t i = 0; i < n; i++) {
        if (codes[i] > codes[base_top]) base_top = i;
        double log_p = (double)(scale * (float)codes[i] + minimum);
        if (log_p > -16) sum += exp(log_p) * (log_p - ((double)logits[i] - log_sum));
    }
    score->kld = sum;
    score->base_nll = -(double)(scale * (float)codes[next] + minimum);
    score->same_top = top == base_top;
}

static void score_row(struct scorer *s, size_t i) {
    const float *logits = s->logits + i * s->vocabulary;
    const size_t at = i * kld_row_words(s->vocabulary);
    const uint16_t *base = s->base.scorer ? s->base.scorer->codes : s->codes;
    uint32_t top;
    double log_sum = log_sum_exp(logits, s->vocabulary, &top);
    s->scores[i] = (struct row_score){.nll = log_sum - (double)logits[s->next[i]]};
    if (compares(s)) compare_row(logits, s->vocabulary, log_sum, top, s->next[i], base + at, &s->scores[i]);
    if (encodes(s) && isfinite(log_sum)) kld_encode(logits, s->vocabulary, log_sum, s->next[i], s->codes + at);
}

/* ---- Rows as they come */

void scorer_expect(struct scorer *scorer, const int32_t *window, size_t first) {
    scorer->window = window;
    scorer->first = first;
}

void scorer_row(void *scorer, size_t i, const float *logits) {
    struct scorer *s = scorer;
    size_t position = s->first + i;
    if (s->status != EXIT_OK || position < s->context / 2 || position + 1 >= s->context) return;
    if (s->filled == SCORER_ROWS && scorer_flush(s) != EXIT_OK) return;
    memcpy(s->logits + s->filled * s->vocabulary, logits, s->vocabulary * sizeof *logits);
    s->next[s->filled++] = s->window[position + 1];
}

static void add_to_totals(struct score_totals *t, const struct row_score *score) {
    t->nll += score->nll;
    t->nll_squared += score->nll * score->nll;
    t->base_nll += score->base_nll;
    t->base_nll_squared += score->base_nll * score->base_nll;
    t->nll_base_nll += score->nll * score->base_nll;
    t->kld += score->kld;
    t->kld_squared += score->kld * score->kld;
    t->same_top += score->same_top;
    if (t->kld_values) t->kld_values[t->count] = (float)score->kld;
    if (t->nll_values) t->nll_values[t->count] = (float)score->nll;
    t->count++;
}

struct rows {
    struct scorer *scorer;
    size_t n;
};

static void score_rows(void *user) {
    const struct rows *rows = user;
#pragma omp parallel for schedule(dynamic) num_threads(rows->scorer->threads)
    for (size_t i = 0; i < rows->n; i++) score_row(rows->scorer, i);
}

int scorer_flush(struct scorer *s) {
    size_t n = s->filled;
    s->filled = 0;
    if (s->status == EXIT_OK && s->base.reader) s->status = kld_reader_rows(s->base.reader, s->codes, n);
    if (s->status != EXIT_OK) return s->status;
    run_apart(score_rows, &(struct rows){s, n});
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(s->scores[i].nll))
            return s->status = complain("the model's logits are not finite after %llu scored tokens; its file may be damaged",
                                        (unsigned long long)s->totals.count);
        add_to_totals(&s->totals, &s->scores[i]);
    }
    if (s->base.writer) s->status = kld_writer_rows(s->base.writer, s->codes, n);
    return s->status;
}

/* ---- Statistics, with the error estimates of llama.cpp's tool, so that figures compare */

struct estimate estimate_mean(double sum, double sum_of_squares, uint64_t count) {
    double n = (double)count, mean = sum / n, variance = sum_of_squares / n - mean * mean;
    return (struct estimate){mean, variance > 0 && count > 1 ? sqrt(variance / (n - 1)) : 0};
}

struct estimate estimate_exp(struct estimate e) {
    return (struct estimate){exp(e.mean), exp(e.mean) * e.error};
}

struct estimate score_log_ratio(const struct score_totals *t) {
    struct estimate own = estimate_mean(t->nll, t->nll_squared, t->count);
    struct estimate base = estimate_mean(t->base_nll, t->base_nll_squared, t->count);
    double n = (double)t->count, covariance = (t->nll_base_nll / n - own.mean * base.mean) / (n > 1 ? n - 1 : 1);
    double variance = own.error * own.error + base.error * base.error - 2 * covariance;
    return (struct estimate){own.mean - base.mean, variance > 0 ? sqrt(variance) : 0};
}

static int by_value(const void *left, const void *right) {
    float a = *(const float *)left, b = *(const float *)right;
    return (a > b) - (a < b);
}

void scorer_sort_kld(struct scorer *scorer) { qsort(scorer->totals.kld_values, scorer->totals.count, sizeof(float), by_value); }

double scorer_kld_quantile(const struct scorer *scorer, double fraction) {
    const struct score_totals *t = &scorer->totals;
    double place = fraction * (double)(t->count - 1);
    size_t below = (size_t)place, above = below + 1 < t->count ? below + 1 : below;
    double part = place - (double)below;
    return (1 - part) * (double)t->kld_values[below] + part * (double)t->kld_values[above];
}
