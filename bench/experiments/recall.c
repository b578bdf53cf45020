/* Measures the recall of indexes on keys and queries of a model: in every layer and KV head each of the last 64 queries of a prompt selects
 * 7.5 % of the tokens before it by an index, and the selection is compared with the true best tokens. Layers with a sliding window are left
 * out, since nothing is selected there.
 *
 *     recall -f TEXT [options]
 *
 * prints of which commit it is, and for each index
 *     recall   share of the true best tokens, by the mean of q.k over the G queries of a KV head, that are selected
 *     weight   share of the attention to all those tokens that the selected ones get, mean over the G queries
 *     error    of indexes of signs: the relative squared error of their centroids (recall_index.h)
 * as means over layers, KV heads, queries and prompts. bench/experiments/quality.py calls it for docs/reports/fidelity.md.
 *
 * The program's engine has kv_ops that observe the executor's calls: `append` is where rotated keys lie in full precision. */
#include "backend/cpu/codec/index.h"
#include "backend/cpu/kv/query_rows.h"
#include "backend/cpu/kv/state.h"
#include "backend/cpu/kv/top_k.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/size.h"
#include "commit.h"
#include "console.h"
#include "engine/engine.h"
#include "model/model.h"
#include "options.h"
#include "recall_index.h"
#include "text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MODEL PROJECT_DIR "/models/lab-27m-q8_0.gguf"
#define PERCENT 7.5 /* the paper's, section 5.1 */
#define TOLERANCE 1e-3
enum { PROBES = 64 };

/* A selector is an index (recall_index.h), by single tokens or by groups of tokens that score as their best. */
static const struct selector {
    const char *name, *index; /* NULL: not by an index */
    size_t group;             /* tokens */
    bool error;               /* is reported: the codes are centred on the mean */
} selectors[] = {{"best", NULL, 0, false},
                 {"random", NULL, 0, false},
                 {"sign", "sign", 1, true},
                 {"sign, pages of 16", "sign", 16, false},
                 {"sign, pages of 64", "sign", 64, false},
                 {"quest", "quest", 1, false},
                 {"median", "median", 1, false},
                 {"signs", "signs", 1, false},
                 {"magnitudes", "magnitudes", 1, true},
                 {"raw", "raw", 1, false},
                 {"raw-signs", "raw-signs", 1, false},
                 {"kmeans", "kmeans", 1, true}};
enum { SELECTORS = sizeof selectors / sizeof selectors[0], BEST = 0 };

struct found {
    double recall, weight, error;
};

/* This is the prompt in progress. */
static struct {
    bool on;
    size_t n; /* tokens */
    const float *k, *v;
    float *queries;    /* [PROBES][Hq][hd] of the last tokens */
    float *last;       /* [G][hd], scratch */
    struct found *sum; /* [layers][Hk][SELECTORS], sums over probes and prompts */
    size_t n_heads;    /* that were measured, of all prompts */
    double worst;      /* largest relative difference of attention over these keys and values from the cache's own */
    bool failed;       /* no memory, or a fitted index is not finite */
} observed;

/* ---- One layer and KV head */

struct head {
    const float *keys; /* of token t at keys + t * stride */
    size_t stride, hd, G, n, k;
    float *queries;     /* [PROBES][G][hd] rotated and scaled */
    float *logits;      /* [G][n] */
    float *mean;        /* [n], of the logits over the group */
    double *weights;    /* [n], of the softmax over the tokens, mean over the group */
    uint8_t *is_best;   /* [n] */
    uint16_t *scores;   /* [n] */
    uint32_t *selected; /* [n] */
    float *page;        /* [64][hd] */
    void *learned[SELECTORS], *pages[SELECTORS], *tables;
};

static void head_free(struct head *h) {
    memory_free(h->queries);
    memory_free(h->logits);
    memory_free(h->mean);
    memory_free(h->weights);
    memory_free(h->is_best);
    memory_free(h->scores);
    memory_free(h->selected);
    memory_free(h->page);
    memory_free(h->tables);
    for (size_t w = 0; w < SELECTORS; w++) {
        memory_free(h->learned[w]);
        memory_free(h->pages[w]);
    }
}

