/* Attention of a step's queries over everything the step's tokens may see. Two ways, one result; the choice and the first are here:
 *
 * A few queries (decoding) read codes: each tile is visited once per KV head, scored and mixed for all queries of the head's group
 * together. Work items are (range of tiles, KV head), each with a partial state; ranges depend on the cache's length alone and
 * partial states merge in their order, so that neither timing nor the number of threads changes a result.
 *
 * Many queries (prefill) read rows, through matrix products: attend_prefill.c.
 */
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/segment.h"
#include "backend/cpu/kv/select.h"
#include "base/memory.h"
#include "kv/partial.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define DECODE_ROWS 96   /* queries times G up to which reading codes was measured to be the faster way */
#define RUN_LOGITS 128   /* tiles times rows that share one update of the running maximum */
#define ITEMS 128        /* of work that a few queries are split into, at most */
#define ITEM_ROWS 4096   /* rows of all their partial states: bounds the memory */
#define ITEM_SEGMENTS 4  /* least tiles of an item */
#define ROTARY 16        /* runs of items that a thread takes, about */
#define WAKE_SEGMENTS 16 /* tiles times KV heads for which waking the threads pays */

/* ---- A few queries */

/* Tokens that are a few. Keys to be turned are decoded either way, so then one is the limit. */
static size_t decode_tokens(const struct cache *cache) { return cache->rotated ? larger(DECODE_ROWS / cache->group, 1) : 1; }

/* Most rows of a step, from which its memory and the way work is split are decided. */
static size_t decode_rows(const struct cache *cache) { return smaller(cache->plan.n, decode_tokens(cache)) * cache->group; }

static size_t decode_splits(const struct cache *cache) {
    size_t most = smaller(ITEMS, ITEM_ROWS / decode_rows(cache)) / cache->shape.kv_heads;
    return larger(smaller(segment_count(cache) / ITEM_SEGMENTS, most), 1);
}

/* Floats of a key codec's look-up tables for `rows` queries of a KV head; they are of use where keys meet queries as they lie. */
static size_t table_floats(const struct cache *cache, size_t rows) {
    const struct codec *codec = cache->method.key.codec;
    size_t floats = cache->rotated && codec->prepared ? codec->prepared(side_shape(cache, CODEC_KEYS, 0, 0, rows)) : 0;
    return memory_round_up(floats, MEMORY_ALIGN / sizeof(float));
}

/* Floats in which a value codec adds weights up by code, for a run of tiles. */
static size_t code_sum_floats(const struct cache *cache, size_t rows) {
    const struct codec *codec = cache->method.value.codec;
    return codec->code_sums ? codec->code_sums(side_shape(cache, CODEC_VALUES, 0, 0, rows)) : 0;
}

/* A step may ask for fewer rows than its most, and a codec may then want more for its tables. */
static size_t most_floats(const struct cache *cache, size_t (*floats)(const struct cache *cache, size_t rows)) {
    size_t most = 0;
    for (size_t rows = cache->group; rows <= decode_rows(cache); rows += cache->group) most = larger(most, floats(cache, rows));
    return most;
}

static size_t decode_shared(const struct cache *cache) {
    size_t rows = decode_rows(cache), hd = cache->shape.head_dim, heads = cache->shape.kv_heads;
    return heads * (rows * hd + most_floats(cache, table_floats) + decode_splits(cache) * partial_floats(rows, hd));
}

static size_t decode_scratch(const struct cache *cache) {
    size_t rows = decode_rows(cache);
    return larger(RUN_LOGITS, rows) * PAGE_TOKENS + segment_workspace_floats(cache, rows) + most_floats(cache, code_sum_floats);
}

struct pass {
    const struct cache *cache;
    size_t first, rows;
    size_t segments, splits;
    float *queries; /* [Hk][rows][hd] */
    size_t table_floats;
    float *tables;   /* [Hk][table_floats] */
    float *partials; /* [splits][Hk] of partial_floats(rows, hd) */
};

static struct partial decode_partial(const struct pass *pass, size_t split, uint32_t head) {
    size_t hd = pass->cache->shape.head_dim, item = split * pass->cache->shape.kv_heads + head;
    return partial_at(pass->partials + item * partial_floats(pass->rows, hd), pass->rows, hd);
}

