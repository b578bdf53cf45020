/* Computes decoding steps of several caches.
 *
 * Caches of one method follow one another in a step as a group, which is one launch for each layer. What the kernels read lies in
 * memory of the batch that stays where it is, so that a graph of the launches may be replayed: the host rewrites it before each
 * step. */
#include "backend/cuda/kv/batch.h"

#include "backend/cuda/kv/centroids.h"
#include "backend/cuda/kv/choice.h"
#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/exchange.h"
#include "backend/cuda/kv/views.h"
#include "kv/deal.h"
#include "kv/parts.h"

#include <stdlib.h>
#include <string.h>

/* A group is rows of caches that share their tables. */
struct group {
    struct cache *cache; /* the first of them */
    uint32_t first_row, n_rows, splits, runs;
    uint32_t parts; /* of all rows together, for each KV head; of several rates, those of the rate with most */
    uint32_t multiprocessor_parts;
    uint32_t rates;            /* as of struct attend_decode */
    uint32_t (*page_bytes)[2]; /* [layers] of the largest page, by side */
    enum codec_id codec[2];    /* as they are read */
    bool evicts;               /* exact rows stand at other positions */
    bool chooses;              /* some row chooses tokens */
};

struct batch_memory {
    struct cache_shape shape;
    uint64_t places; /* how often memory has changed its place: an address may come back */
    size_t row_capacity, sequence_capacity, part_floats, run_words;
    uint8_t *uploaded, *staged; /* on the device, and the host's copy: sequences[capacity], then rows[capacity] */
    cudaEvent_t sent;           /* `staged` may be written again */
    float *q_exact, *parts;
    void *selection; /* of steps that choose tokens: selection_bytes of row_capacity rows and selected_pages */
    size_t selected_bytes;
    uint32_t selected_pages;
    uint32_t *arrived, *run_queries;
    struct rank_exchange exchange; /* of caches whose pages are dealt to ranks */
    uint32_t *not_finite;          /* batch_watch; NULL: numbers are not watched */
    struct group *groups;
    uint32_t (*page_bytes)[2]; /* [sequence_capacity][layers]: the groups' */
    size_t n_groups;
    struct kv_rows appended;   /* the layer's rows as they came; q NULL: its queries come later */
    bool second;               /* it is that of the caches' second parts (kv/parts.h) */
    struct batch_memory *next; /* that of the second parts, where caches have any */
};

void batch_watch(struct batch_memory *batch, uint32_t *not_finite) {
    for (; batch; batch = batch->next) batch->not_finite = not_finite;
}

/* ---- Memory */

static size_t staged_bytes(const struct batch_memory *b) {
    return b->sequence_capacity * sizeof(struct sequence_view) + b->row_capacity * sizeof(struct query_row_view);
}
static struct sequence_view *sequences_in(const struct batch_memory *b, uint8_t *memory) {
    (void)b;
    return (struct sequence_view *)(void *)memory;
}
static struct query_row_view *rows_in(const struct batch_memory *b, uint8_t *memory) {
    return (struct query_row_view *)(void *)(memory + b->sequence_capacity * sizeof(struct sequence_view));
}

static size_t q_bytes(const struct batch_memory *b) {
    return b->row_capacity * b->shape.query_heads * b->shape.head_dim * sizeof(float);
}

static void release(struct batch_memory *b) {
    b->places++;
    device_free(NULL, b->uploaded, staged_bytes(b));
    device_free(NULL, b->q_exact, q_bytes(b));
    device_free(NULL, b->parts, b->part_floats * sizeof(float));
    device_free(NULL, b->run_queries, b->run_words * sizeof *b->run_queries);
    device_free(NULL, b->selection, b->selected_bytes);
    device_free(NULL, b->arrived, b->row_capacity * b->shape.kv_heads * sizeof *b->arrived);
    rank_exchange_free(&b->exchange);
    if (b->staged) cudaFreeHost(b->staged);
    free(b->groups);
    free(b->page_bytes);
    b->uploaded = b->staged = NULL;
    b->q_exact = b->parts = NULL;
    b->selection = NULL;
    b->arrived = b->run_queries = NULL;
    b->groups = NULL;
    b->page_bytes = NULL;
    b->row_capacity = b->sequence_capacity = b->part_floats = b->run_words = b->selected_bytes = 0;
    b->selected_pages = 0;
}

