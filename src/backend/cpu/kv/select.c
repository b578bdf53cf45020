/* Choosing tokens and reading them packed. */
#include "backend/cpu/kv/select.h"

#include "backend/cpu/codec/index.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/top_k.h"
#include "base/memory.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define RANGE_PAGE_SETS 32 /* candidates are scored so many blocks at a time */
#define FORCED UINT16_MAX
#define FETCH_AHEAD 3  /* blocks whose rows will be taken */
#define SCORE_AHEAD 12 /* blocks of the index: where they lie within those of keys no prefetcher of the processor follows them */

/* ---- Sizes */

/* Codec sign's blocks of keys, and what it learns, begin with index_sign's. */
static bool index_in_keys(const struct method *method) { return method->index == &index_sign && method->key.codec == &codec_sign; }

size_t index_page_bytes(const struct method *method, uint32_t hd) {
    return method->index && !index_in_keys(method) ? method->index->page_bytes(hd) : 0;
}

size_t fitted_key_bytes(const struct method *method, uint32_t hd) {
    const struct codec *codec = method->key.codec;
    return codec->fitted_bytes
               ? memory_round_up(codec->fitted_bytes(method_shape(method, CODEC_KEYS, hd, 1), CODEC_KEYS), MEMORY_ALIGN)
               : 0;
}

size_t fitted_bytes(const struct method *method, uint32_t hd) {
    size_t own = method->index && !index_in_keys(method) ? method->index->learned_bytes(hd) : 0;
    return fitted_key_bytes(method, hd) + memory_round_up(own, MEMORY_ALIGN);
}

static void *learned_of(const struct cache *cache, uint32_t layer, uint32_t head) {
    uint8_t *fitted = fitted_data(cache, layer, head);
    return index_in_keys(&cache->method) ? fitted : fitted + fitted_key_bytes(&cache->method, cache->shape.head_dim);
}

static const uint8_t *index_page(const struct cache *cache, const struct set *set, uint32_t layer, uint32_t head) {
    return index_in_keys(&cache->method) ? page_at(cache, set, CODEC_KEYS, layer, head) : index_page_at(cache, set, layer, head);
}

/* ---- Room */

/* Where the parts of reading.memory lie. */
struct workspace {
    uint16_t *scores; /* [Hk][slots] */
    uint32_t *chosen; /* [Hk][most], places: 64 times the number of a candidate block, plus the slot */
    size_t *count;    /* [Hk] */
    uint8_t *tables;  /* [Hk][table_bytes] */
    float *fit;       /* [Hk][FIT_ROWS][hd] */
};

static size_t slots_of(const struct selection *selection) { return selection->candidates * PAGE_TOKENS; }

static size_t table_bytes(const struct cache *cache) {
    return memory_round_up(cache->method.index->table_bytes(cache->shape.head_dim), MEMORY_ALIGN);
}

/* Lays `bytes` more out behind *size. */
static size_t part(size_t *size, size_t count, size_t bytes) {
    size_t at = *size;
    *size += memory_round_up(count * bytes, MEMORY_ALIGN);
    return at;
}

static size_t lay_out(const struct cache *cache, const struct plan *plan, const struct selection *selection,
                      struct workspace *workspace) {
    size_t heads = cache->shape.kv_heads, size = 0;
    bool fits = unfitted(cache) && plan->seal && !cache->rotated, reads = selection->candidates > 0;
    size_t scores = part(&size, reads ? heads * slots_of(selection) : 0, sizeof *workspace->scores);
    size_t chosen = part(&size, reads ? heads * selection->most : 0, sizeof *workspace->chosen);
    size_t count = part(&size, reads ? heads : 0, sizeof *workspace->count);
    size_t tables = part(&size, reads ? heads : 0, reads ? table_bytes(cache) : 0);
    size_t fit = part(&size, fits ? heads * FIT_ROWS : 0, cache->shape.head_dim * sizeof(float));
    uint8_t *memory = selection->memory;
    if (memory && workspace)
        *workspace = (struct workspace){(uint16_t *)(void *)(memory + scores), (uint32_t *)(void *)(memory + chosen),
                                        (size_t *)(void *)(memory + count), memory + tables, (float *)(void *)(memory + fit)};
    return size;
}

