/* Implements the attention of decoding steps: passes over segments, split into work items. */
#include "backend/cpu/kv/attend_decode.h"

#include "backend/cpu/cap.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/exchange.h"
#include "backend/cpu/kv/gather.h"
#include "backend/cpu/kv/query_rows.h"
#include "backend/cpu/kv/scratch.h"
#include "backend/cpu/kv/segment_read.h"
#include "backend/cpu/kv/select.h"
#include "backend/cpu/kv/side.h"
#include "backend/cpu/partial.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/size.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define DECODE_ROWS 96   /* queries times G up to which reading codes was measured to be the faster way */
#define RUN_LOGITS 128   /* segments times rows that share one update of the running maximum: a run */
#define ITEMS 128        /* work items of a pass, at most */
#define ITEM_ROWS 4096   /* rows of all their partial states: bounds the memory */
#define ITEM_SEGMENTS 16 /* segments of an item, at least: among fewer weights too many are too large for accumulate_int8 */
#define KEPT_ROWS 16     /* rows up to which partial states keep sums by code: more share the work of finishing them well enough */
#define ITEM_RUNS 8      /* runs of an item, at least, where each is prepared for and sums by code end with the item */
#define PAGES_OF_RUN (ROPE_RUN_TOKENS / PAGE_TOKENS)
#define THREAD_CHUNKS 16 /* chunks of items that a thread takes, about */
#define WAKE_SEGMENTS 16 /* segments times KV heads for which waking the threads pays */

/* ---- Memory and the split of the work */

/* Returns the most tokens that attend in this way: one where keys are rotated as they are read, since these are decoded either
 * way. */
size_t attend_decode_tokens(const struct cache *cache) { return cache->keys_rotated ? size_max(DECODE_ROWS / cache->group, 1) : 1; }

/* Returns the most rows of a step, from which its memory and the split of the work are decided. */
static size_t decode_rows(const struct cache *cache) {
    return size_min(cache->base.plan.n, attend_decode_tokens(cache)) * cache->group;
}

static size_t item_segments(const struct cache *cache) {
    return cache->keys_in_rope_runs ? ITEM_RUNS * PAGES_OF_RUN : ITEM_SEGMENTS;
}

static size_t decode_splits(const struct cache *cache) {
    size_t most = size_min(ITEMS, ITEM_ROWS / decode_rows(cache)) / cache->base.shape.kv_heads;
    return size_max(size_min(segment_count(cache) / item_segments(cache), most), 1);
}

/* Counts the floats of a key codec's look-up tables for `rows` queries of a layer and KV head. There are tables only if queries are
 * multiplied by keys as they are stored, at any position. Heads may differ in what was learned and in their bits. */
static size_t table_floats(const struct cache *cache, uint32_t layer, uint32_t head, size_t rows) {
    const struct cpu_codec *codec = cache->codec[CODEC_KEYS];
    if (!cache->keys_rotated || cache->keys_in_rope_runs) return 0;
    size_t floats = cpu_codec_query_floats(codec, side_shape(cache, CODEC_KEYS, layer, head, rows));
    return memory_round_up(floats, MEMORY_ALIGN / sizeof(float));
}

/* Counts the floats in which a value codec sums weights by code, for a run of segments, the most of any rate. */
static size_t code_sum_floats(const struct cache *cache, uint32_t layer, uint32_t head, size_t rows) {
    size_t floats = 0;
    for (uint32_t rate = 0; rate < rates_of(&cache->base); rate++)
        floats = size_max(floats, cpu_codec_code_sum_floats(cache->codec[CODEC_VALUES],
                                                            side_shape_at(cache, rate, CODEC_VALUES, layer, head, rows)));
    return floats;
}

/* Counts the floats of a row that a partial state keeps of these sums; 0: they are finished with each run. */
static size_t kept_row(const struct cache *cache, uint32_t rate, uint32_t layer, uint32_t head, size_t rows) {
    const struct codec_code_sums *sums = cache->codec[CODEC_VALUES]->code_sums;
    if (!sums || !sums->row || rows > KEPT_ROWS) return 0;
    return sums->row(side_shape_at(cache, rate, CODEC_VALUES, layer, head, rows));
}