void batch_free(struct batch_memory *batch) {
    if (!batch) return;
    cudaStreamSynchronize(device_stream());
    batch_free(batch->next);
    release(batch);
    if (batch->sent) cudaEventDestroy(batch->sent);
    free(batch);
}

enum terse_status batch_new(const struct cache_shape *shape, struct batch_memory **batch, struct terse_error *error) {
    struct batch_memory *b = *batch = calloc(1, sizeof *b);
    if (!b) return status_no_memory(error, sizeof *b, "decoding steps");
    b->shape = *shape;
    enum terse_status status = device_check(cudaEventCreateWithFlags(&b->sent, cudaEventDisableTiming), "making an event", error);
    if (!status) return TERSE_OK;
    batch_free(b);
    *batch = NULL;
    return status;
}

/* Reserves memory for so many caches and rows. It gives up the memory that was there with its contents; the new memory has another
 * address. */
static enum terse_status reserve(struct batch_memory *b, size_t sequences, size_t rows, struct terse_error *error) {
    if (sequences <= b->sequence_capacity && rows <= b->row_capacity) return TERSE_OK;
    cudaStreamSynchronize(device_stream());
    release(b);
    b->sequence_capacity = sequences;
    b->row_capacity = rows;
    size_t arrived = rows * b->shape.kv_heads * sizeof *b->arrived;
    b->uploaded = device_alloc(NULL, staged_bytes(b), "decoding steps", error);
    b->q_exact = b->uploaded ? device_alloc(NULL, q_bytes(b), "decoding steps", error) : NULL;
    b->arrived = b->q_exact ? device_alloc(NULL, arrived, "decoding steps", error) : NULL;
    b->groups = calloc(sequences, sizeof *b->groups);
    b->page_bytes = calloc(sequences * b->shape.layers, sizeof *b->page_bytes);
    if (b->arrived && b->groups && b->page_bytes && cudaMallocHost((void **)&b->staged, staged_bytes(b)) == cudaSuccess)
        return device_check(cudaMemsetAsync(b->arrived, 0, arrived, device_stream()), "clearing memory", error);
    if (b->arrived) status_no_memory(error, staged_bytes(b), "decoding steps");
    release(b);
    return TERSE_E_MEMORY;
}

static enum terse_status reserve_parts(struct batch_memory *b, size_t floats, struct terse_error *error) {
    if (floats <= b->part_floats) return TERSE_OK;
    cudaStreamSynchronize(device_stream());
    device_free(NULL, b->parts, b->part_floats * sizeof(float));
    b->part_floats = 0;
    b->places++;
    if (!(b->parts = device_alloc(NULL, floats * sizeof(float), "partial states", error))) return TERSE_E_MEMORY;
    b->part_floats = floats;
    return TERSE_OK;
}

static enum terse_status reserve_runs(struct batch_memory *b, size_t words, struct terse_error *error) {
    if (words <= b->run_words) return TERSE_OK;
    cudaStreamSynchronize(device_stream());
    device_free(NULL, b->run_queries, b->run_words * sizeof *b->run_queries);
    b->run_words = 0;
    b->places++;
    if (!(b->run_queries = device_alloc(NULL, words * sizeof *b->run_queries, "queries of runs", error))) return TERSE_E_MEMORY;
    b->run_words = words;
    return TERSE_OK;
}