static struct workspace workspace_of(const struct cache *cache) {
    struct workspace workspace = {0};
    lay_out(cache, &cache->plan, &cache->selection, &workspace);
    return workspace;
}

/* Blocks of prompts first, in order, then those of the sequence's own tokens. */
static void list_page_sets(const struct cache *cache, struct selection *selection) {
    size_t n = 0;
    for (int generated = 0; generated < 2; generated++) {
        for (size_t i = 0; i < cache->sealed; i++)
            if (cache->page_sets[i].generated == (generated == 1)) selection->listed[n++] = (uint32_t)i;
        if (!generated) selection->candidates = n;
    }
    selection->dense = n - selection->candidates;
}

static enum terse_status reserve_packed(struct cache *cache, struct terse_error *error) {
    size_t threads = (size_t)omp_get_max_threads(), bytes = cache->key_bytes + cache->value_bytes;
    if (threads <= cache->packed_threads) return TERSE_OK;
    memory_free(cache->packed);
    cache->packed_threads = 0;
    cache->packed = memory_zeros(threads, bytes);
    if (!cache->packed) return status_no_memory(error, threads * bytes, "packed tokens");
    cache->packed_threads = threads;
    return TERSE_OK;
}

enum terse_status select_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error) {
    struct selection *selection = &cache->selection;
    const struct policy_parameters *parameters = &cache->method.parameters;
    selection->candidates = selection->dense = 0;
    if (!cache->method.index && !cache->fitted_bytes) return TERSE_OK;
    bool decodes = plan->kind == CACHE_STEP_DECODE || plan->kind == CACHE_STEP_CHUNK;
    if (cache->method.index && decodes && cache->sealed) {
        if (cache->sealed > selection->capacity) {
            memory_free(selection->listed);
            selection->capacity = 0;
            selection->listed = memory_array(cache->n_page_sets, sizeof *selection->listed);
            if (!selection->listed) return status_no_memory(error, cache->n_page_sets * sizeof *selection->listed, "chosen tokens");
            selection->capacity = cache->n_page_sets;
        }
        list_page_sets(cache, selection);
        size_t slots = slots_of(selection), wanted = policy_selects(parameters, slots) + cache->anchors.count;
        if (wanted < slots) {
            selection->most = wanted;
            enum terse_status status = reserve_packed(cache, error);
            if (status) return status;
        } else {
            selection->candidates = selection->dense = 0; /* there is nothing to choose */
        }
    }
    size_t bytes = lay_out(cache, plan, selection, NULL);
    if (bytes <= selection->bytes) return TERSE_OK;
    memory_free(selection->memory);
    selection->bytes = 0;
    if (!(selection->memory = memory_array(bytes, 1))) return status_no_memory(error, bytes, "chosen tokens");
    selection->bytes = bytes;
    return TERSE_OK;
}

void select_free(struct cache *cache) {
    memory_free(cache->selection.listed);
    memory_free(cache->selection.memory);
    memory_free(cache->packed);
}

/* ---- Learning and encoding */

static void fit_rows(struct cache *cache, uint32_t head, const float *rows, size_t n, size_t stride) {
    const struct method *method = &cache->method;
    struct index_options options = index_options_defaults();
    struct codec_shape shape = method_shape(method, CODEC_KEYS, cache->shape.head_dim, cache->group);
    if (fitted_key_bytes(method, cache->shape.head_dim))
        method->key.codec->fit(shape, CODEC_KEYS, rows, n, stride, &options, fitted_data(cache, cache->layer, head));
    if (method->index && !index_in_keys(method) && method->index->learned_bytes(cache->shape.head_dim))
        method->index->fit(cache->shape.head_dim, rows, n, stride, &options, learned_of(cache, cache->layer, head));
}

