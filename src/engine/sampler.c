/* Samples by the usual chain of filters over sorted candidates. Owns the random numbers of a session. */
#include "engine/sampler.h"

#include "base/memory.h"
#include "base/random.h"
#include "engine/constraint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct terse_sampling terse_sampling_defaults(void) {
    return (struct terse_sampling){.size = sizeof(struct terse_sampling),
                                   .temperature = 0.8f,
                                   .top_k = 40,
                                   .typical_p = 1,
                                   .top_p = 0.95f,
                                   .min_p = 0.05f,
                                   .repeat_penalty = 1,
                                   .repeat_last = 64,
                                   .seed = 1};
}

enum terse_status sampler_init(struct sampler *sampler, uint32_t vocabulary, struct terse_error *error) {
    *sampler = (struct sampler){.settings = terse_sampling_defaults(), .vocabulary = vocabulary};
    sampler->random = sampler->settings.seed;
    sampler->candidates = memory_array(vocabulary, sizeof *sampler->candidates);
    return sampler->candidates ? TERSE_OK : status_no_memory(error, vocabulary * sizeof *sampler->candidates, "sampling");
}

void sampler_destroy(struct sampler *sampler) {
    memory_free(sampler->biases);
    memory_free(sampler->candidates);
}

static enum terse_status check_biases(const struct sampler *sampler, const struct terse_sampling *s, struct terse_error *error) {
    for (size_t i = 0; i < s->n_biases; i++) {
        if (s->biases[i].token < 0 || (uint32_t)s->biases[i].token >= sampler->vocabulary)
            return status_fail(error, TERSE_E_ARGUMENT, "a logit bias names token %d, the vocabulary has %u", s->biases[i].token,
                               sampler->vocabulary);
        if (isnan(s->biases[i].bias) || s->biases[i].bias == INFINITY)
            return status_fail(error, TERSE_E_ARGUMENT, "the logit bias of token %d is %g", s->biases[i].token,
                               (double)s->biases[i].bias);
    }
    return TERSE_OK;
}

enum terse_status sampler_set(struct sampler *sampler, const struct terse_sampling *s, struct terse_error *error) {
    if (!(s->temperature >= 0) || !isfinite(s->temperature))
        return status_fail(error, TERSE_E_ARGUMENT, "temperature %g is not 0 or more", (double)s->temperature);
    if (!(s->top_p >= 0 && s->top_p <= 1))
        return status_fail(error, TERSE_E_ARGUMENT, "top-p %g is not within 0 and 1", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return status_fail(error, TERSE_E_ARGUMENT, "min-p %g is not within 0 and 1", (double)s->min_p);
    if (!(s->repeat_penalty > 0) || !isfinite(s->repeat_penalty))
        return status_fail(error, TERSE_E_ARGUMENT, "repeat penalty %g is not above 0", (double)s->repeat_penalty);
    if (!(s->typical_p >= 0 && s->typical_p <= 1))
        return status_fail(error, TERSE_E_ARGUMENT, "typical %g is not within 0 and 1", (double)s->typical_p);
    if (!isfinite(s->presence_penalty) || !isfinite(s->frequency_penalty))
        return status_fail(error, TERSE_E_ARGUMENT, "the presence and frequency penalties %g and %g are not numbers",
                           (double)s->presence_penalty, (double)s->frequency_penalty);
    if (s->repeat_last > SAMPLE_HISTORY)
        return status_fail(error, TERSE_E_ARGUMENT, "the repeat penalty can look at %d tokens at most, not %u", SAMPLE_HISTORY,
                           s->repeat_last);
    enum terse_status status = check_biases(sampler, s, error);
    struct terse_logit_bias *biases = NULL;
    if (status) return status;
    if (s->n_biases) {
        if (!(biases = memory_array(s->n_biases, sizeof *biases)))
            return status_no_memory(error, s->n_biases * sizeof *biases, "logit biases");
        memcpy(biases, s->biases, s->n_biases * sizeof *biases);
    }
    memory_free(sampler->biases);
    sampler->biases = biases;
    sampler->settings = *s;
    sampler->settings.biases = NULL;
    sampler->random = s->seed;
    return TERSE_OK;
}

enum terse_status sampler_fork(const struct sampler *from, struct sampler *sampler, struct terse_error *error) {
    struct terse_sampling settings = from->settings;
    settings.biases = from->biases;
    enum terse_status status = sampler_init(sampler, from->vocabulary, error);
    if (!status) status = sampler_set(sampler, &settings, error);
    if (status) return status;
    sampler->random = from->random;
    memcpy(sampler->history, from->history, sizeof sampler->history);
    sampler->seen = from->seen;
    return TERSE_OK;
}

void sampler_forget(struct sampler *sampler) { sampler->seen = 0; }

void sampler_add(struct sampler *sampler, int32_t token) { sampler->history[sampler->seen++ % SAMPLE_HISTORY] = token; }

static int by_logit(const void *left, const void *right) {
    const struct candidate *a = left, *b = right;
    if (a->logit != b->logit) return a->logit < b->logit ? 1 : -1;
    return (a->token > b->token) - (a->token < b->token);
}

static void sift_down(struct candidate *heap, uint32_t n, uint32_t i) {
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && by_logit(&heap[child], &heap[child + 1]) < 0) child++;
        if (by_logit(&heap[child], &heap[i]) <= 0) return;
        struct candidate lower = heap[i];
        heap[i] = heap[child];
        heap[child] = lower;
    }
}