static size_t kept_floats(const struct cache *cache, uint32_t layer, uint32_t head, size_t rows) {
    size_t row = 0;
    for (uint32_t rate = 0; rate < rates_of(&cache->base); rate++) row = size_max(row, kept_row(cache, rate, layer, head, rows));
    return row ? partial_code_floats(rows, row) : 0;
}

/* Holds the most of any layer, head and number of rows: a step may ask for fewer rows than its most, and a codec may then need
 * more. */
struct most_floats {
    size_t tables, code_sums, kept, reader;
};

static struct most_floats most_floats(const struct cache *cache) {
    struct most_floats most = {0};
    for (size_t rows = cache->group; rows <= decode_rows(cache); rows += cache->group) {
        for (uint32_t layer = 0; layer < cache->base.shape.layers; layer++) {
            for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++) {
                most.tables = size_max(most.tables, table_floats(cache, layer, head, rows));
                most.code_sums = size_max(most.code_sums, code_sum_floats(cache, layer, head, rows));
                most.kept = size_max(most.kept, kept_floats(cache, layer, head, rows));
                most.reader = size_max(most.reader, head_reader_floats(cache, layer, head, rows));
            }
        }
    }
    return most;
}

size_t attend_decode_shared_floats(const struct cache *cache) {
    size_t rows = decode_rows(cache), hd = cache->base.shape.head_dim, heads = cache->base.shape.kv_heads;
    struct most_floats most = most_floats(cache);
    return heads * (rows * hd + most.tables + decode_splits(cache) * (partial_floats(rows, hd) + most.kept));
}

size_t attend_decode_thread_floats(const struct cache *cache) {
    struct most_floats most = most_floats(cache);
    return size_max(RUN_LOGITS, decode_rows(cache)) * PAGE_TOKENS + most.code_sums + most.reader;
}

/* A pass computes the attention of some new tokens of the step. */
struct pass {
    const struct cache *cache;
    size_t first, rows;
    size_t segments, splits; /* segments are split into so many ranges */
    bool selects;            /* the pass's one token chooses what it reads */
    bool chooses_by_head;    /* each work item chooses for its KV head */
    float *queries;          /* [Hk][rows][hd] */
    size_t table_floats;     /* of the layer's most */
    float *tables;           /* [Hk][table_floats] */
    size_t kept_floats;      /* of the layer's most */
    float *partials;         /* [splits][Hk] of partial_floats(rows, hd) and kept_floats */
};

static float *partial_memory(const struct pass *pass, size_t split, uint32_t head) {
    const size_t item = split * pass->cache->base.shape.kv_heads + head;
    return pass->partials + item * (partial_floats(pass->rows, pass->cache->base.shape.head_dim) + pass->kept_floats);
}

/* Makes a partial state keep sums by code, of pages of a rate. */
static void keep_codes(const struct pass *pass, size_t split, uint32_t head, uint32_t rate, struct partial *partial) {
    const struct cache *cache = pass->cache;
    partial_keep_codes(partial, kept_row(cache, rate, cache->base.layer, head, pass->rows),
                       partial_memory(pass, split, head) + partial_floats(pass->rows, cache->base.shape.head_dim));
}

/* Returns whether sums by code are finished where pages of another rate follow, and with each item, as they are of one rate. */
static bool finishes_items(const struct pass *pass) { return rates_of(&pass->cache->base) > 1; }

/* Returns the partial state of an item: as it is read into, or as it is merged with others. */
static struct partial decode_partial(const struct pass *pass, size_t split, uint32_t head, bool merges) {
    struct partial partial = partial_at(partial_memory(pass, split, head), pass->rows, pass->cache->base.shape.head_dim);
    if (!merges || !finishes_items(pass)) keep_codes(pass, split, head, 0, &partial);
    return partial;
}

/* ---- Logits and weights */

/* A query sees these slots of a segment. */
struct slots {
    uint32_t begin, end;
};

/* Returns the end of the run of full segments from the r-th on which are all read as logits or all as weights. */
static size_t full_segments(const struct segment *segments, size_t r, size_t n, const struct slots *seen) {
    const bool as_logits = r < n && segments[r].as_logits;
    while (r < n && !seen[r].begin && seen[r].end == PAGE_TOKENS && !segments[r].holes && segments[r].as_logits == as_logits) r++;
    return r;
}

/* Returns the largest logit of one row of logits[n][rows][64], in the slots seen[n] of each segment. Full segments are looked at
 * together. */