/* An index wants keys as queries meet them: rows of tokens `token`, token + step, ... where they are not turned yet. */
static void rotate_rows(const struct cache *cache, uint64_t token, size_t step, float *rows, size_t n) {
    if (cache->rotated) return;
    for (size_t i = 0; i < n; i++)
        rotary_rotate_at(&cache->rotary, (int64_t)(token + i * step), rows + i * cache->shape.head_dim, 1, cache->shape.head_dim);
}

void select_fit(struct cache *cache, uint32_t head, const float *page) {
    const struct plan *plan = &cache->plan;
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd;
    uint64_t first = plan->grid + plan->skip * PAGE_TOKENS, end = first + plan->sealed, length = plan->before.length;
    uint64_t from = first > length ? first : length;
    float *some = workspace_of(cache).fit + (cache->rotated ? 0 : head * FIT_ROWS * hd);
    if (end < from + PAGE_TOKENS) {
        size_t n = plan->sealed < PAGE_TOKENS ? plan->sealed : PAGE_TOKENS;
        if (!cache->rotated) {
            memcpy(some, page, n * hd * sizeof *some);
            rotate_rows(cache, first, 1, some, n);
        }
        fit_rows(cache, head, cache->rotated ? page : some, n, hd);
        return;
    }
    const float *rows = cache->k + (size_t)(from - length) * width + head * hd;
    size_t n = (size_t)(end - from), step = (n + FIT_ROWS - 1) / FIT_ROWS, count = (n + step - 1) / step;
    if (cache->rotated) {
        fit_rows(cache, head, rows, n, width);
        return;
    }
    for (size_t i = 0; i < count; i++) memcpy(some + i * hd, rows + i * step * width, hd * sizeof *some);
    rotate_rows(cache, from, step, some, count);
    fit_rows(cache, head, some, count, hd);
}

void select_encode_index(const struct cache *cache, const struct set *set, uint32_t layer, uint32_t head, const float *rows,
                         size_t n, float *scratch) {
    size_t hd = cache->shape.head_dim;
    if (!cache->index_bytes) return;
    if (!cache->rotated) {
        memcpy(scratch, rows, n * hd * sizeof *scratch);
        rotate_rows(cache, set->first, 1, scratch, n);
    }
    cache->method.index->encode(hd, learned_of(cache, layer, head), cache->rotated ? rows : scratch, n,
                                index_page_at(cache, set, layer, head));
}

/* ---- Choosing */

void select_prepare(const struct cache *cache, uint32_t head, const float *q) {
    size_t hd = cache->shape.head_dim;
    float rotated[CODEC_HEAD_DIM_MAX], mean[CODEC_HEAD_DIM_MAX] = {0};
    for (size_t g = 0; g < cache->group; g++) {
        memcpy(rotated, q + g * hd, hd * sizeof *rotated);
        if (!cache->rotated) segment_rotate_to_own(cache, rotated);
        for (size_t c = 0; c < hd; c++) mean[c] += rotated[c] / (float)cache->group;
    }
    cache->method.index->prepare(hd, learned_of(cache, cache->layer, head), mean, 1,
                                 workspace_of(cache).tables + head * table_bytes(cache));
}

size_t select_ranges(const struct cache *cache) { return (cache->selection.candidates + RANGE_PAGE_SETS - 1) / RANGE_PAGE_SETS; }

static const struct set *candidate(const struct cache *cache, size_t i) { return &cache->page_sets[cache->selection.listed[i]]; }