static enum terse_status reserve_selection(struct batch_memory *b, uint32_t pages, struct terse_error *error) {
    const struct head_view heads = kv_tables_heads(&b->shape);
    if (pages <= b->selected_pages) return TERSE_OK;
    cudaStreamSynchronize(device_stream());
    device_free(NULL, b->selection, b->selected_bytes);
    b->selected_bytes = b->selected_pages = 0;
    b->places++;
    const size_t bytes = selection_bytes(&heads, (uint32_t)b->row_capacity, pages);
    if (!(b->selection = device_alloc(NULL, bytes, "chosen tokens", error))) return TERSE_E_MEMORY;
    b->selected_bytes = bytes;
    b->selected_pages = pages;
    return TERSE_OK;
}

/* Reserves memory for the exchange with other ranks, where the caches' pages are dealt to several. */
static enum terse_status reserve_exchange(struct batch_memory *b, const struct cache_shape *shape, struct terse_error *error) {
    bool moved = false;
    enum terse_status status = shape->ranks ? rank_exchange_reserve(&b->exchange, shape, b->row_capacity, &moved, error) : TERSE_OK;
    b->places += moved;
    return status;
}

/* Returns the memory of rows from the step's `first` on. */
static struct selection selection_of(const struct batch_memory *b, size_t first) {
    const struct head_view heads = kv_tables_heads(&b->shape);
    return selection_at(b->selection, &heads, (uint32_t)b->row_capacity, b->selected_pages, (uint32_t)first);
}

/* ---- A step */

/* Returns the least power of two that is not below n, so that graphs serve many steps. */
static uint32_t bucket(uint32_t n) {
    uint32_t to = 1;
    while (to < n) to *= 2;
    return to;
}

/* Returns whether a cache has rows of halves alone, which the codec's kernels would leave to one CTA for each KV head, while those of f16
 * have all of them read rows. So a sequence that waits for its transforms is read as fast as one of f16. */
static bool reads_rows_alone(const struct cache *cache) {
    return cuda_codec_of(cache->codec[CODEC_KEYS])->form->halves_apart && !cache->base.pages.n_sealed;
}

/* Returns the codec by whose kernels a cache's side is read. */
static enum codec_id codec_read(const struct cache *cache, enum codec_side side) {
    return reads_rows_alone(cache) ? CODEC_F16 : cache->codec[side];
}

static bool belongs(const struct group *group, const struct cache *cache) {
    return group->cache->tables == cache->tables && group->codec[CODEC_KEYS] == codec_read(cache, CODEC_KEYS);
}

/* Returns how many runs further the next one is of which a rank has pages, which are dealt run by run. */
static uint32_t run_step(const struct cache *cache) { return cache->base.shape.ranks ? cache->base.shape.ranks->ranks : 1; }

/* Counts the runs from that of the first sealed page to that of the last; where pages are dealt, of those of rank 0, which has the most,
 * so that all ranks launch the same. */
static uint32_t runs_of(const struct cache *cache) {
    const struct page_set *sets = cache->base.pages.sets;
    size_t n = cache->base.pages.n_sealed;
    return n ? (uint32_t)(sets[n - 1].first / ROPE_RUN_TOKENS - sets[0].first / ROPE_RUN_TOKENS) / run_step(cache) + 1 : 0;
}

/* Counts the parts that a cache's pages are read in, by rate where it may have several, and returns how many there are in all. */
static uint32_t set_splits(const struct cache *cache, const struct choice *choice, struct sequence_view *view) {
    const uint32_t multiprocessors = (uint32_t)device_multiprocessors();
    const enum codec_id keys = cache->codec[CODEC_KEYS];
    uint32_t all = 0;
    if (reads_rows_alone(cache)) return attend_decode_row_splits(&cache->heads, multiprocessors, cache->base.plan.after.length);
    if (rates_of(&cache->base) == 1)
        return attend_decode_splits(&cache->heads, keys, multiprocessors, 1,
                                    (choice->made ? choice->pages_read : (uint32_t)cache->pages_most) +
                                        (uint32_t)(cache->base.n_anchors / PAGE_TOKENS));
    for (uint32_t rate = 0; rate < rates_of(&cache->base); rate++) {
        const uint32_t pages = view->rate_first[rate + 1] - view->rate_first[rate];
        view->rate_splits[rate] = pages ? attend_decode_splits(&cache->heads, keys, multiprocessors, 1, pages) : 0;
        all += view->rate_splits[rate];
    }
    if (!all) all = view->rate_splits[0] = 1; /* which is empty */
    return all;
}

