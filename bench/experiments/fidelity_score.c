/* Computes with the base's logits of a window, which it owns: log-softmax and divergence in double precision. */
#include "fidelity_score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GATHERED = 64 };

struct row_base {
    double log_sum, nll;
    uint32_t top;
};

struct scores {
    uint32_t vocabulary;
    size_t rows, seen;
    int threads;
    bool is_base;
    const int32_t *next;
    float *base;            /* [rows][vocabulary] logits */
    struct row_base *bases; /* [rows] */
    float *gathered;        /* [GATHERED][vocabulary] */
    float *values;          /* [SCORE_COLUMNS][rows] */
};

struct scores *scores_new(uint32_t vocabulary, size_t rows, int threads) {
    struct scores *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    *s = (struct scores){.vocabulary = vocabulary, .rows = rows, .threads = threads};
    s->base = malloc(rows * vocabulary * sizeof *s->base);
    s->bases = malloc(rows * sizeof *s->bases);
    s->gathered = malloc((size_t)GATHERED * vocabulary * sizeof *s->gathered);
    s->values = malloc(SCORE_COLUMNS * rows * sizeof *s->values);
    if (s->base && s->bases && s->gathered && s->values) return s;
    scores_free(s);
    return NULL;
}

void scores_free(struct scores *scores) {
    if (!scores) return;
    free(scores->base);
    free(scores->bases);
    free(scores->gathered);
    free(scores->values);
    free(scores);
}

/* Returns log(sum(exp(logits))), and writes the index of the first largest. */
static double log_sum_exp(const float *logits, uint32_t n, uint32_t *top) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    double most = (double)logits[best], sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    *top = best;
    return most + log(sum);
}

static double divergence(const float *base, double base_sum, const float *own, double own_sum, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double log_p = (double)base[i] - base_sum;
        sum += exp(log_p) * (log_p - ((double)own[i] - own_sum));
    }
    return sum;
}

static void score_row(struct scores *s, size_t row, const float *logits) {
    struct row_base own, *base = &s->bases[row];
    own.log_sum = log_sum_exp(logits, s->vocabulary, &own.top);
    own.nll = own.log_sum - (double)logits[s->next[row]];
    if (s->is_base) *base = own;
    float *value = s->values + row;
    const float *base_logits = s->base + row * s->vocabulary;
    value[SCORE_KLD * s->rows] = s->is_base ? 0 : (float)divergence(base_logits, base->log_sum, logits, own.log_sum, s->vocabulary);
    value[SCORE_NLL * s->rows] = (float)own.nll;
    value[SCORE_DELTA * s->rows] = (float)(own.nll - base->nll);
    value[SCORE_SAME * s->rows] = own.top == base->top;
}

void scores_begin(struct scores *scores, const int32_t *next, bool base) {
    scores->next = next;
    scores->is_base = base;
    scores->seen = 0;
}

static void score_gathered(struct scores *s) {
    size_t count = (s->seen - 1) % GATHERED + 1, first = s->seen - count;
    const float *logits = s->is_base ? s->base + first * s->vocabulary : s->gathered;
#pragma omp parallel for schedule(dynamic) num_threads(s->threads)
    for (size_t i = 0; i < count; i++) score_row(s, first + i, logits + i * s->vocabulary);
}

void scores_row(void *scores, size_t i, const float *logits) {
    struct scores *s = scores;
    (void)i;
    if (s->seen == s->rows) return;
    float *to = s->is_base ? s->base + s->seen * s->vocabulary : s->gathered + s->seen % GATHERED * s->vocabulary;
    memcpy(to, logits, s->vocabulary * sizeof *logits);
    if (++s->seen % GATHERED == 0 || s->seen == s->rows) score_gathered(s);
}

const float *scores_end(struct scores *scores) {
    if (scores->seen < scores->rows) return NULL;
    for (size_t i = 0; i < scores->rows; i++)
        if (!isfinite(scores->values[SCORE_NLL * scores->rows + i]) || !isfinite(scores->values[i])) return NULL;
    return scores->values;
}