void select_score(const struct cache *cache, uint32_t head, size_t range) {
    struct workspace workspace = workspace_of(cache);
    size_t end = (range + 1) * RANGE_PAGE_SETS;
    uint16_t *scores = workspace.scores + head * slots_of(&cache->selection);
    size_t bytes = cache->method.index->page_bytes(cache->shape.head_dim);
    for (size_t i = range * RANGE_PAGE_SETS; i < end && i < cache->selection.candidates; i++) {
        if (i + SCORE_AHEAD < cache->selection.candidates) {
            const uint8_t *ahead = index_page(cache, candidate(cache, i + SCORE_AHEAD), cache->layer, head);
            for (size_t b = 0; b < bytes; b += MEMORY_ALIGN) __builtin_prefetch(ahead + b, 0, 2);
        }
        cache->method.index->scores(cache->shape.head_dim, workspace.tables + head * table_bytes(cache),
                                    index_page(cache, candidate(cache, i), cache->layer, head), scores + i * PAGE_TOKENS);
    }
}

/* Exact keys are read whatever their scores; returns their number. */
static size_t force_anchors(const struct cache *cache, uint32_t head, uint16_t *scores) {
    struct anchor_range anchors = anchors_all(cache, CODEC_KEYS, head);
    size_t forced = 0;
    for (size_t i = 0, at = anchors.from; i < cache->selection.candidates; i++) {
        const struct set *set = candidate(cache, i);
        while (at < anchors.to && anchors.tokens[at] < set->first) at++;
        for (; at < anchors.to && anchors.tokens[at] < set->first + set->count; at++, forced++)
            scores[i * PAGE_TOKENS + (anchors.tokens[at] - set->first)] = FORCED;
    }
    return forced;
}

void select_top_k(const struct cache *cache, uint32_t head) {
    struct workspace workspace = workspace_of(cache);
    size_t slots = slots_of(&cache->selection), kept = 0;
    uint16_t *scores = workspace.scores + head * slots;
    uint32_t *chosen = workspace.chosen + head * cache->selection.most;
    bool filled = true; /* short blocks are few */
    for (size_t i = 0; i < cache->selection.candidates; i++) {
        for (size_t t = candidate(cache, i)->count; t < PAGE_TOKENS; t++) {
            scores[i * PAGE_TOKENS + t] = 0;
            filled = false;
        }
    }
    size_t wanted = policy_selects(&cache->method.parameters, slots) + force_anchors(cache, head, scores);
    size_t n = top_tokens(scores, slots, wanted < cache->selection.most ? wanted : cache->selection.most, chosen);
    if (filled) kept = n;
    for (size_t i = 0; !filled && i < n; i++)
        if (chosen[i] % PAGE_TOKENS < candidate(cache, chosen[i] / PAGE_TOKENS)->count) chosen[kept++] = chosen[i];
    workspace.count[head] = kept;
}

/* ---- Tiles */

static size_t packed_segments(const struct cache *cache) { return (cache->selection.most + PAGE_TOKENS - 1) / PAGE_TOKENS; }

size_t select_segment_count(const struct cache *cache) {
    return packed_segments(cache) + segment_count(cache) - cache->selection.candidates;
}

struct segment select_segment_at(const struct cache *cache, uint32_t head, size_t i) {
    size_t packed = packed_segments(cache), rows = segment_count_rows(cache), dense = cache->selection.dense;
    if (i < packed) {
        struct workspace workspace = workspace_of(cache);
        size_t first = i * PAGE_TOKENS, left = workspace.count[head] > first ? workspace.count[head] - first : 0;
        return (struct segment){.kind = SEGMENT_PACKED,
                                .end = (uint32_t)(left < PAGE_TOKENS ? left : PAGE_TOKENS),
                                .places = workspace.chosen + head * cache->selection.most + first};
    }
    i -= packed;
    if (i < rows) return segment_at(cache, i);
    i -= rows;
    if (i < dense) return segment_at(cache, rows + cache->selection.listed[cache->selection.candidates + i]);
    return segment_at(cache, rows + cache->sealed + (i - dense));
}