/* Raises the bytes of each layer's largest page, by side, to those of a cache's. Layers have pages of unequal sizes where bits are shared among
 * them, and a launch finds room for twice the warps where a layer's are small. Pages of lower rates are no larger. */
static void raise_page_bytes(const struct cache *cache, uint32_t (*page_bytes)[2]) {
    const struct cache_shape *shape = &cache->base.shape;
    const struct page_address *place = cache->fitted.memory ? cache->fitted.places : cache->tables->places;
    for (uint32_t layer = 0; layer < shape->layers; layer++)
        for (uint32_t head = 0; head < shape->kv_heads; head++, place++)
            for (int side = 0; side < 2; side++)
                if (place->bytes[side] > page_bytes[layer][side]) page_bytes[layer][side] = (uint32_t)place->bytes[side];
}

static void add_to_group(struct batch_memory *b, struct cache *cache, const struct sequence_view *view, uint32_t row,
                         uint32_t splits, bool chooses) {
    struct group *group = b->n_groups ? &b->groups[b->n_groups - 1] : NULL;
    if (!group || !belongs(group, cache)) {
        uint32_t(*const page_bytes)[2] = b->page_bytes + b->n_groups * b->shape.layers;
        memset(page_bytes, 0, b->shape.layers * sizeof *page_bytes);
        group = &b->groups[b->n_groups++];
        *group = (struct group){.cache = cache,
                                .first_row = row,
                                .page_bytes = page_bytes,
                                .codec = {codec_read(cache, CODEC_KEYS), codec_read(cache, CODEC_VALUES)}};
    }
    group->n_rows += (uint32_t)cache->base.plan.n;
    if (splits > group->splits) group->splits = splits;
    uint32_t parts = rates_of(&cache->base) == 1 ? splits : 1;
    for (uint32_t rate = 0; rate < RATE_VIEWS; rate++)
        if (view->rate_splits[rate] > parts) parts = view->rate_splits[rate];
    group->parts += parts * (uint32_t)cache->base.plan.n;
    if (runs_of(cache) > group->runs) group->runs = runs_of(cache);
    raise_page_bytes(cache, group->page_bytes);
    group->evicts |= cache->base.plan.by_index;
    group->chooses |= chooses;
    for (uint32_t rate = 0; rate < RATE_VIEWS; rate++) group->rates |= (uint32_t)(view->rate_splits[rate] > 0) << rate;
}

/* Returns a cache's part that the memory is for. */
static struct cache *part_of(const struct batch_memory *b, struct cache *cache) { return b->second ? cache->base.next : cache; }

/* Returns how many page sets the caches that choose tokens in their steps have at most. */
static uint32_t pages_to_choose(const struct batch_memory *b, struct cache *const *caches, size_t n) {
    size_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const struct cache *cache = part_of(b, caches[i]);
        if (choice_of(cache).made && cache->base.pages.n_sealed > most) most = cache->base.pages.n_sealed;
    }
    return (uint32_t)most;
}

/* Writes the rows of a cache's tokens from `row` on; returns the row behind them. Each has a view of its own where each chooses. */
static uint32_t stage_cache(struct batch_memory *b, struct cache *cache, uint32_t row, uint32_t *sequence, uint32_t *part) {
    const struct plan *plan = &cache->base.plan;
    const struct choice choice = choice_of(cache);
    struct sequence_view view = cache_view(cache);
    const uint32_t splits = set_splits(cache, &choice, &view);
    add_to_group(b, cache, &view, row, splits, choice.made);
    for (size_t t = 0; t < plan->n; t++, row++) {
        if (choice.made) view.own = selection_of(b, row).lists;
        if (choice.made || !t) sequences_in(b, b->staged)[(*sequence)++] = view;
        rows_in(b, b->staged)[row] = (struct query_row_view){.sequence = *sequence - 1,
                                                             .position = (uint32_t)(plan->before.length + t),
                                                             .splits = splits,
                                                             .first_part = *part,
                                                             .first = (uint32_t)plan_first_seen(plan, cache->base.shape.window, t),
                                                             .tokens_read = choice.tokens_read,
                                                             .runs_read = choice.runs_read};
        *part += splits;
    }
    return row;
}

