/* Computes Anchor Scores from the weights that attention computes, and chooses anchors. There is never an L x L matrix, and no
 * second sweep over the logits as in AnTKV's algorithm 1, which would take as long as attention itself without its values. */
#include "backend/cpu/kv/anchor_scores.h"

#include "backend/cpu/kernels/select/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/segment.h"
#include "base/memory.h"
#include "base/size.h"
#include "kv/anchor_random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_FLOATS ((size_t)8 << 20) /* of weights that a thread keeps, but for one query token at least */

/* ---- Memory */

/* A step with anchors works in this memory: it holds scores and the best tokens so far. */
struct work {
    float *scores;  /* [Hk][keys, values][plan.sealed] */
    uint64_t *best; /* [Hk][plan.anchors] */
};

static struct work work_at(float *memory, const struct cache *cache, const struct plan *plan, size_t *floats) {
    size_t sides = 2 * (size_t)cache->base.shape.kv_heads, scores = sides * memory_round_up(plan->sealed, 2);
    *floats = scores + sides * plan->anchors;
    if (!memory) return (struct work){0};
    return (struct work){memory, (uint64_t *)(void *)(memory + scores)};
}

static struct work work_of(const struct cache *cache) { return work_at(cache->observed, cache, &cache->base.plan, &(size_t){0}); }

static float *scores_of(const struct cache *cache, uint32_t head, enum codec_side side) {
    return work_of(cache).scores + (2 * (size_t)head + (side == CODEC_VALUES)) * memory_round_up(cache->base.plan.sealed, 2);
}

enum terse_status anchor_scores_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error) {
    size_t floats;
    if (!plan->anchors) return TERSE_OK;
    work_at(NULL, cache, plan, &floats);
    if (floats > cache->observed_floats) {
        memory_free(cache->observed);
        cache->observed_floats = 0;
        cache->observed = memory_array(floats, sizeof *cache->observed);
        if (!cache->observed) return status_no_memory(error, floats * sizeof *cache->observed, "anchor scores");
        cache->observed_floats = floats;
    }
    return TERSE_OK;
}

/* ---- Scores */

void anchor_scores_begin_layer(struct cache *cache) {
    if (!cache->base.plan.anchors) return;
    memset(scores_of(cache, 0, CODEC_KEYS), 0,
           2 * cache->base.shape.kv_heads * memory_round_up(cache->base.plan.sealed, 2) * sizeof(float));
}

bool anchor_scores_wanted(const struct cache *cache, size_t first, size_t count) {
    return cache->base.plan.anchors && !cache->sealed_first && first + count > cache->base.plan.ranking;
}

/* Returns the stride of weights. It is odd in lines of 16 floats, so that rows do not all begin in the same set of a processor
 * cache. */
static size_t weights_stride(const struct plan *plan) {
    return plan->anchors ? memory_round_up(plan->sealed + 2 * PAGE_TOKENS, 2 * PAGE_TOKENS) + PAGE_TOKENS / 4 : 0;
}

/* Returns how many segments hold these tokens: full ones, but for the first and last of the window and of the new tokens. */
static size_t weights_segments(const struct plan *plan) { return plan->sealed / PAGE_TOKENS + 4; }

size_t anchor_weights_rows(const struct plan *plan, size_t most) {
    size_t stride = weights_stride(plan), fit = stride ? KEPT_FLOATS / stride : most;
    return size_min(fit, most);
}

size_t anchor_weights_floats(const struct plan *plan, size_t rows) {
    return plan->anchors ? rows * (weights_stride(plan) + weights_segments(plan) + 1) : 0;
}

static bool holds_token(const struct cache *cache, uint32_t head, size_t i, uint64_t token) {
    struct segment segment = segment_at(cache, head, i);
    return segment.kind == SEGMENT_NEW && segment.first <= token && token < segment.first + segment.end;
}

