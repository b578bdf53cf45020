/* Computes the addresses and positions of segments. */
#include "backend/cpu/kv/segment.h"

#include "backend/cpu/kv/page_pool.h"

/* ---- Which segments a step has */

static size_t segments_for(uint64_t tokens) { return (size_t)((tokens + PAGE_TOKENS - 1) / PAGE_TOKENS); }

/* Returns the list that KV heads share; their own lists differ from it in pages alone. */
static const struct read_list *shared_list(const struct cache *cache) { return &cache->base.reads.shared; }

static size_t exact_segments(const struct cache *cache) { return segments_for(shared_list(cache)->rows_end); }

static size_t window_segments(const struct cache *cache) { return cache->sealed_first ? 0 : plan_window_before(&cache->base.plan); }

/* Returns the number of sealed pages that are read whole. */
static size_t page_segments(const struct cache *cache) {
    return cache->selection.candidates ? cache->selection.dense : shared_list(cache)->n_pages;
}

size_t segment_count_chosen(const struct cache *cache) { return cache->selection.candidates ? cache->selection.packed : 0; }

size_t segment_count_rows(const struct cache *cache) { return exact_segments(cache) + segments_for(shared_list(cache)->n_kept); }

size_t segment_count_stored(const struct cache *cache) {
    return segment_count_chosen(cache) + segment_count_rows(cache) + page_segments(cache) + window_segments(cache);
}

size_t segment_count(const struct cache *cache) {
    return segment_count_stored(cache) + (cache->sealed_first ? 0 : segments_for(cache->base.plan.n));
}

static void set_live(struct segment *segment, uint64_t first, uint64_t live) {
    segment->first = first;
    segment->live = live;
    segment->begin = read_begin(live);
    segment->end = read_end(live);
    segment->holes = read_has_holes(live);
}

/* Sets the tokens to [first, end), 64 of them at most, of which those from `from` on are live, if this rank reads them. */
static void set_tokens(const struct cache *cache, struct segment *segment, uint64_t first, uint64_t end, uint64_t from) {
    set_live(segment, first, exchange_reads(cache, first) ? read_slots_of(first, PAGE_TOKENS, from, end) : 0);
}

/* Finds the i-th segment of tokens chosen from pages. */
static void find_chosen(const struct cache *cache, uint32_t head, size_t i, struct segment *segment) {
    const struct selection *selection = &cache->selection;
    size_t first = i * PAGE_TOKENS, count = selection->counts[head], left = count > first ? count - first : 0;
    uint32_t start = left ? selection->starts[head * selection->packed + i] : 0;
    segment->kind = SEGMENT_GATHERED;
    segment->chosen = read_list_of(&cache->base.reads, head)->pages + start / PAGE_TOKENS;
    segment->slot = start % PAGE_TOKENS;
    set_live(segment, 0, read_slots(0, left < PAGE_TOKENS ? (uint32_t)left : PAGE_TOKENS));
}

static void find_row(const struct cache *cache, size_t i, struct segment *segment) {
    const struct read_list *list = shared_list(cache);
    size_t exact = exact_segments(cache);
    segment->kind = i < exact ? SEGMENT_EXACT : SEGMENT_ANCHORS;
    segment->base = segments_for(cache->base.plan.n) + i;
    if (i < exact)
        set_tokens(cache, segment, i * PAGE_TOKENS, list->rows_end, list->rows_begin);
    else
        set_tokens(cache, segment, (i - exact) * PAGE_TOKENS, list->n_kept, 0);
}

static void find_page(const struct cache *cache, uint32_t head, size_t i, struct segment *segment) {
    const struct read_list *list = read_list_of(&cache->base.reads, head);
    const struct read_page *page = &list->pages[list->n_chosen + i];
    segment->kind = SEGMENT_SEALED;
    segment->base = segment_page_base(cache, page->page);
    segment->set = &cache->base.pages.sets[page->page];
    segment->exact = list->exact ? &list->exact[list->n_chosen + i] : NULL;
    set_live(segment, segment->set->first, page->live);
}