/* Writes where everything lies. A row is read in as many parts as if it were alone, so that its result does not depend on the
 * others. */
static void stage(struct batch_memory *b, struct cache *const *caches, size_t n) {
    uint32_t row = 0, sequence = 0, part = 0;
    b->n_groups = 0;
    for (size_t i = 0; i < n; i++) row = stage_cache(b, part_of(b, caches[i]), row, &sequence, &part);
    for (struct group *g = b->groups; g < b->groups + b->n_groups; g++) {
        g->splits = bucket(g->splits);
        g->runs = bucket(g->runs);
        g->multiprocessor_parts =
            attend_decode_multiprocessor_parts(&g->cache->heads, (uint32_t)device_multiprocessors(), g->parts);
        if (g->rates == 1) g->rates = 0;
    }
}

static enum terse_status begin_part(struct batch_memory *b, struct cache *const *caches, size_t n, struct terse_error *error) {
    size_t rows = 0, floats = 0, words = 0;
    for (size_t i = 0; i < n; i++) rows += caches[i]->base.plan.n;
    const uint32_t pages = pages_to_choose(b, caches, n);
    enum terse_status status = reserve(b, bucket((uint32_t)(pages ? rows : n)), bucket((uint32_t)rows), error);
    if (!status && pages) status = reserve_selection(b, bucket(pages), error);
    if (status) return status;
    cudaEventSynchronize(b->sent);
    stage(b, caches, n);
    for (const struct group *g = b->groups; g < b->groups + b->n_groups; g++) {
        size_t own = attend_decode_part_floats(&g->cache->heads, g->codec[CODEC_KEYS], g->n_rows, g->splits);
        size_t own_words = attend_decode_run_words(&g->cache->heads, g->codec[CODEC_KEYS], g->n_rows, g->runs);
        if (own > floats) floats = own;
        if (own_words > words) words = own_words;
    }
    status = reserve_parts(b, floats, error);
    if (!status) status = reserve_runs(b, words, error);
    if (!status) status = reserve_exchange(b, &part_of(b, caches[0])->base.shape, error);
    if (status) return status;
    cudaError_t result = cudaMemcpyAsync(b->uploaded, b->staged, staged_bytes(b), cudaMemcpyHostToDevice, device_stream());
    if (result == cudaSuccess) result = cudaEventRecord(b->sent, device_stream());
    return device_check(result, "sending a decoding step", error);
}

enum terse_status batch_begin(struct batch_memory *b, struct cache *const *caches, size_t n, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    if (caches[0]->base.next && !b->next && !(status = batch_new(&b->shape, &b->next, error))) {
        b->next->second = true;
        b->next->not_finite = b->not_finite;
    }
    for (; b && !status; b = b->next) status = begin_part(b, caches, n, error);
    return status;
}

static uint64_t mixed(uint64_t hash, uint64_t value) { return (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15) ^ (hash >> 29); }

uint64_t batch_key(const struct batch_memory *b) {
    uint64_t key = mixed(mixed(b->next ? batch_key(b->next) : 0, b->places), b->n_groups);
    for (const struct group *g = b->groups; g < b->groups + b->n_groups; g++) {
        key = mixed(mixed(key, g->cache->tables->number), (uint64_t)(uintptr_t)g->cache->tables->rotary.runs);
        key = mixed(mixed(mixed(key, g->first_row), g->n_rows), (uint64_t)g->runs << 32 | g->splits);
        key = mixed(mixed(key, g->multiprocessor_parts), (uint64_t)g->codec[CODEC_KEYS]);
        key = mixed(key, (uint64_t)g->chooses << 32 | g->rates);
        for (uint32_t layer = 0; layer < g->cache->base.shape.layers; layer++)
            key = mixed(key, (uint64_t)g->page_bytes[layer][0] << 32 | g->page_bytes[layer][1]);
    }
    return key;
}