/* Moves the k best to the front, in any order: a heap of them with the worst on top. */
static void select_best(struct candidate *c, uint32_t n, uint32_t k) {
    for (uint32_t i = k / 2; i-- > 0;) sift_down(c, k, i);
    for (uint32_t i = k; i < n; i++) {
        if (by_logit(&c[i], &c[0]) >= 0) continue;
        c[0] = c[i];
        sift_down(c, k, 0);
    }
}

/* Returns the token's candidate among c[n], which are in order of their tokens, and all tokens where n is the vocabulary; NULL when
 * it is not among them. */
static struct candidate *find(const struct sampler *sampler, struct candidate *c, uint32_t n, int32_t token) {
    uint32_t low = 0, high = n;
    if (n == sampler->vocabulary) return &c[token];
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (c[middle].token < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && c[low].token == token ? &c[low] : NULL;
}

/* Applies to each distinct token among the newest, at its last occurrence, the repeat penalty of Keskar et al. 2019 (CTRL), then presence and
 * frequency. */
static void penalise(const struct sampler *sampler, struct candidate *candidates, uint32_t n) {
    const struct terse_sampling *s = &sampler->settings;
    uint64_t count = sampler->seen < s->repeat_last ? sampler->seen : s->repeat_last;
    for (uint64_t i = sampler->seen - count; i < sampler->seen; i++) {
        struct candidate *c = find(sampler, candidates, n, sampler->history[i % SAMPLE_HISTORY]);
        float times = 1;
        bool repeated = !c;
        for (uint64_t j = i + 1; j < sampler->seen && !repeated; j++) repeated = sampler->history[j % SAMPLE_HISTORY] == c->token;
        if (repeated) continue;
        for (uint64_t j = sampler->seen - count; j < i; j++) times += sampler->history[j % SAMPLE_HISTORY] == c->token;
        c->logit = c->logit > 0 ? c->logit / s->repeat_penalty : c->logit * s->repeat_penalty;
        c->logit -= s->presence_penalty + times * s->frequency_penalty;
    }
}

static bool penalises(const struct terse_sampling *s) {
    return s->repeat_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
}

static int by_surprise(const void *left, const void *right) {
    const struct candidate *a = left, *b = right;
    if (a->surprise != b->surprise) return a->surprise < b->surprise ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

/* Keeps of sorted candidates those whose surprise -log p is nearest to its expectation, until they make up typical_p; sorts them again. */
static uint32_t keep_typical(struct candidate *sorted, uint32_t n, double typical_p) {
    double sum = 0, entropy = 0, reached = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)sorted[i].logit - (double)sorted[0].logit);
    for (uint32_t i = 0; i < n; i++) {
        double log_p = (double)sorted[i].logit - (double)sorted[0].logit - log(sum);
        if (log_p > -700) entropy -= exp(log_p) * log_p;
    }
    for (uint32_t i = 0; i < n; i++)
        sorted[i].surprise = (float)fabs(log(sum) - ((double)sorted[i].logit - (double)sorted[0].logit) - entropy);
    double largest = (double)sorted[0].logit;
    qsort(sorted, n, sizeof *sorted, by_surprise);
    while (kept < n && (kept == 0 || reached < typical_p * sum)) reached += exp((double)sorted[kept++].logit - largest);
    qsort(sorted, kept, sizeof *sorted, by_logit);
    return kept;
}