static float largest_logit(const struct pass *pass, const struct segment *segments, size_t n, const struct slots *seen,
                           const float *row) {
    const struct vector_ops *kernel = vector_ops();
    size_t step = pass->rows * PAGE_TOKENS;
    float max = -INFINITY;
    for (size_t r = 0, next; r < n; r = next) {
        next = full_segments(segments, r, n, seen);
        float most = next > r ? kernel->max_pages(row + r * step, next - r, step)
                              : kernel->max(row + r * step + seen[r].begin, seen[r].end - seen[r].begin);
        if (next == r) next++;
        max = most > max ? most : max;
    }
    return max;
}

/* Turns that row's logits into weights exp(logit - max), 0 outside these slots; returns their sum. Segments that are read as logits
 * stay as they are and do not count. */
static float weigh_row(const struct pass *pass, const struct segment *segments, size_t n, const struct slots *seen, float max,
                       float *row) {
    const struct vector_ops *kernel = vector_ops();
    size_t step = pass->rows * PAGE_TOKENS;
    float sum = 0;
    for (size_t r = 0, next; r < n; r = next) {
        next = full_segments(segments, r, n, seen);
        if (next > r) {
            if (!segments[r].as_logits) sum += kernel->exp_pages(row + r * step, max, next - r, step);
            continue;
        }
        float *weights = row + r * step;
        uint32_t begin = seen[r].begin, end = seen[r].end;
        memset(weights, 0, begin * sizeof *weights);
        sum += kernel->exp_sum(weights + begin, max, end - begin);
        memset(weights + end, 0, (PAGE_TOKENS - end) * sizeof *weights);
        next++;
    }
    return sum;
}

static struct slots slots_seen(const struct cache *cache, const struct segment *segment, size_t i) {
    struct slots slots = {segment_hidden(cache, segment, i), segment_visible(cache, segment, i)};
    if (slots.begin > slots.end) slots.begin = slots.end;
    return slots;
}

/* Gives slots that are not live, between those that are, logits whose weight is 0. */
static void mask_row(const struct segment *segment, float *row) {
    for (uint64_t dead = ~segment->live; dead;) row[read_take(&dead)] = -INFINITY;
}

/* Turns logits[n][rows][64] of a run of segments into weights, row by row under one running maximum, except those of segments that
 * are read as logits. Returns whether each weight is at most a small part of the sum that its query has so far, before more is
 * added to it. */
static bool weigh_run(const struct pass *pass, uint32_t head, const struct segment *segments, size_t n, float *logits,
                      struct partial *partial) {
    const float *slopes = pass->cache->base.shape.slopes ? pass->cache->base.shape.slopes + head * pass->cache->group : NULL;
    size_t step = pass->rows * PAGE_TOKENS, group = pass->cache->group;
    struct slots seen[RUN_LOGITS];
    bool small = true;
    for (size_t m = 0; m < pass->rows; m++) {
        size_t token = pass->first + m / group;
        float *row = logits + m * PAGE_TOKENS;
        for (size_t r = 0; r < n && m % group == 0; r++) seen[r] = slots_seen(pass->cache, &segments[r], token);
        for (size_t r = 0; pass->cache->base.shape.cap > 0 && r < n; r++)
            cap_row(row + r * step + seen[r].begin, pass->cache->base.shape.cap, seen[r].end - seen[r].begin);
        for (size_t r = 0; slopes && r < n; r++) { /* no method that chooses tokens is offered with ALiBi */
            uint32_t begin = seen[r].begin;
            add_alibi(slopes[m % group], segment_position(pass->cache, &segments[r]) + begin - (int64_t)token,
                      row + r * step + begin, seen[r].end - begin);
        }
        for (size_t r = 0; r < n; r++)
            if (segments[r].holes) mask_row(&segments[r], row + r * step);
        float largest = largest_logit(pass, segments, n, seen, row), max = partial_raise(partial, m, largest);
        partial->sum[m] += weigh_row(pass, segments, n, seen, max, row);
        small = small && expf(largest - max) <= INT8_WEIGHT_LIMIT * partial->sum[m];
    }
    return small;
}