struct anchor_weights anchor_weights_of(const struct cache *cache, uint32_t head, size_t first, size_t count, size_t segments,
                                        const float *queries, const struct partial *partial, float *memory) {
    const struct plan *plan = &cache->base.plan;
    uint64_t begin = plan_first_sealed(plan), last = begin + plan->sealed;
    struct anchor_weights kept = {.queries = queries, .partial = *partial};
    if (!anchor_scores_wanted(cache, first, count) || !plan->sealed) return kept;
    kept.last = first + count - 1;
    kept.stride = weights_stride(plan);
    kept.weights = memory;
    kept.raised = memory + partial->rows * kept.stride;
    kept.norms = kept.raised + partial->rows * weights_segments(plan);
    kept.ignored = first < cache->base.plan.ranking ? (cache->base.plan.ranking - first) * cache->group : 0;
    kept.start = kept.end = segments;
    while (kept.start && segment_at(cache, head, kept.start - 1).first >= begin) kept.start--;
    while (kept.end > kept.start && segment_at(cache, head, kept.end - 1).first >= last) kept.end--;
    /* New tokens are not cut where pages are: the first of their segments may begin with exact rows. */
    if (kept.start && holds_token(cache, head, kept.start - 1, begin)) kept.start--;
    if (kept.start < kept.end) kept.origin = segment_at(cache, head, kept.start).first;
    return kept;
}

float *anchor_weights_at(const struct cache *cache, uint32_t head, const struct anchor_weights *kept, size_t i) {
    if (i < kept->start || i >= kept->end) return NULL;
    return kept->weights + (size_t)(segment_at(cache, head, i).first - kept->origin);
}

void anchor_weights_raise(struct anchor_weights *kept, size_t i, size_t end) {
    for (; i >= kept->start && i < kept->end && i < end; i++)
        memcpy(kept->raised + (i - kept->start) * kept->partial.rows, kept->partial.max, kept->partial.rows * sizeof(float));
}

/* Adds what the rows that count contribute to n <= 64 tokens. The kernel always takes 64 tokens; where there are fewer, the weights and scores of
 * the others are undefined and the scores are dropped. */
static void add_segment(const struct anchor_weights *kept, const float *weights, const float *factors, size_t n, float *keys,
                        float *values) {
    size_t rows = kept->partial.rows > kept->ignored ? kept->partial.rows - kept->ignored : 0;
    float all_keys[PAGE_TOKENS] = {0}, all_values[PAGE_TOKENS] = {0};
    bool part = n < PAGE_TOKENS;
    if (part) {
        memcpy(all_keys, keys, n * sizeof *keys);
        memcpy(all_values, values, n * sizeof *values);
    }
    select_ops()->add_anchors(weights + kept->ignored * kept->stride, kept->stride, factors + kept->ignored,
                              kept->norms + kept->ignored, rows, part ? all_keys : keys, part ? all_values : values);
    if (part) {
        memcpy(keys, all_keys, n * sizeof *keys);
        memcpy(values, all_values, n * sizeof *values);
    }
}

void anchor_scores_add(struct cache *cache, uint32_t head, const struct anchor_weights *kept) {
    const struct plan *plan = &cache->base.plan;
    const struct partial *partial = &kept->partial;
    size_t hd = cache->base.shape.head_dim;
    for (size_t m = kept->ignored; kept->end > kept->start && m < partial->rows; m++) {
        const float *query = kept->queries + m * hd;
        kept->norms[m] = sqrtf(vector_ops()->dot(query, query, hd)) / cache->base.shape.scale;
    }
    for (size_t i = kept->start; i < kept->end; i++) {
        struct segment segment = segment_at(cache, head, i);
        uint64_t token = size_max(segment.first, plan_first_sealed(plan)),
                 end = segment.first + segment_visible(cache, &segment, kept->last);
        size_t at = (size_t)(token - plan_first_sealed(plan)), n = end > token ? (size_t)(end - token) : 0;
        float *factors = kept->raised + (i - kept->start) * partial->rows;
        if (n > plan->sealed - at) n = plan->sealed - at; /* what follows stays in the window */
        for (size_t m = kept->ignored; m < partial->rows; m++) {
            float scale = expf(factors[m] - partial->max[m]) / partial->sum[m];
            factors[m] = partial->sum[m] > 0 ? scale : 0;
        }
        add_segment(kept, kept->weights + (size_t)(token - kept->origin), factors, n, scores_of(cache, head, CODEC_KEYS) + at,
                    scores_of(cache, head, CODEC_VALUES) + at);
    }
}

void anchor_scores_copy(struct cache *cache, const struct cache *from) {
    size_t floats = 2 * cache->base.shape.kv_heads * memory_round_up(cache->base.plan.sealed, 2);
    memcpy(scores_of(cache, 0, CODEC_KEYS), scores_of(from, 0, CODEC_KEYS), floats * sizeof(float));
}