static const struct candidate *greedy(const struct candidate *candidates, uint32_t n) {
    const struct candidate *best = candidates;
    for (uint32_t i = 1; i < n; i++)
        if (candidates[i].logit > best->logit) best = &candidates[i];
    return best;
}

/* Returns the number of sorted candidates that reach a probability of top_p together, at temperature 1. */
static uint32_t count_top_p(const struct candidate *sorted, uint32_t n, double top_p) {
    double sum = 0, reached = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)sorted[i].logit - (double)sorted[0].logit);
    for (uint32_t i = 0; i < n; i++)
        if ((reached += exp((double)sorted[i].logit - (double)sorted[0].logit)) >= top_p * sum) return i + 1;
    return n;
}

static uint32_t count_min_p(const struct candidate *sorted, uint32_t n, double min_p) {
    uint32_t kept = 1;
    while (kept < n && exp((double)sorted[kept].logit - (double)sorted[0].logit) >= min_p) kept++;
    return kept;
}

/* Chooses among c[n], which are in order of their tokens: all of the vocabulary, or those with the highest logits. In the latter
 * case biases and penalties have only lowered logits, so that no other token's is above `floor`. Returns false where the others may
 * matter. */
static bool choose(struct sampler *sampler, uint32_t n, float floor, int32_t *token) {
    const struct terse_sampling *s = &sampler->settings;
    struct candidate *c = sampler->candidates;
    bool all = n == sampler->vocabulary, filters_k = s->top_k && s->top_k < sampler->vocabulary;
    if (s->temperature == 0) {
        const struct candidate *best = greedy(c, n);
        *token = best->token;
        return all || best->logit > floor;
    }
    if (filters_k && s->top_k < n) {
        select_best(c, n, s->top_k);
        n = s->top_k;
    } else if (filters_k && !all) {
        return false;
    }
    qsort(c, n, sizeof *c, by_logit);
    if (filters_k && !all && !(c[n - 1].logit > floor)) return false;
    /* Without top-k the first filter must be the one that drops all the others. */
    if (!filters_k && !all && !(exp((double)floor - (double)c[0].logit) < (double)s->min_p)) return false;
    if (s->typical_p < 1) n = keep_typical(c, n, (double)s->typical_p);
    if (s->top_p < 1) n = count_top_p(c, n, (double)s->top_p);
    if (s->min_p > 0) n = count_min_p(c, n, (double)s->min_p);
    double sum = 0, temperature = (double)s->temperature;
    for (uint32_t i = 0; i < n; i++) sum += exp(((double)c[i].logit - (double)c[0].logit) / temperature);
    double left = random_uniform(random_next(&sampler->random)) * sum;
    *token = c[n - 1].token;
    for (uint32_t i = 0; i < n; i++) {
        if ((left -= exp(((double)c[i].logit - (double)c[0].logit) / temperature)) >= 0) continue;
        *token = c[i].token;
        break;
    }
    return true;
}