/* ---- A layer */

/* Returns the memory of the part that has the rows' layer, and the rows as that part numbers layers; NULL: no part has it. */
static struct batch_memory *of_layer(struct batch_memory *b, const struct kv_rows *rows, struct kv_rows *own) {
    *own = *rows;
    struct cache *cache = b->groups[0].cache, *part = parts_of_layer(cache, rows->layer, &own->layer);
    return part == cache ? b : part ? b->next : NULL;
}

static enum terse_status no_layer(uint32_t layer, struct terse_error *error) {
    return status_fail(error, TERSE_E_ARGUMENT, "layer %u, which the caches do not have", layer);
}

static struct kv_rows own_rows(const struct batch_memory *b, const struct group *g, const struct kv_rows *rows) {
    return kv_rows_within(rows, g->first_row, (size_t)g->first_row + g->n_rows, &b->shape);
}

/* Returns the queries by position - evicted, where that is not the position. */
static float *exact_queries(const struct batch_memory *b, const struct group *g, size_t row) {
    return g->evicts ? b->q_exact + row * cache_shape_query_width(&b->shape) : NULL;
}

/* Returns whether the launch of a group's attention appends its rows, if their queries have come with them. */
static bool appends(const struct group *g) {
    return cuda_codec_of(g->codec[CODEC_KEYS])->form->appends && !g->chooses && !g->evicts;
}

static struct append_decode append_of(const struct batch_memory *b, const struct group *g, const struct kv_rows *own,
                                      uint32_t place) {
    return (struct append_decode){.heads = g->cache->heads,
                                  .rotary = g->cache->tables->rotary,
                                  .layer = own->layer,
                                  .sequences = sequences_in(b, b->uploaded),
                                  .rows = rows_in(b, b->uploaded) + own->first,
                                  .n_rows = (uint32_t)own->count,
                                  .q = own->q,
                                  .rotated = own->q,
                                  .q_exact = own->q ? exact_queries(b, g, own->first) : NULL,
                                  .k = own->k,
                                  .v = own->v,
                                  .not_finite = b->not_finite,
                                  .place = place};
}

static cudaError_t append(const struct batch_memory *b, const struct group *g, const struct kv_rows *own, uint32_t place) {
    const struct append_decode append = append_of(b, g, own, place);
    return append_decode(&append, device_stream());
}

/* Makes the launch append the rows, which puts rotated queries where those of exact rows are in other steps. */
static void append_within(const struct batch_memory *b, const struct group *g, const struct kv_rows *own, uint32_t place,
                          struct attend_decode *attend) {
    attend->append = append_of(b, g, own, place);
    attend->append.rotated = b->q_exact + own->first * cache_shape_query_width(&b->shape);
    attend->q = attend->q_exact = attend->append.rotated;
}