static bool head_new(struct head *h) {
    size_t tables = 0;
    bool all = true;
    for (size_t w = 0; w < SELECTORS; w++) {
        const struct cpu_index *index = selectors[w].index ? index_variant(selectors[w].index) : NULL;
        if (!index) continue;
        h->learned[w] = memory_array(index_learned_bytes(index->format, h->hd) + 1, 1);
        h->pages[w] = memory_array(h->n / PAGE_TOKENS, index_bytes(index->format, h->hd));
        tables = size_max(tables, index->table_bytes(h->hd));
        all &= h->learned[w] && h->pages[w];
    }
    h->queries = memory_array(PROBES * h->G * h->hd, sizeof *h->queries);
    h->logits = memory_array(h->G * h->n, sizeof *h->logits);
    h->mean = memory_array(h->n, sizeof *h->mean);
    h->weights = memory_array(h->n, sizeof *h->weights);
    h->is_best = memory_array(h->n, 1);
    h->scores = memory_array(h->n, sizeof *h->scores);
    h->selected = memory_array(h->n, sizeof *h->selected);
    h->page = memory_array(PAGE_TOKENS * h->hd, sizeof *h->page);
    h->tables = memory_array(tables, 1);
    return all && h->queries && h->logits && h->mean && h->weights && h->is_best && h->scores && h->selected && h->page &&
           h->tables;
}

/* Fits a selector's index to the tokens and encodes them; returns false when what was fitted is not finite. */
static bool index_head(struct head *h, size_t w, struct found *found) {
    const struct cpu_index *index = index_variant(selectors[w].index);
    const struct index_options options = index_options_defaults();
    index->fit(h->hd, h->keys, h->n, h->stride, &options, h->learned[w]);
    for (size_t i = 0; i < index_learned_bytes(index->format, h->hd) / sizeof(float); i++)
        if (!isfinite(((const float *)h->learned[w])[i])) return false;
    for (size_t t = 0; t < h->n; t += PAGE_TOKENS) {
        for (size_t i = 0; i < PAGE_TOKENS; i++)
            memcpy(h->page + i * h->hd, h->keys + (t + i) * h->stride, h->hd * sizeof *h->page);
        index->encode(h->hd, h->learned[w], h->page, PAGE_TOKENS,
                      (uint8_t *)h->pages[w] + t / PAGE_TOKENS * index_bytes(index->format, h->hd));
    }
    if (selectors[w].error) found->error = PROBES * index_sign_error(index, h->hd, h->learned[w], h->keys, h->n, h->stride);
    return true;
}