/* Returns whether one segment's weights are small enough for 8 bits. */
static bool fits_int8(const struct partial *partial, const float *weights, size_t rows) {
    for (size_t m = 0; m < rows; m++)
        if (!(vector_ops()->max(weights + m * PAGE_TOKENS, PAGE_TOKENS) <= INT8_WEIGHT_LIMIT * partial->sum[m])) return false;
    return true;
}

/* Adds to partial->acc the weights times the values of a run of segments. partial->sum has these weights already, and gets those of
 * segments that are read as logits. weigh_run returned `small`; `floats` is the size of code_sums, by code_sum_floats; they
 * are the partial state's own where that keeps them. */
static void accumulate_run(const struct head_reader *reader, struct segment *segments, size_t n, bool small, float *weights,
                           size_t floats, float *code_sums, struct partial *partial) {
    const struct cpu_codec *codec = reader->cache->codec[CODEC_VALUES];
    size_t rows = reader->rows;
    bool summed = false, int8_values = codec->accumulate_values_int8 && scaled_ops()->int8_is_faster;
    const struct codec_integer_sums *integer = codec->code_sums ? codec->code_sums->integer : NULL;
    bool suffice = integer && integer->suffice(reader->values);
    for (size_t r = 0; r < n; r++) {
        if (!segments[r].live) continue;
        float *own = weights + r * rows * PAGE_TOKENS;
        bool gathered = segments[r].kind == SEGMENT_GATHERED, coded = gathered || segments[r].kind == SEGMENT_SEALED;
        bool by_code = floats && coded;
        if (by_code && !summed && !partial->coded) memset(code_sums, 0, floats * sizeof *code_sums);
        summed |= by_code;
        if (segments[r].as_logits) {
            segment_accumulate_logits(reader, &segments[r], own, partial->max, code_sums, partial->sum);
            continue;
        }
        bool int8 = by_code ? integer != NULL : int8_values;
        segments[r].int8_weights = coded && int8 && (small || suffice || fits_int8(partial, own, rows));
        float *sums = by_code ? code_sums : NULL;
        if (gathered)
            gather_accumulate(reader, &segments[r], own, sums, partial->acc);
        else
            segment_accumulate(reader, &segments[r], own, sums, partial->acc);
    }
    if (summed && !partial->coded) codec->code_sums->finish(reader->values, code_sums, partial->acc);
}

/* ---- One KV head */

/* Returns the key codec's tables; NULL where a head's codebook is read without them. */
static float *tables_of(const struct pass *pass, uint32_t head) {
    const struct cache *cache = pass->cache;
    return table_floats(cache, cache->base.layer, head, pass->rows) ? pass->tables + head * pass->table_floats : NULL;
}

/* Prefetches the codebooks of a KV head, when a thread comes to it. */
static void prefetch_head_codebooks(const struct pass *pass, uint32_t head) {
    const struct cache *cache = pass->cache;
    for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        const struct cpu_codec *codec = side_codec(cache, side);
        if (codec->learned && codec->learned->prefetch)
            codec->learned->prefetch(side_shape(cache, side, cache->base.layer, head, pass->rows), side, pass->segments);
    }
}

/* Returns where a range of segments begins. If it begins with a run of keys, no other range prepares its queries for a part of that
 * run. */
static size_t split_begin(const struct pass *pass, size_t split) {
    size_t begin = split * pass->segments / pass->splits, rows = segment_count_rows(pass->cache);
    if (!pass->cache->keys_in_rope_runs || pass->selects || split == 0 || split == pass->splits || begin < rows) return begin;
    return rows + (begin - rows) / PAGES_OF_RUN * PAGES_OF_RUN;
}

/* Makes the sums by code that a partial state keeps a part of its weighted values. */
static void finish_codes(const struct head_reader *reader, struct partial *partial) {
    if (partial->coded) reader->cache->codec[CODEC_VALUES]->code_sums->finish(reader->values, partial->by_code, partial->acc);
    partial->coded = 0;
}

/* Makes a reader and its partial state go on with pages of another rate. */
static void change_rate(const struct pass *pass, size_t split, uint32_t rate, struct head_reader *reader, struct partial *partial) {
    finish_codes(reader, partial);
    head_reader_set_rate(reader, rate);
    keep_codes(pass, split, reader->head, rate, partial);
    partial_clear_codes(partial);
}