/* Returns what a token's attention is multiplied by: the error of its row x[hd], decoded as y[hd]. */
static float error_of(enum terse_anchor_score score, const float *x, const float *y, size_t hd) {
    float sum = 0;
    for (size_t c = 0; c < hd; c++) {
        float difference = x[c] - y[c];
        sum += score == TERSE_ANCHORS_L1 ? fabsf(difference) : difference * difference;
    }
    return sum;
}

void anchor_scores_scale(struct cache *cache, uint32_t head, enum codec_side side, size_t i, size_t count, const float *rows,
                         const float *decoded) {
    size_t hd = cache->base.shape.head_dim;
    const enum terse_anchor_score score = cache->base.method.parameters.anchor_score;
    float *scores = scores_of(cache, head, side) + i;
    if (cache->base.plan.ranked) return;
    for (size_t t = 0; t < count; t++) {
        if (score == TERSE_ANCHORS_RANDOM)
            scores[t] = anchor_random_score(layer_head(cache, cache->base.layer, head), side == CODEC_VALUES,
                                            plan_first_sealed(&cache->base.plan) + i + t);
        else
            scores[t] *= error_of(score, rows + t * hd, decoded + t * hd, hd);
    }
}

/* ---- The choice */

/* Returns a rank with the score above and the age below. Scores are not negative, so their bits order as they do; of equal scores
 * the older token's rank is the larger. */
static uint64_t rank_of(float score, size_t token) {
    uint32_t bits;
    if (!(score > 0)) score = 0; /* NaN too */
    memcpy(&bits, &score, sizeof bits);
    return (uint64_t)bits << 32 | (UINT32_MAX - (uint32_t)token);
}
static size_t token_of(uint64_t rank) { return UINT32_MAX - (uint32_t)rank; }

/* Restores the order below entry i of a heap whose least is on top. */
static void sift_down(uint64_t *heap, size_t n, size_t i) {
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[i] <= heap[child]) return;
        uint64_t lower = heap[child];
        heap[child] = heap[i];
        heap[i] = lower;
    }
}

static int by_token(const void *a, const void *b) {
    size_t x = token_of(*(const uint64_t *)a), y = token_of(*(const uint64_t *)b);
    return x < y ? -1 : x > y;
}

/* Chooses best[k] of scores[n], in order of their tokens. */
static void choose(const float *scores, size_t n, uint64_t *best, size_t k) {
    for (size_t i = 0; i < k; i++) best[i] = rank_of(scores[i], i);
    for (size_t i = k / 2; i-- > 0;) sift_down(best, k, i);
    for (size_t i = k; i < n; i++) {
        uint64_t rank = rank_of(scores[i], i);
        if (rank <= best[0]) continue;
        best[0] = rank;
        sift_down(best, k, 0);
    }
    qsort(best, k, sizeof *best, by_token);
}

/* Averages scores with those of their neighbours: to[n] are means of from[n] over as many as there are of RANKING_NEIGHBOURS on
 * either side. */
static void pool(const float *from, size_t n, float *to) {
    for (size_t i = 0; i < n; i++) {
        size_t first = i > RANKING_NEIGHBOURS ? i - RANKING_NEIGHBOURS : 0, last = size_min(i + RANKING_NEIGHBOURS, n - 1);
        float sum = 0;
        for (size_t j = first; j <= last; j++) sum += from[j];
        to[i] = sum / (float)(last - first + 1);
    }
}

static void store(struct cache *cache, uint32_t head, enum codec_side side, const uint64_t *best) {
    for (size_t i = 0; i < cache->base.plan.anchors; i++)
        anchors_store(cache, side, head, i, plan_first_sealed(&cache->base.plan) + token_of(best[i]));
}

void anchors_choose(struct cache *cache) {
    const struct plan *plan = &cache->base.plan;
    size_t k = plan->anchors;
    if (!k) return;
#pragma omp for schedule(dynamic, 1)
    for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++) {
        uint64_t *best = work_of(cache).best + head * k;
        float *keys = scores_of(cache, head, CODEC_KEYS), *values = scores_of(cache, head, CODEC_VALUES);
        if (plan->ranked) pool(values, plan->sealed, keys);
        choose(keys, plan->sealed, best, k);
        store(cache, head, CODEC_KEYS, best);
        if (!plan->ranked) choose(values, plan->sealed, best, k);
        store(cache, head, CODEC_VALUES, best);
    }
}