uint64_t select_bytes(const struct cache *cache) {
    const struct selection *selection = &cache->selection;
    size_t both = cache->key_bytes + cache->value_bytes;
    uint64_t scanned = selection->candidates * cache->method.index->page_bytes(cache->shape.head_dim);
    uint64_t left = segment_bytes(cache) - (uint64_t)cache->shape.kv_heads * selection->candidates * both;
    return left + cache->shape.kv_heads * (scanned + (uint64_t)selection->most * both / PAGE_TOKENS);
}

uint64_t packed_token(const struct cache *cache, const struct segment *segment, size_t i) {
    return candidate(cache, segment->places[i] / PAGE_TOKENS)->first + segment->places[i] % PAGE_TOKENS;
}

/* The places from `place` on, before `end`, that lie in its block: their slots. Returns the next place, which does not. */
static const uint32_t *same_page(const uint32_t *place, const uint32_t *end, uint8_t *slots, size_t *n) {
    uint32_t page = *place / PAGE_TOKENS;
    for (*n = 0; place < end && *place / PAGE_TOKENS == page; place++) slots[(*n)++] = (uint8_t)(*place % PAGE_TOKENS);
    return place;
}

/* Brings what will be taken of a block near, keys and values. */
static void fetch(const struct cache *cache, uint32_t head, uint32_t page, const uint8_t *slots, size_t n) {
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        const struct codec *codec = side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
        const void *from = page_at(cache, candidate(cache, page), (enum codec_side)side, cache->layer, head);
        if (codec->prefetch_tokens)
            codec->prefetch_tokens(method_shape(&cache->method, (enum codec_side)side, cache->shape.head_dim, 1),
                                   (enum codec_side)side, from, slots, n);
    }
}

static const void *pack(const struct cache *cache, const struct segment *segment, uint32_t head, enum codec_side side) {
    const struct codec *codec = side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
    struct codec_shape shape = side_shape(cache, side, cache->layer, head, 1);
    struct workspace workspace = workspace_of(cache);
    const uint32_t *place = segment->places, *end = place + segment->end, *near = place;
    const uint32_t *last =
        workspace.chosen + head * cache->selection.most + workspace.count[head]; /* of the head's tiles, which lie in a row */
    uint8_t slots[PAGE_TOKENS], *page = cache->packed + (size_t)omp_get_thread_num() * (cache->key_bytes + cache->value_bytes);
    size_t n, at = 0;
    bool keys = side == CODEC_KEYS && codec->prefetch_tokens;
    if (side == CODEC_VALUES) page += cache->key_bytes;
    for (size_t ahead = 0; keys && ahead < FETCH_AHEAD && near < last; ahead++) near = same_page(near, last, slots, &n);
    while (place < end) {
        if (keys && near < last) {
            uint32_t coming = *near / PAGE_TOKENS;
            near = same_page(near, last, slots, &n);
            fetch(cache, head, coming, slots, n);
        }
        const struct set *set = candidate(cache, *place / PAGE_TOKENS);
        place = same_page(place, end, slots, &n);
        codec->gather_tokens(shape, side, page_at(cache, set, side, cache->layer, head), slots, n, page, at);
        at += n;
    }
    return page;
}

/* Keys whose scales are their block's: all of the block is scored. */
static void score_in_place(const struct cache *cache, const struct segment *segment, uint32_t head, const float *q,
                           const float *tables, size_t rows, float *workspace, float *logits) {
    struct codec_shape shape = side_shape(cache, CODEC_KEYS, cache->layer, head, rows);
    const uint32_t *place = segment->places, *end = place + segment->end;
    uint8_t slots[PAGE_TOKENS];
    for (size_t i = 0, n; place < end; i += n) {
        const struct set *set = candidate(cache, *place / PAGE_TOKENS);
        place = same_page(place, end, slots, &n);
        cache->method.key.codec->score(shape, q, tables, page_at(cache, set, CODEC_KEYS, cache->layer, head), workspace);
        for (size_t m = 0; m < rows; m++)
            for (size_t j = 0; j < n; j++) logits[m * PAGE_TOKENS + i + j] = workspace[m * PAGE_TOKENS + slots[j]];
    }
}