static int downward(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Computes the full attention of a probe: mean logits, weights, and the k best tokens. */
static void attend_probe(struct head *h, const float *q) {
    memset(h->mean, 0, h->n * sizeof *h->mean);
    for (size_t t = 0; t < h->n; t++) h->weights[t] = 0;
    for (size_t g = 0; g < h->G; g++) {
        float *logits = h->logits + g * h->n, most = -INFINITY;
        double sum = 0;
        for (size_t t = 0; t < h->n; t++) {
            float dot = 0;
            for (size_t c = 0; c < h->hd; c++) dot += q[g * h->hd + c] * h->keys[t * h->stride + c];
            logits[t] = dot;
            h->mean[t] += dot / (float)h->G;
            most = dot > most ? dot : most;
        }
        for (size_t t = 0; t < h->n; t++) sum += exp((double)logits[t] - (double)most);
        for (size_t t = 0; t < h->n; t++) h->weights[t] += exp((double)logits[t] - (double)most) / sum / (double)h->G;
    }
    memcpy(h->logits, h->mean, h->n * sizeof *h->mean);
    qsort(h->logits, h->n, sizeof *h->logits, downward);
    size_t left = h->k;
    for (size_t t = 0; t < h->n; t++) left -= h->is_best[t] = h->mean[t] > h->logits[h->k - 1];
    for (size_t t = h->n; t-- > 0 && left;) /* of equal ones the newest, as top_tokens does */
        if (h->mean[t] == h->logits[h->k - 1]) left -= h->is_best[t] = 1;
}

static void group_scores(struct head *h, size_t group) {
    for (size_t t = 0; t < h->n; t += group) {
        uint16_t most = 0;
        for (size_t i = t; i < t + group; i++) most = h->scores[i] > most ? h->scores[i] : most;
        for (size_t i = t; i < t + group; i++) h->scores[i] = most;
    }
}

/* Computes the scores of the tokens for a probe, as in a cache. */
static void score_probe(struct head *h, size_t w, const float *q, uint64_t *state) {
    const struct cpu_index *index = selectors[w].index ? index_variant(selectors[w].index) : NULL;
    if (!index) {
        for (size_t t = 0; t < h->n; t++) h->scores[t] = (uint16_t)(random_next(state) >> 48);
        return;
    }
    index->prepare(h->hd, h->learned[w], q, h->G, h->tables);
    for (size_t t = 0; t < h->n; t += PAGE_TOKENS)
        index->scores(h->hd, h->tables, (uint8_t *)h->pages[w] + t / PAGE_TOKENS * index_bytes(index->format, h->hd),
                      h->scores + t);
    group_scores(h, selectors[w].group);
}

static void run_probe(struct head *h, const float *q, struct found *found, uint64_t *state) {
    attend_probe(h, q);
    for (size_t t = 0; t < h->n; t++) found[BEST].weight += h->is_best[t] ? h->weights[t] : 0;
    found[BEST].recall += 1;
    for (size_t w = BEST + 1; w < SELECTORS; w++) {
        score_probe(h, w, q, state);
        size_t n = top_tokens(h->scores, h->n, h->k, h->selected), right = 0;
        for (size_t i = 0; i < n; i++) {
            right += h->is_best[h->selected[i]];
            found[w].weight += h->weights[h->selected[i]];
        }
        found[w].recall += (double)right / (double)h->k;
    }
}

/* Computes found[SELECTORS] on the prompt's tokens before the probes. */
static bool run_head(const struct cache *cache, uint32_t head, struct found *found) {
    struct head h = {.hd = cache->base.shape.head_dim, .G = cache->group, .n = observed.n - PROBES};
    uint64_t state = random_mix(1 + cache->base.layer * cache->base.shape.kv_heads + head);
    h.stride = cache->base.shape.kv_heads * h.hd;
    h.keys = observed.k + head * h.hd;
    h.k = (size_t)((double)h.n * PERCENT / 100);
    bool good = head_new(&h);
    for (size_t w = 0; w < SELECTORS && good; w++)
        if (selectors[w].index) good = index_head(&h, w, &found[w]);
    if (good) query_rows_load(cache, observed.queries, head, observed.n - PROBES, PROBES, h.queries);
    for (size_t p = 0; p < PROBES && good; p++) run_probe(&h, h.queries + p * h.G * h.hd, found, &state);
    head_free(&h);
    return good;
}

/* ---- Calls of the executor */

/* Returns the relative difference of the last token's attention in head 0, computed here, from out[hd] of the cache. It checks that
 * keys and queries are rotated and scaled as assumed. */
static double difference(const struct cache *cache, const float *out) {
    size_t hd = cache->base.shape.head_dim, stride = cache->base.shape.kv_heads * hd;
    double most = -INFINITY, sum = 0, acc[CODEC_HEAD_DIM_MAX] = {0}, square = 0, error = 0;
    query_rows_load(cache, observed.queries + (PROBES - 1) * cache->base.shape.query_heads * hd, 0, observed.n - 1, 1,
                    observed.last);
    for (int pass = 0; pass < 2; pass++)
        for (size_t t = 0; t < observed.n; t++) {
            double dot = 0;
            for (size_t c = 0; c < hd; c++) dot += (double)observed.last[c] * (double)observed.k[t * stride + c];
            if (!pass) {
                most = dot > most ? dot : most;
                continue;
            }
            sum += exp(dot - most);
            for (size_t c = 0; c < hd; c++) acc[c] += exp(dot - most) * (double)observed.v[t * stride + c];
        }
    for (size_t c = 0; c < hd; c++) {
        square += acc[c] / sum * (acc[c] / sum);
        error += (acc[c] / sum - (double)out[c]) * (acc[c] / sum - (double)out[c]);
    }
    return sqrt(error / square);
}

static enum terse_status append_observed(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    observed.k = rows->k; /* rotated by then */
    observed.v = rows->v;
    return backend_cpu.kv->append(batch, rows, error);
}

static enum terse_status attend_observed(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    struct cache *cache = batch->caches[0]->at;
    size_t width = cache_shape_query_width(&cache->base.shape), heads = cache->base.shape.kv_heads, start = observed.n - PROBES;
    bool measured = observed.on && cache->base.method.policy != &policy_window;
    for (size_t i = 0; i < rows->count && measured; i++)
        if (rows->first + i >= start)
            memcpy(observed.queries + (rows->first + i - start) * width, rows->q + i * width, width * sizeof *rows->q);
    enum terse_status status = backend_cpu.kv->attend(batch, rows, error);
    if (status || !measured || rows->first + rows->count < observed.n) return status;
    double here = difference(cache, rows->out + (rows->count - 1) * width);
    observed.worst = here > observed.worst ? here : observed.worst;
    bool good = true;
#pragma omp parallel for schedule(dynamic, 1) reduction(&& : good)
    for (size_t head = 0; head < heads; head++)
        good = run_head(cache, (uint32_t)head, observed.sum + (rows->layer * heads + head) * SELECTORS) && good;
    observed.failed |= !good;
    observed.n_heads += heads;
    return TERSE_OK;
}

static enum terse_status make_engine(const struct terse_model *model, uint32_t threads, struct terse_engine **engine,
                                     struct terse_error *error) {
    static struct kv_ops ops;
    struct terse_engine_options options = terse_engine_options_defaults();
    struct backend backend = backend_cpu;
    ops = *backend_cpu.kv;
    ops.append = append_observed;
    ops.attend = attend_observed;
    backend.kv = &ops;
    options.threads = threads;
    return engine_new(&backend, model, &options, engine, error);
}

/* ---- Prompts */

struct recall {
    const char *model_path, *file;
    int64_t length, chunks, threads;
    struct terse_model *model;
    struct terse_engine *engine;
    int32_t *tokens;
    size_t n_tokens;
};

static void ignore_row(void *user, size_t i, const float *logits) {
    (void)user;
    (void)i;
    (void)logits;
}

/* Prints the means over the heads that were measured. */
static void print_means(const struct recall *r) {
    size_t heads = (size_t)r->model->layers * r->model->kv_heads;
    double n = (double)(PROBES * observed.n_heads);
    printf("commit %s\n%zu queries, %g %% of %lld tokens; attention agrees to %.1e\n", build_commit(), PROBES * observed.n_heads,
           PERCENT, (long long)r->length - PROBES, observed.worst);
    for (size_t w = 0; w < SELECTORS; w++) {
        struct found all = {0};
        for (size_t i = 0; i < heads; i++) {
            all.recall += observed.sum[i * SELECTORS + w].recall;
            all.weight += observed.sum[i * SELECTORS + w].weight;
            all.error += observed.sum[i * SELECTORS + w].error;
        }
        printf("%s: recall %.6f, weight %.6f", selectors[w].name, all.recall / n, all.weight / n);
        if (selectors[w].error) printf(", error %.6f", all.error / n);
        printf("\n");
    }
}

static int run_prompt(struct recall *r, int32_t *prompt) {
    const struct terse_logits_sink sink = {ignore_row, NULL, observed.n - PROBES};
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    bool add_bos;
    int32_t bos = terse_token_bos(r->model, &add_bos);
    options.context = (uint32_t)observed.n;
    options.progress.report = progress_show;
    if (add_bos) prompt[0] = bos;
    if (terse_session_new(r->engine, &options, &session, &error) != TERSE_OK) return complain_error(&error);
    observed.on = true;
    int status = EXIT_OK;
    if (terse_session_prefill(session, prompt, observed.n, &sink, &error) != TERSE_OK) status = complain_error(&error);
    observed.on = false;
    terse_session_free(session);
    progress_clear();
    if (status == EXIT_OK && observed.failed) status = complain("no memory, or a fitted index is not finite");
    if (status == EXIT_OK && !(observed.worst < TOLERANCE))
        status =
            complain("attention made of the captured keys and queries differs by %g of itself from the cache's", observed.worst);
    return status;
}

static int start(struct recall *r) {
    struct terse_error error;
    char *text = NULL;
    size_t n_bytes;
    if (!r->file) return complain("give -f TEXT");
    if (r->length % PAGE_TOKENS) return complain("-c %lld: give a multiple of %d tokens", (long long)r->length, PAGE_TOKENS);
    if (terse_model_load(r->model_path, &r->model, &error)) return complain_error(&error);
    if (make_engine(r->model, (uint32_t)r->threads, &r->engine, &error)) return complain_error(&error);
    int status = text_read(r->file, &text, &n_bytes);
    if (status == EXIT_OK) status = text_tokenize(r->model, text, n_bytes, TERSE_TOKENIZE_ADD_SPECIAL, &r->tokens, &r->n_tokens);
    free(text);
    if (status != EXIT_OK) return status;
    const struct terse_model *m = r->model;
    if (r->n_tokens < (size_t)(r->length * r->chunks))
        return complain("%s has %zu tokens, fewer than %lld prompts of %lld: use --chunks or -c", r->file, r->n_tokens,
                        (long long)r->chunks, (long long)r->length);
    observed.n = (size_t)r->length;
    observed.queries = memory_array(PROBES * (size_t)m->query_heads * m->head_dim, sizeof *observed.queries);
    observed.last = memory_array((size_t)m->query_heads * m->head_dim, sizeof *observed.last);
    observed.sum = memory_zeros((size_t)m->layers * m->kv_heads * SELECTORS, sizeof *observed.sum);
    if (!observed.queries || !observed.last || !observed.sum) return complain("no memory");
    for (size_t w = 0; w < SELECTORS; w++) /* before threads ask */
        if (selectors[w].index) index_variant(selectors[w].index);
    return EXIT_OK;
}

static enum options_result parse(struct recall *r, int argc, char **argv) {
    const struct option options[] = {
        {"-m, --model", "FILE", OPTION_TEXT, &r->model_path, 0, 0, "GGUF model"},
        {"-f, --file", "FILE", OPTION_TEXT, &r->file, 0, 0, "text"},
        {"-c, --ctx-size", "N", OPTION_INTEGER, &r->length, 2 * PAGE_TOKENS, 1 << 20, "tokens of a prompt"},
        {"--chunks", "K", OPTION_INTEGER, &r->chunks, 1, 4096, "prompts, from the text's beginning"},
        {"-t, --threads", "N", OPTION_INTEGER, &r->threads, 0, 1024, "threads; 0: one per processor"},
    };
    const struct option_set set = {
        .usage = "recall -f TEXT [options]",
        .about = "Measures the recall of indexes: the share of the best tokens that they find.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

int main(int argc, char **argv) {
    struct recall r = {.model_path = DEFAULT_MODEL, .length = 8192, .chunks = 1};
    console_begin("recall");
    enum options_result parsed = parse(&r, argc - 1, argv + 1);
    if (parsed != OPTIONS_GO) return console_end(parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED);
    int status = start(&r);
    for (int64_t i = 0; i < r.chunks && status == EXIT_OK; i++)
        status = console_interrupted() ? EXIT_INTERRUPTED : run_prompt(&r, r.tokens + i * r.length);
    if (status == EXIT_OK) print_means(&r);
    memory_free(observed.queries);
    memory_free(observed.last);
    memory_free(observed.sum);
    free(r.tokens);
    terse_engine_free(r.engine);
    terse_model_free(r.model);
    return console_end(status);
}