/* Applies biases and penalties to c[n], in order of their tokens. */
static void adjust(const struct sampler *sampler, struct candidate *candidates, uint32_t n) {
    const struct terse_sampling *s = &sampler->settings;
    for (size_t i = 0; i < s->n_biases; i++) {
        struct candidate *c = find(sampler, candidates, n, sampler->biases[i].token);
        if (c) c->logit += sampler->biases[i].bias;
    }
    if (penalises(s)) penalise(sampler, candidates, n);
}

static bool is_constrained(const struct sampler *sampler) {
    return sampler->constraint && !constraint_is_free(sampler->constraint);
}

int32_t sampler_choose(struct sampler *sampler, const float *logits) {
    struct candidate *c = sampler->candidates;
    uint32_t n = sampler->vocabulary;
    int32_t token = -1;
    for (uint32_t i = 0; i < n; i++) c[i] = (struct candidate){isnan(logits[i]) ? -INFINITY : logits[i], (int32_t)i, 0};
    adjust(sampler, c, n);
    if (is_constrained(sampler) && !constraint_filter(sampler->constraint, c, n)) return -1;
    choose(sampler, n, -INFINITY, &token);
    return token;
}

/* Returns whether biases and penalties raise no token, so that those that are not among the likeliest stay below. */
static bool only_lowers(const struct sampler *sampler) {
    const struct terse_sampling *s = &sampler->settings;
    for (size_t i = 0; i < s->n_biases; i++)
        if (sampler->biases[i].bias > 0) return false;
    return s->repeat_penalty >= 1 && s->presence_penalty >= 0 && s->frequency_penalty >= 0;
}

bool sampler_needs_few(const struct sampler *sampler) {
    const struct terse_sampling *s = &sampler->settings;
    bool by_min_p = !s->top_k && s->typical_p >= 1 && s->top_p >= 1 && s->min_p > 0;
    if (is_constrained(sampler) || !only_lowers(sampler)) return false;
    return s->temperature == 0 || (s->top_k && s->top_k <= TOP_LOGITS / 2) || by_min_p;
}

bool sampler_choose_top_logits(struct sampler *sampler, const struct token_logit *top_logits, size_t n, int32_t *token) {
    const struct terse_sampling *s = &sampler->settings;
    struct candidate *c = sampler->candidates;
    bool all = n == sampler->vocabulary, filters_k = s->top_k && s->top_k < sampler->vocabulary;
    bool whole = s->temperature != 0 && !filters_k && (s->typical_p < 1 || s->top_p < 1); /* sums over all tokens */
    float floor = INFINITY;
    if (is_constrained(sampler) || (!all && (whole || !only_lowers(sampler)))) return false;
    for (size_t i = 0; i < n; i++) {
        float logit = isnan(top_logits[i].logit) ? -INFINITY : top_logits[i].logit;
        c[i] = (struct candidate){logit, top_logits[i].token, 0};
        floor = logit < floor ? logit : floor;
    }
    adjust(sampler, c, (uint32_t)n);
    return choose(sampler, (uint32_t)n, floor, token);
}

void sampler_logprobs(struct sampler *sampler, const float *logits, int32_t token, float *logprob, struct terse_logprob *top,
                      size_t n) {
    struct candidate *c = sampler->candidates;
    uint32_t all = sampler->vocabulary;
    double sum = 0;
    float most = -INFINITY;
    for (uint32_t i = 0; i < all; i++) c[i] = (struct candidate){isnan(logits[i]) ? -INFINITY : logits[i], (int32_t)i, 0};
    for (uint32_t i = 0; i < all; i++) most = c[i].logit > most ? c[i].logit : most;
    for (uint32_t i = 0; i < all; i++) sum += exp((double)c[i].logit - (double)most);
    double whole = (double)most + log(sum);
    if (logprob) *logprob = (float)((double)c[token].logit - whole);
    if (!n) return;
    select_best(c, all, (uint32_t)n);
    qsort(c, n, sizeof *c, by_logit);
    for (size_t i = 0; i < n; i++) top[i] = (struct terse_logprob){c[i].token, (float)((double)c[i].logit - whole)};
}