static void rotate_key(const struct cache *cache, const struct segment *segment, size_t i, float *row) {
    segment_rotate_key(cache, cache->selection.listed[segment->places[i] / PAGE_TOKENS], segment->places[i] % PAGE_TOKENS, row);
}

static void dot_row(const float *q, const float *row, size_t rows, size_t hd, size_t i, float *logits) {
    for (size_t m = 0; m < rows; m++) logits[m * PAGE_TOKENS + i] = vector_ops()->dot(q + m * hd, row, hd);
}

/* The tile's anchors of one side, one after another: the next from *i on, and its row. */
static bool next_anchor(const struct cache *cache, const struct segment *segment, const struct anchor_range *anchors, size_t *i,
                        size_t *at, float *row) {
    for (; *i < segment->end; ++*i) {
        uint64_t token = packed_token(cache, segment, *i);
        while (*at < anchors->to && anchors->tokens[*at] < token) ++*at;
        if (*at == anchors->to || anchors->tokens[*at] != token) continue;
        vector_ops()->half_to_float(anchors->rows + *at * cache->shape.head_dim, row, cache->shape.head_dim);
        return true;
    }
    return false;
}

void packed_score(const struct cache *cache, const struct segment *segment, uint32_t head, const float *q, const float *tables,
                  size_t rows, float *workspace, float *logits) {
    size_t hd = cache->shape.head_dim;
    const struct codec *codec = cache->method.key.codec;
    struct codec_shape shape = side_shape(cache, CODEC_KEYS, cache->layer, head, rows);
    if (!segment->end) return;
    if (codec->gathers_values_only) {
        score_in_place(cache, segment, head, q, tables, rows, workspace, logits);
    } else if (cache->rotated) {
        codec->score(shape, q, tables, pack(cache, segment, head, CODEC_KEYS), logits);
    } else {
        codec->decode(shape, CODEC_KEYS, pack(cache, segment, head, CODEC_KEYS), workspace);
        for (size_t i = 0; i < segment->end; i++) {
            rotate_key(cache, segment, i, workspace + i * hd);
            dot_row(q, workspace + i * hd, rows, hd, i, logits);
        }
    }
    struct anchor_range anchors = anchors_between(cache, CODEC_KEYS, head, packed_token(cache, segment, 0),
                                                  packed_token(cache, segment, segment->end - 1) + 1);
    float row[CODEC_HEAD_DIM_MAX];
    for (size_t i = 0, at = anchors.from; next_anchor(cache, segment, &anchors, &i, &at, row); i++) {
        if (!cache->rotated) rotate_key(cache, segment, i, row);
        dot_row(q, row, rows, hd, i, logits);
    }
}

void packed_accumulate(const struct cache *cache, const struct segment *segment, uint32_t head, float *weights, size_t rows,
                       float *code_sums, float *acc) {
    const struct codec *codec = cache->method.value.codec;
    struct codec_shape shape = side_shape(cache, CODEC_VALUES, cache->layer, head, rows);
    float row[CODEC_HEAD_DIM_MAX];
    if (!segment->end) return;
    struct anchor_range anchors = anchors_between(cache, CODEC_VALUES, head, packed_token(cache, segment, 0),
                                                  packed_token(cache, segment, segment->end - 1) + 1);
    for (size_t i = 0, at = anchors.from; next_anchor(cache, segment, &anchors, &i, &at, row); i++)
        segment_accumulate_row(row, i, rows, cache->shape.head_dim, weights, acc);
    const void *page = pack(cache, segment, head, CODEC_VALUES);
    if (code_sums)
        codec->accumulate_by_code(shape, weights, page, code_sums);
    else
        (segment->int8_weights ? codec->accumulate_int8 : codec->accumulate)(shape, weights, page, acc);
}