static void find_window(const struct cache *cache, size_t i, struct segment *segment) {
    const struct plan *plan = &cache->base.plan;
    segment->kind = SEGMENT_WINDOW;
    segment->base = segment_page_base(cache, shared_list(cache)->n_pages + i);
    segment->window_set = cache->window_sets[i];
    set_tokens(cache, segment, plan->before.window_first + i * PAGE_TOKENS, plan->before.length, shared_list(cache)->window_first);
}

static void find_new(const struct cache *cache, size_t i, struct segment *segment) {
    uint64_t first = cache->base.plan.before.length;
    segment->kind = SEGMENT_NEW;
    segment->base = i;
    set_tokens(cache, segment, first + i * PAGE_TOKENS, first + cache->base.plan.n, 0);
}

void segment_find(const struct cache *cache, uint32_t head, size_t i, struct segment *segment) {
    size_t chosen = segment_count_chosen(cache), rows = segment_count_rows(cache), pages = page_segments(cache);
    size_t window = window_segments(cache);
    segment->as_logits = segment->int8_weights = false;
    if (i < chosen)
        find_chosen(cache, head, i, segment);
    else if ((i -= chosen) < rows)
        find_row(cache, i, segment);
    else if ((i -= rows) < pages)
        find_page(cache, head, i, segment);
    else if ((i -= pages) < window)
        find_window(cache, i, segment);
    else
        find_new(cache, i - window, segment);
}

struct segment segment_at(const struct cache *cache, uint32_t head, size_t i) {
    struct segment segment = {0};
    segment_find(cache, head, i, &segment);
    return segment;
}

size_t segment_count_seen(const struct cache *cache, size_t i) {
    size_t n = segment_count(cache);
    while (segment_at(cache, 0, n - 1).first > cache->base.plan.before.length + i) n--;
    return n;
}

struct segment segment_of_token(const struct cache *cache, uint64_t token) {
    const struct plan *plan = &cache->base.plan;
    struct segment segment = {0};
    if (token >= plan->before.length) {
        find_new(cache, (size_t)(token - plan->before.length) / PAGE_TOKENS, &segment);
    } else if (token >= plan->before.window_first) {
        find_window(cache, (size_t)(token - plan->before.window_first) / PAGE_TOKENS, &segment);
    } else {
        const struct page_set *sets = cache->base.pages.sets;
        size_t i = 0;
        while (token >= sets[i].first + sets[i].count) i++;
        segment = (struct segment){.kind = SEGMENT_SEALED, .base = segment_page_base(cache, i), .set = &sets[i]};
        set_tokens(cache, &segment, sets[i].first, sets[i].first + sets[i].count, 0);
    }
    return segment;
}

/* Returns the bytes of a list's pages, which are of several rates, in the layer. */
static uint64_t lowered_bytes(const struct cache *cache, const struct read_list *list) {
    uint64_t each[METHOD_RATES], bytes = 0;
    for (uint32_t rate = 0; rate < rates_of(&cache->base); rate++)
        each[rate] = page_bytes_of_layer_at(cache, rate, cache->base.layer);
    for (size_t i = 0; i < list->n_pages; i++) bytes += each[cache->base.pages.sets[list->pages[i].page].rate];
    return bytes;
}

/* Counts the list's pages that this rank holds. */
static size_t pages_here(const struct cache *cache, const struct read_list *list) {
    size_t here = 0;
    for (size_t i = 0; i < list->n_pages; i++) here += page_set_is_here(&cache->base.pages.sets[list->pages[i].page]);
    return here;
}

