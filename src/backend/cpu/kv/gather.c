/* Packs tokens into pages, and reads these. */
#include "backend/cpu/kv/gather.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/select.h"
#include "backend/cpu/kv/side.h"
#include "base/memory.h"
#include "base/parallel.h"

#include <string.h>

#define PREFETCH_PAGES 3 /* pages ahead whose chosen tokens are prefetched */

/* Returns the bytes of a page of keys and one of values, of any layer and KV head. */
static size_t packed_bytes(const struct cache *cache) {
    return cache->largest_page[CODEC_KEYS] + cache->largest_page[CODEC_VALUES];
}

enum terse_status gather_reserve(struct cache *cache, struct terse_error *error) {
    size_t threads = cache->base.threads, bytes = packed_bytes(cache);
    if (!select_active(cache) || cache->gathered) return TERSE_OK;
    if (!(cache->gathered = memory_zeros(threads, bytes))) return status_no_memory(error, threads * bytes, "packed tokens");
    return TERSE_OK;
}

void gather_free(struct cache *cache) { memory_free(cache->gathered); }

uint64_t gather_bytes(const struct cache *cache) {
    const struct selection *selection = &cache->selection;
    uint64_t pages = page_bytes_of_layer(cache, cache->base.layer);
    uint64_t left = segment_bytes(cache) - selection->candidates * pages;
    return left + select_bytes(cache) + selection->max_tokens * pages / PAGE_TOKENS;
}

/* ---- The tokens of a segment, page by page */

/* A `tokens` is chosen tokens that follow one another in a read list, `left` of them: first those in `slots` of its page `page`. */
struct tokens {
    const struct read_page *page;
    uint64_t slots;
    size_t left;
};

/* A `taken` is the tokens of one page that take() has taken from them. */
struct taken {
    const struct read_page *page;
    uint8_t slots[PAGE_TOKENS]; /* [n] */
    size_t n;
};

static struct tokens tokens_of(const struct segment *segment) {
    struct tokens tokens = {segment->chosen, 0, segment->end};
    if (tokens.left) tokens.slots = tokens.page->live & (READ_ALL << segment->slot);
    return tokens;
}

/* Writes the first of slots, `most` at most; returns their number. */
static size_t list_slots(uint64_t *slots, size_t most, uint8_t *to) {
    size_t n = 0;
    while (*slots && n < most) to[n++] = (uint8_t)read_take(slots);
    return n;
}

static struct taken take(struct tokens *tokens) {
    struct taken taken = {.page = tokens->page};
    taken.n = list_slots(&tokens->slots, tokens->left, taken.slots);
    tokens->left -= taken.n;
    if (tokens->left) tokens->slots = (++tokens->page)->live;
    return taken;
}

static const struct page_set *set_of(const struct cache *cache, const struct read_page *page) {
    return &cache->base.pages.sets[page->page];
}

/* Prefetches the parts of a page that will be copied, keys and values. */
static void prefetch(const struct cache *cache, uint32_t head, const struct read_page *page) {
    uint8_t slots[PAGE_TOKENS];
    uint64_t live = page->live;
    size_t n = list_slots(&live, PAGE_TOKENS, slots);
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        const struct cpu_codec *codec = side_codec(cache, (enum codec_side)side);
        const void *from = page_at(cache, set_of(cache, page), (enum codec_side)side, cache->base.layer, head);
        if (codec->prefetch_tokens)
            codec->prefetch_tokens(side_shape(cache, (enum codec_side)side, cache->base.layer, head, 1), (enum codec_side)side,
                                   from, slots, n);
    }
}

/* Packs the tokens of a segment into the calling thread's page of one side. */
static const void *pack(const struct cache *cache, const struct segment *segment, uint32_t head, enum codec_side side) {
    const struct cpu_codec *codec = side_codec(cache, side);
    struct codec_shape shape = side_shape(cache, side, cache->base.layer, head, 1);
    const struct read_list *list = read_list_of(&cache->base.reads, head);
    const struct read_page *near = segment->chosen + PREFETCH_PAGES,
                           *last = list->pages + list->n_chosen; /* of all the head's segments */
    struct tokens tokens = tokens_of(segment);
    uint8_t *page = cache->gathered + parallel_thread() * packed_bytes(cache);
    bool prefetches = side == CODEC_KEYS && codec->prefetch_tokens;
    if (side == CODEC_VALUES) page += cache->largest_page[CODEC_KEYS];
    for (size_t at = 0; tokens.left; near++) {
        if (prefetches && near < last) prefetch(cache, head, near);
        struct taken taken = take(&tokens);
        const void *from = page_at(cache, set_of(cache, taken.page), side, cache->base.layer, head);
        codec->gather_tokens(shape, side, from, taken.slots, taken.n, page, at);
        at += taken.n;
    }
    return page;
}

/* Scores the whole page and picks the logits: keys whose scales are those of their page cannot leave it. */
static void score_in_place(const struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    float *whole = reader->workspace;
    struct tokens tokens = tokens_of(segment);
    for (size_t i = 0; tokens.left;) {
        struct taken taken = take(&tokens);
        const void *page = page_at(cache, set_of(cache, taken.page), CODEC_KEYS, cache->base.layer, reader->head);
        cache->codec[CODEC_KEYS]->score(reader->keys, reader->q, reader->tables, page, whole);
        for (size_t m = 0; m < reader->rows; m++)
            for (size_t j = 0; j < taken.n; j++) logits[m * PAGE_TOKENS + i + j] = whole[m * PAGE_TOKENS + taken.slots[j]];
        i += taken.n;
    }
}