/* Queues the kernels, with which ranks write their blocks of the exchange. `place` is the layer's in the model. */
static cudaError_t launch_attention(const struct batch_memory *b, const struct group *g, const struct kv_rows *own,
                                    uint32_t place) {
    const struct kv_tables *tables = g->cache->tables;
    const struct method *method = &g->cache->base.method;
    const struct cache_shape *shape = &g->cache->base.shape;
    struct attend_decode attend = {.heads = g->cache->heads,
                                   .layer = own->layer,
                                   .codec = {g->codec[CODEC_KEYS], g->codec[CODEC_VALUES]},
                                   .places = tables->place_views,
                                   .centroid = {centroid_shape_of(&method->key), centroid_shape_of(&method->value)},
                                   .learned = {tables->learned[CODEC_KEYS], tables->learned[CODEC_VALUES]},
                                   .run_angles = tables->rotary.runs,
                                   .pre_rope = tables->pre_rope,
                                   .sequences = sequences_in(b, b->uploaded),
                                   .rows = rows_in(b, b->uploaded) + own->first,
                                   .n_rows = (uint32_t)own->count,
                                   .splits = g->splits,
                                   .multiprocessor_parts = g->multiprocessor_parts,
                                   .multiprocessors = (uint32_t)device_multiprocessors(),
                                   .q = own->q,
                                   .q_exact = g->evicts ? exact_queries(b, g, own->first) : own->q,
                                   .out = own->out,
                                   .parts = b->parts,
                                   .page_bytes = {g->page_bytes[own->layer][0], g->page_bytes[own->layer][1]},
                                   .rates = g->rates,
                                   .run_queries = b->run_queries,
                                   .runs = g->runs,
                                   .run_step = run_step(g->cache),
                                   .lists_written = g->chooses,
                                   .arrived = b->arrived + own->first * b->shape.kv_heads};
    cudaError_t result = cudaSuccess;
    if (b->appended.q && appends(g)) {
        struct kv_rows rows = kv_rows_within(&b->appended, own->first, own->first + own->count, &b->shape);
        rows.q = own->q;
        append_within(b, g, &rows, place, &attend);
    }
    if (shape->ranks) {
        attend.out = rank_exchange_outputs(&b->exchange, shape, own->count);
        attend.log_sums = rank_exchange_log_sums(&b->exchange, shape, own->count);
        if (shape->ranks->rank) attend.heads.sinks = NULL; /* which rank 0 reads */
    }
    if (g->chooses) {
        const struct select_tokens select = {attend, selection_of(b, own->first), (uint32_t)g->cache->base.index_page_bytes};
        result = select_tokens_launch(&select, cuda_scores_of(method), device_stream());
    }
    return result == cudaSuccess ? attend_decode_launch(&attend, device_stream()) : result;
}

static enum terse_status attend(const struct batch_memory *b, const struct group *g, const struct kv_rows *own, uint32_t place,
                                struct terse_error *error) {
    const struct cache_shape *shape = &g->cache->base.shape;
    enum terse_status status = device_check(launch_attention(b, g, own, place), "attention", error);
    return status || !shape->ranks ? status : rank_exchange_finish(&b->exchange, shape, own->count, false, own->out, error);
}

enum terse_status batch_append(struct batch_memory *batch, const struct kv_rows *rows, struct terse_error *error) {
    cudaError_t result = cudaSuccess;
    struct kv_rows of_part;
    struct batch_memory *b = of_layer(batch, rows, &of_part);
    if (!b) return no_layer(rows->layer, error);
    b->appended = of_part;
    for (const struct group *g = b->groups; g < b->groups + b->n_groups && result == cudaSuccess; g++) {
        const struct kv_rows own = own_rows(b, g, &of_part);
        if (own.count && !(own.q && appends(g))) result = append(b, g, &own, MODEL_BEHIND(rows->layer));
    }
    return device_check(result, "storing a step's keys and values", error);
}

enum terse_status batch_attend(struct batch_memory *batch, const struct kv_rows *rows, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    struct kv_rows of_part;
    struct batch_memory *b = of_layer(batch, rows, &of_part);
    if (!b) return no_layer(rows->layer, error);
    for (const struct group *g = b->groups; g < b->groups + b->n_groups && !status; g++) {
        const struct kv_rows own = own_rows(b, g, &of_part);
        const struct kv_rows queries = {.layer = own.layer, .first = own.first, .count = own.count, .q = own.q};
        if (own.count && !b->appended.q)
            status = device_check(append(b, g, &queries, MODEL_BEHIND(rows->layer)), "rotating a step's queries", error);
        if (own.count && !status) status = attend(b, g, &own, MODEL_BEHIND(rows->layer), error);
    }
    return status;
}