uint64_t segment_bytes(const struct cache *cache) {
    const struct read_list *list = shared_list(cache);
    uint64_t exact = ((uint64_t)list->rows_end + list->n_kept) * cache_sides_of(&cache->base.shape) * cache->base.shape.head_dim *
                     sizeof(uint16_t);
    const size_t pages = cache->base.shape.ranks ? pages_here(cache, list) : list->n_pages;
    uint64_t sealed = pages * page_bytes_of_layer(cache, cache->base.layer);
    if (rates_of(&cache->base) > 1) sealed = lowered_bytes(cache, list);
    return cache->base.shape.kv_heads * (exact + window_segments(cache) * window_bytes(cache)) + sealed;
}

/* ---- Positions */

/* Returns the position of the run that contains a page with this first token. */
static int64_t run_position(uint64_t first) { return (int64_t)(first - first % ROPE_RUN_TOKENS); }

/* Returns the number of bases behind those of the new tokens: of rows, then pages, then the window. Where keys are stored at their own positions,
 * exact rows alone have bases. */
static size_t rotated_segments(const struct cache *cache) {
    size_t rows = segment_count_rows(cache), pages = shared_list(cache)->n_pages;
    if (cache->keys_in_rope_runs) return rows + pages;
    return cache->keys_rotated ? exact_segments(cache) : rows + pages + window_segments(cache);
}

size_t segment_bases(const struct cache *cache) { return segments_for(cache->base.plan.n) + rotated_segments(cache); }

int64_t segment_position(const struct cache *cache, const struct segment *segment) {
    uint64_t moved = segment->kind == SEGMENT_EXACT ? shared_list(cache)->moved : 0;
    return (int64_t)(segment->first + moved) - (int64_t)cache->base.plan.before.length;
}

void segment_set_bases(struct cache *cache) {
    const size_t rows = segment_count_rows(cache), pages = shared_list(cache)->n_pages;
    int64_t start = cache->keys_rotated ? (int64_t)cache->base.plan.before.length : 0; /* the first new token's */
    for (size_t i = 0; i < segments_for(cache->base.plan.n); i++)
        rotary_set_base(&cache->rotary, i, (int64_t)(i * PAGE_TOKENS) + start);
    for (size_t i = 0; i < rotated_segments(cache); i++) {
        struct segment segment = {0};
        if (i < rows)
            find_row(cache, i, &segment);
        else if (i < rows + pages)
            segment = (struct segment){.kind = SEGMENT_SEALED,
                                       .base = segment_page_base(cache, i - rows),
                                       .first = cache->base.pages.sets[i - rows].first};
        else
            find_window(cache, i - rows - pages, &segment);
        bool in_run = cache->keys_in_rope_runs && segment.kind == SEGMENT_SEALED;
        rotary_set_base(&cache->rotary, segment.base,
                        in_run ? run_position(segment.first) : segment_position(cache, &segment) + start);
    }
}

void segment_rotate_query(const struct cache *cache, size_t i, float *rows, uint32_t n) {
    rotary_rotate(&cache->rotary, i / PAGE_TOKENS, i % PAGE_TOKENS, rows, n, cache->base.shape.head_dim);
}

size_t segment_page_base(const struct cache *cache, size_t i) {
    return segments_for(cache->base.plan.n) + segment_count_rows(cache) + i;
}

void segment_rotate_from_run(const struct cache *cache, size_t base, size_t n, float *rows) {
    rotary_advance_base(&cache->rotary, base, rows, (uint32_t)n, cache->base.shape.head_dim);
}

void segment_rotate_to_run(const struct cache *cache, uint64_t first, size_t n, float *rows) {
    rotary_advance(&cache->rotary, -run_position(first), rows, (uint32_t)n, cache->base.shape.head_dim);
}

void segment_rotate_key(const struct cache *cache, size_t i, size_t slot, float *row) {
    rotary_rotate(&cache->rotary, segment_page_base(cache, i), slot, row, 1, 0);
}

void segment_rotate_to_own(const struct cache *cache, float *query) {
    rotary_advance(&cache->rotary, (int64_t)cache->base.plan.before.length, query, 1, 0);
}