static void dot_row(const float *q, const float *row, size_t rows, size_t hd, size_t i, float *logits) {
    for (size_t m = 0; m < rows; m++) logits[m * PAGE_TOKENS + i] = vector_ops()->dot(q + m * hd, row, hd);
}

/* Decodes keys before rotation and rotates them one by one. */
static void score_decoded(const struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    size_t hd = cache->base.shape.head_dim;
    float *rows = reader->workspace;
    struct tokens tokens = tokens_of(segment);
    cache->codec[CODEC_KEYS]->decode(reader->keys, CODEC_KEYS, pack(cache, segment, reader->head, CODEC_KEYS), rows);
    for (size_t i = 0; tokens.left;) {
        struct taken taken = take(&tokens);
        for (size_t j = 0; j < taken.n; j++, i++) {
            segment_rotate_key(cache, taken.page->page, taken.slots[j], rows + i * hd);
            dot_row(reader->q, rows + i * hd, reader->rows, hd, i, logits);
        }
    }
}

/* Adds the position scores to the logits of packed tokens i to end - 1, all of one rope run. */
static void add_positions(const struct head_reader *reader, struct tokens tokens, size_t i, size_t end, float *logits) {
    const struct cache *cache = reader->cache;
    while (i < end) {
        const struct taken taken = take(&tokens);
        position_scores_add_slots(&cache->positions, reader->position_products, reader->rows, set_of(cache, taken.page)->first,
                                  taken.slots, taken.n, logits + i);
        i += taken.n;
    }
}

/* Scores the page once for each rope run: the tokens of a packed page come from a few runs, one after another, and this takes less
 * time than decoding the keys and rotating them. */
static void score_by_runs(struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    const void *page = pack(cache, segment, reader->head, CODEC_KEYS);
    float *some = reader->workspace;
    const int64_t *positions = cache->rotary.positions + segment_page_base(cache, 0); /* of the runs of pages */
    struct tokens tokens = tokens_of(segment), of_run;
    for (size_t i = 0, end = 0; tokens.left; i = end) {
        const uint32_t first = tokens.page->page;
        of_run = tokens;
        while (tokens.left && positions[tokens.page->page] == positions[first]) end += take(&tokens).n;
        segment_score_in_run(reader, page, segment_page_base(cache, first), some);
        for (size_t m = 0; m < reader->rows; m++)
            memcpy(logits + m * PAGE_TOKENS + i, some + m * PAGE_TOKENS + i, (end - i) * sizeof *logits);
        if (reader->pre_rope_mean) add_positions(reader, of_run, i, end, logits);
    }
}

/* ---- Anchors among them, whose rows are read in place of codes */

/* An anchor of one side is the token that is packed at `at`, in slot `slot` of its page. */
struct anchor {
    const struct read_page *page;
    uint32_t slot, row;
    size_t at;
};
typedef void read_anchor(const struct head_reader *reader, const struct anchor *anchor, float *numbers, float *acc);

static void each_anchor(const struct head_reader *reader, const struct segment *segment, enum codec_side side, read_anchor *read,
                        float *numbers, float *acc) {
    const struct read_list *list = read_list_of(&reader->cache->base.reads, reader->head);
    if (!list->exact) return;
    struct tokens tokens = tokens_of(segment);
    for (size_t at = 0; tokens.left;) {
        struct taken taken = take(&tokens);
        const struct read_exact *exact = &list->exact[taken.page - list->pages];
        for (size_t j = 0; j < taken.n; j++, at++)
            if (exact->slots[side] >> taken.slots[j] & 1)
                read(reader, &(struct anchor){taken.page, taken.slots[j], read_exact_row(exact, side, taken.slots[j]), at}, numbers,
                     acc);
    }
}

static void score_anchor(const struct head_reader *reader, const struct anchor *anchor, float *logits, float *acc) {
    const struct cache *cache = reader->cache;
    float row[CODEC_HEAD_DIM_MAX];
    (void)acc;
    anchor_row(cache, CODEC_KEYS, reader->head, anchor->row, row);
    if (!cache->keys_rotated) segment_rotate_key(cache, anchor->page->page, anchor->slot, row);
    dot_row(reader->q, row, reader->rows, cache->base.shape.head_dim, anchor->at, logits);
}

static void accumulate_anchor(const struct head_reader *reader, const struct anchor *anchor, float *weights, float *acc) {
    float row[CODEC_HEAD_DIM_MAX];
    anchor_row(reader->cache, CODEC_VALUES, reader->head, anchor->row, row);
    segment_accumulate_row(row, anchor->at, reader->rows, reader->cache->base.shape.head_dim, weights, acc);
}

void gather_score(struct head_reader *reader, const struct segment *segment, float *logits) {
    const struct cache *cache = reader->cache;
    const struct cpu_codec *codec = cache->codec[CODEC_KEYS];
    if (codec->format->gather == CODEC_GATHERS_VALUES) {
        score_in_place(reader, segment, logits);
    } else if (cache->keys_in_rope_runs) {
        score_by_runs(reader, segment, logits);
    } else if (cache->keys_rotated) {
        codec->score(reader->keys, reader->q, reader->tables, pack(cache, segment, reader->head, CODEC_KEYS), logits);
    } else {
        score_decoded(reader, segment, logits);
    }
    each_anchor(reader, segment, CODEC_KEYS, score_anchor, logits, NULL);
}

void gather_accumulate(const struct head_reader *reader, const struct segment *segment, float *weights, float *code_sums,
                       float *acc) {
    const struct cache *cache = reader->cache;
    each_anchor(reader, segment, CODEC_VALUES, accumulate_anchor, weights, acc);
    const void *page = pack(cache, segment, reader->head, CODEC_VALUES);
    segment_accumulate_page(reader, page, segment->int8_weights, weights, code_sums, acc);
}