/* The end of the whole tiles from the r-th on. */
static size_t whole_segments(const struct segment *segments, size_t r, size_t n, const uint32_t *end) {
    while (r < n && !segments[r].begin && end[r] == PAGE_TOKENS) r++;
    return r;
}

/* The largest logit of one row of logits[n][rows][64], of each tile in its slots [begin, end[n]). Whole tiles are looked at together. */
static float largest_logit(const struct pass *pass, const struct segment *segments, size_t n, const uint32_t *end,
                           const float *row) {
    const struct vector_ops *kernel = vector_ops();
    size_t step = pass->rows * PAGE_TOKENS;
    float max = -INFINITY;
    for (size_t r = 0, next; r < n; r = next) {
        next = whole_segments(segments, r, n, end);
        float most = next > r ? kernel->max_pages(row + r * step, next - r, step)
                              : kernel->max(row + r * step + segments[r].begin, end[r] - segments[r].begin);
        if (next == r) next++;
        max = most > max ? most : max;
    }
    return max;
}

/* That row's logits to weights under one maximum, 0 outside these slots; returns their sum. */
static float weigh_row(const struct pass *pass, const struct segment *segments, size_t n, const uint32_t *end, float max,
                       float *row) {
    const struct vector_ops *kernel = vector_ops();
    size_t step = pass->rows * PAGE_TOKENS;
    float sum = 0;
    for (size_t r = 0, next; r < n; r = next) {
        next = whole_segments(segments, r, n, end);
        if (next > r) {
            sum += kernel->exp_pages(row + r * step, max, next - r, step);
            continue;
        }
        float *weights = row + r * step;
        uint32_t begin = segments[r].begin;
        memset(weights, 0, begin * sizeof *weights);
        sum += kernel->exp_sum(weights + begin, max, end[r] - begin);
        memset(weights + end[r], 0, (PAGE_TOKENS - end[r]) * sizeof *weights);
        next++;
    }
    return sum;
}

/* Turns logits[n][rows][64] of a run of tiles into weights, row by row under one running maximum. */
static void weigh_run(const struct pass *pass, uint32_t head, const struct segment *segments, size_t n, float *logits,
                      struct partial *partial) {
    const float *slopes = pass->cache->shape.slopes ? pass->cache->shape.slopes + head * pass->cache->group : NULL;
    size_t step = pass->rows * PAGE_TOKENS;
    uint32_t end[RUN_LOGITS];
    for (size_t m = 0; m < pass->rows; m++) {
        size_t token = pass->first + m / pass->cache->group;
        float *row = logits + m * PAGE_TOKENS;
        for (size_t r = 0; r < n; r++) {
            uint32_t begin = segments[r].begin;
            end[r] = segment_visible(pass->cache, &segments[r], token);
            if (slopes) /* no method that chooses tokens is offered with ALiBi */
                add_slope(slopes[m % pass->cache->group], segment_position(pass->cache, &segments[r]) + begin - (int64_t)token,
                          row + r * step + begin, end[r] - begin);
        }
        float max = partial_raise(partial, m, largest_logit(pass, segments, n, end, row));
        partial->sum[m] += weigh_row(pass, segments, n, end, max, row);
    }
}

/* Whether no weight of a tile is more than a small part of what its query has seen so far, of which more is yet to come. */
static bool fits_int8(const struct partial *partial, const float *weights, size_t rows) {
    for (size_t m = 0; m < rows; m++)
        if (!(vector_ops()->max(weights + m * PAGE_TOKENS, PAGE_TOKENS) <= INT8_WEIGHT_LIMIT * partial->sum[m])) return false;
    return true;
}

