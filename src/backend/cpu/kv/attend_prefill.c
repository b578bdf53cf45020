/* Attends with tiles of queries to groups of keys. */
#include "backend/cpu/kv/attend_prefill.h"

#include "backend/cpu/cap.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/anchor_scores.h"
#include "backend/cpu/kv/exchange.h"
#include "backend/cpu/kv/query_rows.h"
#include "backend/cpu/kv/scratch.h"
#include "backend/cpu/kv/segment_read.h"
#include "backend/cpu/partial.h"
#include "backend/cpu/piece.h"
#include "base/size.h"

#include <math.h>
#include <string.h>

#define QUERY_ROWS 192 /* rows of a tile of queries: the GEMM is near its best from here on */
#define KEY_ROWS 384   /* keys that they meet at a time: rows, keys, values and logits stay in the second-level cache */

/* Returns how many tokens a tile of queries has. */
static size_t prefill_tokens(const struct cache *cache) {
    return size_max(anchor_weights_rows(&cache->base.plan, QUERY_ROWS) / cache->group, 1);
}

size_t attend_prefill_thread_floats(const struct cache *cache) {
    size_t rows = prefill_tokens(cache) * cache->group, hd = cache->base.shape.head_dim;
    return rows * hd + rows * KEY_ROWS + partial_floats(rows, hd) + 2 * KEY_ROWS * hd +
           anchor_weights_floats(&cache->base.plan, rows);
}

/* A group holds keys and values of up to KEY_ROWS tokens: first `known` tokens before the step, then new ones in order from the
 * step's `next` on. */
struct group {
    const float *keys, *values;
    size_t stride, count, known, next;
    int64_t position; /* of the first key, relative to the step's first new token; the others follow */
};

/* Returns how many tokens of the group, always its first ones, the step's i-th new token sees. */
static size_t group_visible(const struct group *group, size_t i) {
    if (i < group->next) return group->known;
    size_t seen = group->known + i + 1 - group->next;
    return seen < group->count ? seen : group->count;
}

/* Returns how many tokens of the group, its first ones, are too old for the step's i-th new token. */
static size_t group_hidden(const struct cache *cache, const struct group *group, size_t i) {
    int64_t hidden = (int64_t)i + 1 - (int64_t)cache->base.shape.window - group->position;
    return !cache->base.shape.window || hidden < 0 ? 0 : hidden < (int64_t)group->count ? (size_t)hidden : group->count;
}

/* Returns how many segments of new tokens, from the i-th segment on, this rank reads together. */
static size_t new_segments(const struct cache *cache, uint32_t head, size_t i, size_t end) {
    const size_t most = size_min(KEY_ROWS / PAGE_TOKENS, end - i);
    size_t n = exchange_due(cache) ? 0 : most;
    while (n < most && segment_at(cache, head, i + n).live) n++;
    return n;
}

/* Returns the group that begins with segment *i < end, which is advanced past it. The group is decoded into
 * workspace[2][KEY_ROWS][hd] unless it is read in place. */
static struct group group_at(const struct cache *cache, uint32_t head, size_t *i, size_t end, float *workspace) {
    size_t hd = cache->base.shape.head_dim, width = cache->base.shape.kv_heads * hd, stored = segment_count_stored(cache);
    if (cache->new_keys && *i >= stored) {
        size_t next = (*i - stored) * PAGE_TOKENS, at = next * width + head * hd, segments = new_segments(cache, head, *i, end);
        if (!segments) ++*i;
        size_t count = size_min(segments * PAGE_TOKENS, cache->base.plan.n - next);
        *i += segments;
        return (struct group){cache->new_keys + at, cache->v + at, width, count, 0, next, (int64_t)next};
    }
    struct group group = {workspace, workspace + KEY_ROWS * hd, hd, 0, 0, 0, 0};
    uint64_t length = cache->base.plan.before.length;
    for (; *i < (cache->new_keys ? size_min(stored, end) : end) && group.count + PAGE_TOKENS <= KEY_ROWS; ++*i) {
        struct segment segment = segment_at(cache, head, *i);
        if (!segment.live) continue;
        const int64_t position = segment_position(cache, &segment) + segment.begin;
        if (group.count && exchange_due(cache) && position != group.position + (int64_t)group.count) break;
        uint64_t first = segment.first + segment.begin, last = segment.first + segment.end;
        size_t count = read_count(segment.live);
        if (!group.count) group.position = position;
        segment_load(cache, &segment, head, workspace + group.count * hd, workspace + (KEY_ROWS + group.count) * hd);
        if (group.known == group.count && last > length) group.next = first > length ? (size_t)(first - length) : 0;
        if (first < length) group.known += last <= length ? count : (size_t)(length - first);
        group.count += count;
    }
    return group;
}

/* Computes the logits of a tile of queries against a group, as far as the last of them sees, ALiBi included, in rows that are
 * `stride` apart; the first query is the step's i-th new token. */
static void group_logits(const struct cache *cache, const struct group *group, uint32_t head, const float *queries, size_t i,
                         size_t rows, float *logits, size_t stride) {
    size_t hd = cache->base.shape.head_dim, G = cache->group, n = group_visible(group, i + (rows - 1) / G);
    gemm(true, rows, n, hd, queries, hd, group->keys, group->stride, false, logits, stride);
    for (size_t m = 0; cache->base.shape.cap > 0 && m < rows; m++) cap_row(logits + m * stride, cache->base.shape.cap, n);
    if (!cache->base.shape.slopes) return;
    for (size_t m = 0; m < rows; m++)
        add_alibi(cache->base.shape.slopes[head * G + m % G], group->position - (int64_t)(i + m / G), logits + m * stride, n);
}