/* Finds up to n segments from the first on that are read together, which excludes pages of different rates; returns their number. */
static size_t find_segments(const struct pass *pass, size_t split, size_t first, size_t n, struct head_reader *reader,
                            struct partial *partial, struct segment *segments) {
    for (size_t r = 0; r < n; r++) {
        segment_find(pass->cache, reader->head, first + r, &segments[r]);
        if (segments[r].kind != SEGMENT_SEALED || segments[r].set->rate == reader->rate) continue;
        if (r) return r;
        change_rate(pass, split, segments[r].set->rate, reader, partial);
    }
    return n;
}

/* Computes one work item: a range of segments. */
static void read_segments(const struct pass *pass, size_t split, uint32_t head, float *scratch) {
    const struct cache *cache = pass->cache;
    size_t rows = pass->rows, run = size_max(RUN_LOGITS / rows, 1);
    size_t end = split_begin(pass, split + 1), sums = code_sum_floats(cache, cache->base.layer, head, rows);
    float *logits = scratch, *code_sums = scratch + size_max(RUN_LOGITS, rows) * PAGE_TOKENS;
    struct head_reader reader = head_reader_of(cache, head, pass->queries + head * rows * cache->base.shape.head_dim, rows,
                                               tables_of(pass, head), code_sums + sums);
    struct partial partial = decode_partial(pass, split, head, false);
    struct segment segments[RUN_LOGITS];
    partial_clear(&partial);
    for (size_t first = split_begin(pass, split), n; first < end; first += n) {
        n = find_segments(pass, split, first, size_min(run, end - first), &reader, &partial, segments);
        for (size_t r = 0; r < n; r++) {
            float *own = logits + r * rows * PAGE_TOKENS;
            if (!segments[r].live) continue; /* another head reads something of it */
            if (segments[r].kind == SEGMENT_GATHERED)
                gather_score(&reader, &segments[r], own);
            else
                segment_score(&reader, &segments[r], own);
            size_t last = pass->first + rows / cache->group - 1;
            bool full = !segments[r].holes && segment_hidden(cache, &segments[r], last) == 0 &&
                        segment_visible(cache, &segments[r], pass->first) == PAGE_TOKENS;
            segments[r].as_logits = full && segments[r].kind == SEGMENT_SEALED && segment_takes_logits(&reader, &segments[r]);
        }
        bool small = weigh_run(pass, head, segments, n, logits, &partial);
        accumulate_run(&reader, segments, n, small, logits, sums, partial.coded ? partial.by_code : code_sums, &partial);
    }
    if (finishes_items(pass)) finish_codes(&reader, &partial);
}

/* Scales and rotates queries, and makes the tables for them. */
static void prepare_queries(const struct pass *pass, const float *q, uint32_t head, size_t count) {
    const struct cache *cache = pass->cache;
    float *queries = pass->queries + head * pass->rows * cache->base.shape.head_dim;
    query_rows_load(cache, q, head, pass->first, count, queries);
    float *tables = tables_of(pass, head);
    if (pass->selects) select_prepare(cache, head, queries);
    if (tables)
        cache->codec[CODEC_KEYS]->queries->prepare(side_shape(cache, CODEC_KEYS, cache->base.layer, head, pass->rows), queries,
                                                   tables);
}

static void choose_tokens(const struct cache *cache, uint32_t head) {
    for (size_t range = 0; range < select_ranges(cache); range++) select_score(cache, head, range);
    select_top_k(cache, head);
}

static void merge_partials(const struct pass *pass, uint32_t head, size_t count, float *out) {
    const struct cache *cache = pass->cache;
    struct partial whole = decode_partial(pass, 0, head, true);
    for (size_t split = 1; split < pass->splits; split++) {
        struct partial part = decode_partial(pass, split, head, true);
        partial_merge(&whole, &part);
    }
    if (whole.coded)
        cache->codec[CODEC_VALUES]->code_sums->finish(side_shape(cache, CODEC_VALUES, cache->base.layer, head, pass->rows),
                                                      whole.by_code, whole.acc);
    if (exchange_due(cache)) {
        exchange_put(cache, head, 0, &whole);
        return;
    }
    query_rows_add_sinks(cache, &whole, head * cache->group, cache->group);
    query_rows_finish(cache, &whole, head, count, out);
}

/* ---- All */