/* partial->acc += weights times the values of a run of tiles, of which partial->sum has the weights. */
static void accumulate_run(const struct pass *pass, uint32_t head, struct segment *segments, size_t n, float *weights,
                           float *workspace, float *code_sums, struct partial *partial) {
    const struct cache *cache = pass->cache;
    const struct codec *codec = cache->method.value.codec;
    size_t rows = pass->rows, floats = code_sum_floats(cache, rows);
    bool summed = false, int8 = codec->accumulate_int8 && scaled_ops()->int8_is_faster;
    for (size_t r = 0; r < n; r++) {
        float *own = weights + r * rows * PAGE_TOKENS;
        bool coded = segments[r].kind == SEGMENT_SEALED || segments[r].kind == SEGMENT_PACKED, by_code = floats && coded;
        if (by_code && !summed) memset(code_sums, 0, floats * sizeof *code_sums);
        summed |= by_code;
        segments[r].int8_weights = coded && !by_code && int8 && fits_int8(partial, own, rows);
        segment_accumulate(cache, &segments[r], head, own, rows, workspace, by_code ? code_sums : NULL, partial->acc);
    }
    if (summed) codec->finish_code_sums(side_shape(cache, CODEC_VALUES, cache->layer, head, rows), code_sums, partial->acc);
}

/* Of a KV head; NULL where its codebook is read without tables, or with larger ones than those that room was made for: heads may
 * differ in what was learned. */
static float *tables_of(const struct pass *pass, uint32_t head) {
    const struct cache *cache = pass->cache;
    if (!pass->table_floats) return NULL;
    size_t floats = cache->method.key.codec->prepared(side_shape(cache, CODEC_KEYS, cache->layer, head, pass->rows));
    return floats && floats <= pass->table_floats ? pass->tables + head * pass->table_floats : NULL;
}

/* To be called where a thread comes to another KV head. */
static void prefetch_head_codebooks(const struct pass *pass, uint32_t head) {
    const struct cache *cache = pass->cache;
    for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        const struct codec *codec = (side == CODEC_KEYS ? &cache->method.key : &cache->method.value)->codec;
        if (codec->prefetch_codebook)
            codec->prefetch_codebook(side_shape(cache, side, cache->layer, head, pass->rows), side, pass->segments);
    }
}

/* One work item. */
static void read_segments(const struct pass *pass, size_t split, uint32_t head, float *scratch) {
    const struct cache *cache = pass->cache;
    size_t rows = pass->rows, run = larger(RUN_LOGITS / rows, 1);
    size_t end = (split + 1) * pass->segments / pass->splits;
    const float *q = pass->queries + head * rows * cache->shape.head_dim;
    const float *tables = tables_of(pass, head);
    float *logits = scratch, *workspace = scratch + larger(RUN_LOGITS, rows) * PAGE_TOKENS,
          *code_sums = workspace + segment_workspace_floats(cache, rows);
    struct partial partial = decode_partial(pass, split, head);
    struct segment segments[RUN_LOGITS];
    partial_clear(&partial);
    for (size_t first = split * pass->segments / pass->splits; first < end; first += run) {
        size_t n = smaller(run, end - first);
        for (size_t r = 0; r < n; r++) {
            segments[r] = select_active(cache) ? select_segment_at(cache, head, first + r) : segment_at(cache, first + r);
            segment_score(cache, &segments[r], head, q, tables, rows, workspace, logits + r * rows * PAGE_TOKENS);
        }
        weigh_run(pass, head, segments, n, logits, &partial);
        accumulate_run(pass, head, segments, n, logits, workspace, code_sums, &partial);
    }
}

/* Scaled and turned, and the key codec's tables of them. */
static void prepare_queries(const struct pass *pass, const float *q, uint32_t head, size_t count) {
    const struct cache *cache = pass->cache;
    float *queries = pass->queries + head * pass->rows * cache->shape.head_dim;
    gather_queries(cache, q, head, pass->first, count, queries);
    float *tables = tables_of(pass, head);
    if (select_active(cache)) select_prepare(cache, head, queries);
    if (tables) cache->method.key.codec->prepare(side_shape(cache, CODEC_KEYS, cache->layer, head, pass->rows), queries, tables);
}

/* What a KV head reads of a prompt. */
static void choose_tokens(const struct cache *cache, uint32_t head) {
    for (size_t range = 0; range < select_ranges(cache); range++) select_score(cache, head, range);
    select_top_k(cache, head);
}