/* Returns the first segment of which the step's i-th new token sees anything. */
static size_t first_segment(const struct cache *cache, uint32_t head, size_t i, size_t segments) {
    uint64_t seen = segment_first_seen(cache, i);
    size_t n = 0;
    for (; n < segments; n++) {
        struct segment segment = segment_at(cache, head, n);
        if (segment.first + segment.end > seen) break;
    }
    return n;
}

/* Does one work item: queries [first, first + count) of a KV head, of which the first is the at-th that attends now. Returns the weights
 * that the choice of anchors needs. */
static struct anchor_weights attend_queries(const struct cache *cache, const float *q, uint32_t head, size_t first, size_t count,
                                            size_t at, float *out, float *scratch) {
    const struct vector_ops *kernel = vector_ops();
    size_t G = cache->group, hd = cache->base.shape.head_dim, rows = count * G,
           segments = segment_count_seen(cache, first + count - 1);
    float *queries = scratch, *logits = queries + rows * hd, *states = logits + rows * KEY_ROWS;
    float *workspace = states + partial_floats(rows, hd);
    struct partial partial = partial_at(states, rows, hd);
    struct anchor_weights kept =
        anchor_weights_of(cache, head, first, count, segments, queries, &partial, workspace + 2 * KEY_ROWS * hd);
    partial_clear(&partial);
    if (!exchange_due(cache)) query_rows_add_sinks(cache, &partial, head * cache->group, cache->group);
    query_rows_load(cache, q, head, first, count, queries);
    for (size_t i = first_segment(cache, head, first, segments); i < segments;) {
        float *weights = anchor_weights_at(cache, head, &kept, i);
        size_t stride = weights ? kept.stride : KEY_ROWS, from = i,
               end = i < kept.start ? kept.start
                     : i < kept.end ? kept.end
                                    : segments;
        struct group group = group_at(cache, head, &i, end, workspace);
        size_t n = group_visible(&group, first + count - 1);
        if (!n) continue;
        if (!weights) weights = logits;
        group_logits(cache, &group, head, queries, first, rows, weights, stride);
        for (size_t m = 0; m < rows; m++) {
            float *row = weights + m * stride;
            size_t visible = group_visible(&group, first + m / G),
                   hidden = size_min(group_hidden(cache, &group, first + m / G), visible);
            float max = partial_raise(&partial, m, kernel->max(row + hidden, visible - hidden));
            memset(row, 0, hidden * sizeof *row);
            partial.sum[m] += kernel->exp_sum(row + hidden, max, visible - hidden);
            memset(row + visible, 0, (n - visible) * sizeof *row);
        }
        anchor_weights_raise(&kept, from, i);
        if (out) gemm(false, rows, hd, n, weights, stride, group.values, group.stride, true, partial.acc, hd);
    }
    if (out && exchange_due(cache))
        exchange_put(cache, head, at, &partial);
    else if (out)
        query_rows_finish(cache, &partial, head, count, out);
    return kept;
}

/* Returns the number of work items: tiles of queries, each for all KV heads. */
static size_t prefill_items(const struct cache *cache, size_t count) {
    size_t tokens = prefill_tokens(cache);
    return (count + tokens - 1) / tokens * cache->base.shape.kv_heads;
}

/* Does the items up to `end`, from the first that is not done. */
static void attend_items(struct cache *cache, const float *q, size_t first, size_t count, float *out, size_t end) {
    size_t heads = cache->base.shape.kv_heads, width = cache->base.shape.query_heads * cache->base.shape.head_dim;
    size_t tokens = prefill_tokens(cache), parts = (count + tokens - 1) / tokens;
    /* The last queries see the most keys, so they go first. */
#pragma omp parallel for ordered schedule(dynamic, 1) num_threads(cache->base.threads)
    for (size_t item = cache->attended; item < end; item++) {
        size_t part = (parts - 1 - item / heads) * tokens;
        uint32_t head = (uint32_t)(item % heads);
        struct anchor_weights kept = attend_queries(cache, q + part * width, head, first + part, size_min(tokens, count - part),
                                                    part, out ? out + part * width : NULL, scratch_of_thread(cache));
#pragma omp ordered
        anchor_scores_add(cache, head, &kept);
    }
    cache->attended = end;
}

bool attend_prefill_some(struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    double rows = (double)(prefill_tokens(cache) * cache->group),
           keys = (double)(segment_count_seen(cache, first + count - 1) * PAGE_TOKENS);
    double rounds = PIECE_MULTIPLICATIONS / (2 * rows * keys * cache->base.shape.head_dim);
    size_t some = (rounds > 1 ? (size_t)rounds : 1) * cache->base.threads;
    if (prefill_items(cache, count) - cache->attended <= some) return false;
    attend_items(cache, q, first, count, out, cache->attended + some);
    return true;
}

void attend_prefill(struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    attend_items(cache, q, first, count, out, prefill_items(cache, count));
    cache->attended = 0;
}