static struct pass pass_of(const struct cache *cache, size_t first, size_t count) {
    struct pass pass = {.cache = cache, .first = first, .rows = count * cache->group, .selects = select_active(cache)};
    uint32_t heads = cache->base.shape.kv_heads;
    pass.segments = segment_count_seen(cache, first + count - 1);
    /* With a head for every thread each thread takes its heads from scores to outputs: what it scored is near when it reads. */
    pass.chooses_by_head = pass.selects && heads >= cache->base.threads;
    pass.splits = pass.chooses_by_head ? 1 : size_min(decode_splits(cache), size_max(pass.segments / item_segments(cache), 1));
    for (uint32_t head = 0; head < heads; head++) {
        pass.table_floats = size_max(pass.table_floats, table_floats(cache, cache->base.layer, head, pass.rows));
        pass.kept_floats = size_max(pass.kept_floats, kept_floats(cache, cache->base.layer, head, pass.rows));
    }
    pass.queries = scratch_shared(cache);
    pass.tables = pass.queries + heads * pass.rows * cache->base.shape.head_dim;
    pass.partials = pass.tables + heads * pass.table_floats;
    return pass;
}

/* A pass_work is a pass with its outputs and its items (head, split), as threads take them. */
struct pass_work {
    const struct pass *pass;
    const float *q;
    size_t count, ranges, items, chunk;
    float *out;
    _Atomic size_t next; /* the next item to be taken */
};

/* Chooses the tokens of all heads together. */
static void choose_together(const struct pass_work *work, uint32_t heads) {
    const struct cache *cache = work->pass->cache;
    struct parallel_part scores = parallel_part_of(work->ranges * heads), tops = parallel_part_of(heads);
    for (size_t item = scores.begin; item < scores.end; item++)
        select_score(cache, (uint32_t)(item / work->ranges), item % work->ranges);
    parallel_barrier();
    for (size_t head = tops.begin; head < tops.end; head++) select_top_k(cache, (uint32_t)head);
    parallel_barrier();
}

/* Computes a thread's share of the items. A thread goes on where its last item ended, since what the kernels prefetched there is in
 * its cache. It takes chunks, since threads are not equally fast and none should wait long for the last. */
static void read_share(struct pass_work *work) {
    const struct pass *pass = work->pass;
    uint32_t near = UINT32_MAX; /* the KV head whose codebooks were prefetched */
    for (size_t first; (first = atomic_fetch_add_explicit(&work->next, work->chunk, memory_order_relaxed)) < work->items;) {
        for (size_t item = first; item < size_min(first + work->chunk, work->items); item++) {
            uint32_t head = (uint32_t)(item / pass->splits);
            if (pass->chooses_by_head) choose_tokens(pass->cache, head);
            if (head != near) prefetch_head_codebooks(pass, head);
            near = head;
            read_segments(pass, item % pass->splits, head, scratch_of_thread(pass->cache));
        }
    }
}

static void run_share(void *user) {
    struct pass_work *work = user;
    uint32_t heads = work->pass->cache->base.shape.kv_heads;
    struct parallel_part own = parallel_part_of(heads);
    for (size_t head = own.begin; head < own.end; head++) prepare_queries(work->pass, work->q, (uint32_t)head, work->count);
    parallel_barrier();
    if (work->ranges) choose_together(work, heads);
    read_share(work);
    parallel_barrier();
    for (size_t head = own.begin; head < own.end; head++) merge_partials(work->pass, (uint32_t)head, work->count, work->out);
}

static void run_pass(const struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    struct pass pass = pass_of(cache, first, count);
    size_t heads = cache->base.shape.kv_heads, items = pass.splits * heads;
    struct pass_work work = {.pass = &pass, .q = q, .count = count, .items = items, .out = out};
    work.ranges = pass.selects && !pass.chooses_by_head ? select_ranges(cache) : 0;
    work.chunk = size_max(items / (THREAD_CHUNKS * cache->base.threads), 1);
    parallel_run(pass.segments * heads >= WAKE_SEGMENTS ? cache->base.threads : 1, run_share, &work);
}

void attend_decode(const struct cache *cache, const float *q, size_t first, size_t count, float *out) {
    size_t width = cache->base.shape.query_heads * cache->base.shape.head_dim, each = select_active(cache) ? 1 : count;
    for (size_t i = 0; i < count; i += each) run_pass(cache, q + i * width, first + i, each, out + i * width);
}