static void attend_decode(const struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    uint32_t heads = cache->shape.kv_heads;
    bool sparse = select_active(cache);
    size_t rows = count * cache->group, hd = cache->shape.head_dim;
    size_t segments = sparse ? select_segment_count(cache) : segment_count_seen(cache, first + count - 1),
           ranges = sparse ? select_ranges(cache) : 0;
    struct pass pass = {.cache = cache, .first = first, .rows = rows, .segments = segments};
    /* With a head for every thread each goes its way from scores to outputs: what it scored is near when it reads. */
    bool apart = sparse && heads >= (uint32_t)cache->threads;
    pass.splits = apart ? 1 : smaller(decode_splits(cache), larger(segments / ITEM_SEGMENTS, 1));
    pass.table_floats = table_floats(cache, rows);
    pass.queries = cache->scratch;
    pass.tables = pass.queries + heads * rows * hd;
    pass.partials = pass.tables + heads * pass.table_floats;
    size_t items = pass.splits * heads, chunk = larger(items / (ROTARY * (size_t)cache->threads), 1);
#pragma omp parallel num_threads(cache->threads) if (segments * heads >= WAKE_SEGMENTS)
    {
#pragma omp for schedule(static)
        for (uint32_t head = 0; head < heads; head++) prepare_queries(&pass, q, head, count);
        if (sparse && !apart) {
#pragma omp for schedule(static)
            for (size_t item = 0; item < ranges * heads; item++) select_score(cache, (uint32_t)(item / ranges), item % ranges);
#pragma omp for schedule(static)
            for (uint32_t head = 0; head < heads; head++) select_top_k(cache, head);
        }
        /* A thread goes on where its last item ended: what the kernels prefetched there is near. Yet nobody waits long for the last:
         * threads are not equally fast, and a guided schedule would give the first one half of all. */
        uint32_t near = UINT32_MAX; /* the KV head whose tables are */
#pragma omp for schedule(dynamic, chunk)
        for (size_t item = 0; item < items; item++) {
            uint32_t head = (uint32_t)(item / pass.splits);
            if (apart) choose_tokens(cache, head);
            if (head != near) prefetch_head_codebooks(&pass, head);
            near = head;
            read_segments(&pass, item % pass.splits, head, attend_thread_scratch(cache));
        }
#pragma omp for schedule(static)
        for (uint32_t head = 0; head < heads; head++) {
            struct partial whole = decode_partial(&pass, 0, head);
            for (size_t split = 1; split < pass.splits; split++) {
                struct partial part = decode_partial(&pass, split, head);
                partial_merge(&whole, &part);
            }
            scatter_outputs(cache, &whole, head, count, out);
        }
    }
}

/* ---- Both */

static bool has_prefill(const struct cache *cache) { return cache->plan.n > decode_tokens(cache) || cache->plan.anchors; }

static size_t thread_floats(const struct cache *cache) {
    size_t floats = larger(decode_scratch(cache), 2 * PAGE_TOKENS * cache->shape.head_dim);
    if (has_prefill(cache)) floats = larger(floats, prefill_scratch(cache));
    return memory_round_up(floats, MEMORY_ALIGN / sizeof(float));
}

static size_t before_new_keys(const struct cache *cache) {
    return memory_round_up(decode_shared(cache), MEMORY_ALIGN / sizeof(float)) + (size_t)cache->threads * thread_floats(cache);
}

size_t attend_scratch(const struct cache *cache) {
    size_t keys = has_prefill(cache) && !cache->rotated ? cache->plan.n * cache->shape.kv_heads * cache->shape.head_dim : 0;
    return before_new_keys(cache) + keys;
}

float *attend_new_keys(const struct cache *cache) {
    return has_prefill(cache) && !cache->rotated ? cache->scratch + before_new_keys(cache) : NULL;
}

float *attend_thread_scratch(const struct cache *cache) {
    size_t shared = memory_round_up(decode_shared(cache), MEMORY_ALIGN / sizeof(float));
    return cache->scratch + shared + (size_t)omp_get_thread_num() * thread_floats(cache);
}

void attend(struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    if (select_active(cache)) {
        size_t width = cache->shape.query_heads * cache->shape.head_dim;
        for (size_t i = 0; i < count; i++) attend_decode(cache, q + i * width, first + i, 1, out + i * width);
    } else if (count <= decode_tokens(cache) && !anchors_listen(cache, first, count))
        attend_decode(cache, q, first, count, out);
    else
        attend_prefill(cache, q, first, count, out);
}
