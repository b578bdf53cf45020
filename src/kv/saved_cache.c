/* Writes and reads the sections of a cache in a saved state (docs/state-format.md), the same bytes on all backends. It checks every
 * number before it uses it as an address or a count. */
#include "kv/cache.h"

#include "base/memory.h"
#include "base/size.h"
#include "kv/deal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* These structs lie in the file as they are, little-endian. */
struct saved_cache {
    uint64_t exact, first, window_first, length, dropped; /* struct extent */
    uint64_t prompt_end;
    uint64_t anchors; /* per layer, KV head and side */
    uint64_t fitted;  /* 1: codecs and indexes were fitted to the sequence; plus 2 enum fitted_saved */
};

struct saved_page_set {
    uint64_t first;
    uint32_t count;
    uint16_t generated;
    uint16_t rate; /* thousandths of bits per value to which its pages were lowered; 0: they are at the method's own rate */
};

_Static_assert(sizeof(struct saved_cache) == 64 && sizeof(struct saved_page_set) == 16, "as docs/state-format.md has it");

/* ---- Pieces */

static const enum state_section sections[CACHE_PIECES] = {[CACHE_EXACT] = STATE_EXACT,
                                                          [CACHE_EXACT_LOGITS] = STATE_EXACT_LOGITS,
                                                          [CACHE_LEARNED] = STATE_FITTED, /* before what fitted_save writes */
                                                          [CACHE_ANCHORS] = STATE_ANCHORS,
                                                          [CACHE_WINDOW] = STATE_WINDOW};

uint64_t cache_exact_bytes(const struct cache_shape *shape, const struct method *method) {
    return (uint64_t)cache_heads_of(shape) * cache_sides_of(shape) * method->parameters.exact * shape->head_dim * sizeof(uint16_t);
}

uint64_t cache_exact_logit_bytes(const struct cache_shape *shape, const struct method *method) {
    return method->policy->pick_victim ? (uint64_t)cache_heads_of(shape) * method->parameters.budget * sizeof(float) : 0;
}

/* Returns the bytes of an anchor of one layer, head and side. */
static size_t anchor_bytes(const struct cache_shape *shape) { return sizeof(uint32_t) + shape->head_dim * sizeof(uint16_t); }

/* A piece has n parts of so many bytes; their product may be more than there can be where a file's counts are damaged. */
struct piece_size {
    uint64_t n, bytes;
};

static struct piece_size size_of(const struct cache *cache, enum cache_piece piece) {
    const struct cache_base *base = cache_base_of(cache);
    const struct cache_shape *shape = &base->shape;
    const uint64_t sides = cache_sides_of(shape) * (uint64_t)cache_heads_of(shape);
    switch (piece) {
    case CACHE_EXACT: return (struct piece_size){1, cache_exact_bytes(shape, &base->method)};
    case CACHE_EXACT_LOGITS: return (struct piece_size){1, cache_exact_logit_bytes(shape, &base->method)};
    case CACHE_LEARNED: return (struct piece_size){1, base->learned_bytes};
    case CACHE_ANCHORS: return (struct piece_size){base->n_anchors, sides * anchor_bytes(shape)};
    case CACHE_WINDOW: return (struct piece_size){cache_window_pages(cache), sides * PAGE_BYTES_F16(shape->head_dim)};
    case CACHE_PIECES: break;
    }
    return (struct piece_size){0, 0};
}

uint64_t cache_piece_bytes(const struct cache *cache, enum cache_piece piece) {
    const struct piece_size size = size_of(cache, piece);
    return size.n * size.bytes;
}

/* ---- Writing */

static void put(void *user, const void *data, size_t bytes) { state_writer_put(user, data, bytes); }

static void save_pieces(const struct cache *cache, struct state_writer *writer) {
    const struct cache_base *base = cache_base_of(cache);
    const struct cache_sink sink = {put, writer};
    for (int piece = 0; piece < CACHE_PIECES; piece++) {
        state_writer_begin(writer, sections[piece]);
        int failed = base->storage->export_piece(cache, (enum cache_piece)piece, &sink);
        if (failed) state_writer_fail(writer, failed);
        if (piece == CACHE_LEARNED) fitted_save(base, writer);
    }
}

/* A chunk_copy is the host's copy of a chunk that the cache's pages lie in. */
struct chunk_copy {
    const struct page_chunk *chunk;
    uint8_t *memory;
};

/* Makes copies[n_sealed + 1] of zeros those of the cache's chunks; returns an errno, or 0. */
static int copy_chunks(const struct cache *cache, struct chunk_copy *copies) {
    const struct cache_base *base = cache_base_of(cache);
    int failed = 0;
    for (size_t i = 0, n = 0; i < base->pages.n_sealed && !failed; i++) {
        if (!page_set_is_here(&base->pages.sets[i])) continue;
        const struct page_chunk *chunk = base->pages.sets[i].owner;
        const size_t bytes = chunk->sets * base->pages.pool->page_set_bytes[chunk->rate];
        size_t at = 0;
        while (at < n && copies[at].chunk != chunk) at++;
        if (at < n) continue;
        copies[n++] = (struct chunk_copy){chunk, malloc(bytes)};
        failed = copies[at].memory ? base->storage->export_pages(cache, copies[at].memory, chunk->memory, bytes) : ENOMEM;
    }
    return failed;
}

static void free_copies(struct chunk_copy *copies) {
    for (size_t i = 0; copies && copies[i].chunk; i++) free(copies[i].memory);
    free(copies);
}

/* Returns where the host finds a page set's chunk: in its own memory, if there are no copies. */
static const uint8_t *chunk_of(const struct page_set *set, const struct chunk_copy *copies) {
    if (!copies) return set->chunk;
    while (copies->chunk != set->owner) copies++;
    return copies->memory;
}

/* Fills up what layouts leave of page sets. */
static void put_zeros(struct state_writer *writer, size_t bytes) {
    static const uint8_t zeros[4096];
    for (size_t n; bytes; bytes -= n) {
        n = size_min(bytes, sizeof zeros);
        state_writer_put(writer, zeros, n);
    }
}

/* Writes the pages of a rate as one chunk of all its sealed page sets. */
static void put_pages_of(const struct cache_base *base, uint32_t rate, const struct chunk_copy *copies,
                         struct state_writer *writer) {
    size_t end = 0, sets = 0; /* `end` is that of a page set's pages */
    for (size_t i = 0; i < base->pages.n_sealed; i++) sets += base->pages.sets[i].rate == rate;
    for (size_t head = 0; head < cache_heads_of(&base->shape); head++) {
        const struct page_address *place = &base->places[rate * cache_heads_of(&base->shape) + head];
        const size_t bytes[] = {place->bytes[CODEC_KEYS], place->bytes[CODEC_VALUES], base->index_page_bytes};
        size_t before = place->offset; /* bytes of a page set's pages before this one */
        for (size_t kind = 0; kind < sizeof bytes / sizeof bytes[0]; before += bytes[kind++])
            for (size_t i = 0; bytes[kind] && i < base->pages.n_sealed; i++) {
                const struct page_set *set = &base->pages.sets[i];
                if (set->rate != rate) continue;
                state_writer_put(writer, chunk_of(set, copies) + set->chunk_sets * before + set->index * bytes[kind], bytes[kind]);
            }
        end = before;
    }
    put_zeros(writer, (base->pages.pool->page_set_bytes[rate] - end) * sets);
}

/* ---- Pages that are dealt to ranks */

#define GATHERED_SETS 32 /* page sets of each rank, about, of which pages of a KV head and kind are gathered together */

/* A gathering says where ranks have pages. Page sets are gathered in runs of `run`, the last one shorter. */
struct gathering {
    const struct cache_base *base;
    size_t run, most; /* most: of a run's page sets that any rank has */
    uint32_t *owners,
        *place;         /* [n_sealed] of each page set the rank that has it, and its place among those of the rank in its run */
    uint8_t *own, *all; /* [most], [ranks][most] pages */
    struct chunk_copy *copies; /* of this rank's; NULL: pages lie in the host's memory */
};

static void count_places(struct gathering *g, uint32_t *counts) {
    const struct cache_base *base = g->base;
    for (size_t i = 0; i < base->pages.n_sealed; i++) {
        if (i % g->run == 0) memset(counts, 0, base->shape.ranks->ranks * sizeof *counts);
        g->owners[i] = deal_owner(&base->shape, base->pages.sets[i].first);
        g->place[i] = counts[g->owners[i]]++;
        g->most = size_max(g->most, counts[g->owners[i]]);
    }
}

static size_t largest_page(const struct cache_base *base) {
    size_t largest = base->index_page_bytes;
    for (size_t head = 0; head < cache_heads_of(&base->shape); head++)
        for (int side = 0; side < 2; side++) largest = size_max(largest, base->places[head].bytes[side]);
    return largest;
}

static void gathering_free(struct gathering *g) {
    memory_free(g->owners);
    memory_free(g->own);
    free_copies(g->copies);
}

static enum terse_status copy_own(struct gathering *g, struct terse_error *error) {
    const size_t n = g->base->pages.n_sealed + 1;
    if (!g->base->storage->export_pages) return TERSE_OK;
    g->copies = calloc(n, sizeof *g->copies);
    if (!g->copies) return status_no_memory(error, n * sizeof *g->copies, "a copy of pages");
    const int failed = copy_chunks((const struct cache *)(const void *)g->base, g->copies);
    return failed ? status_fail(error, failed == ENOMEM ? TERSE_E_MEMORY : TERSE_E_IO, "copying pages: %s", strerror(failed))
                  : TERSE_OK;
}

static enum terse_status gathering_begin(struct gathering *g, const struct cache_base *base, struct terse_error *error) {
    const size_t n = base->pages.n_sealed, ranks = base->shape.ranks->ranks;
    *g = (struct gathering){.base = base, .run = ranks * GATHERED_SETS};
    g->owners = memory_array(2 * n + ranks, sizeof *g->owners);
    if (!g->owners) return status_no_memory(error, (2 * n + ranks) * sizeof *g->owners, "pages of the other ranks");
    g->place = g->owners + n;
    count_places(g, g->place + n);
    const size_t bytes = g->most * largest_page(base);
    g->own = memory_zeros(1 + ranks, bytes);
    if (!g->own) return status_no_memory(error, (1 + ranks) * bytes, "pages of the other ranks");
    g->all = g->own + bytes;
    return copy_own(g, error);
}

/* Gathers pages of `bytes` each, which lie behind `before` bytes of a page set's, of the run that begins with page set `first`, and writes them,
 * unless writer is NULL. */
static enum terse_status gather_run(const struct gathering *g, size_t first, size_t before, size_t bytes,
                                    struct state_writer *writer, struct terse_error *error) {
    const struct page_set *sets = g->base->pages.sets;
    const size_t end = size_min(first + g->run, g->base->pages.n_sealed);
    for (size_t i = first; i < end; i++)
        if (page_set_is_here(&sets[i]))
            memcpy(g->own + g->place[i] * bytes,
                   chunk_of(&sets[i], g->copies) + sets[i].chunk_sets * before + sets[i].index * bytes, bytes);
    enum terse_status status = collective_gather(g->base->shape.ranks, g->own, g->most * bytes, g->all, error);
    for (size_t i = first; i < end && !status && writer; i++)
        state_writer_put(writer, g->all + (g->owners[i] * g->most + g->place[i]) * bytes, bytes);
    return status;
}

/* Puts the pages of all ranks, at the one rate that dealt pages have, in the order of put_pages_of. Where a rank is refused the memory, none
 * gives pages, and it fails on all. */
static enum terse_status gather_pages(const struct cache_base *base, struct state_writer *writer, struct terse_error *error) {
    struct gathering g;
    size_t end = 0;
    enum terse_status status = collective_agree(base->shape.ranks, gathering_begin(&g, base, error), error);
    for (size_t head = 0; head < cache_heads_of(&base->shape); head++) {
        const struct page_address *place = &base->places[head];
        const size_t bytes[] = {place->bytes[CODEC_KEYS], place->bytes[CODEC_VALUES], base->index_page_bytes};
        size_t before = place->offset;
        for (size_t kind = 0; kind < sizeof bytes / sizeof bytes[0]; before += bytes[kind++])
            for (size_t i = 0; bytes[kind] && i < base->pages.n_sealed && !status; i += g.run)
                status = gather_run(&g, i, before, bytes[kind], writer, error);
        end = before;
    }
    gathering_free(&g);
    if (writer && !status) put_zeros(writer, (base->pages.pool->page_set_bytes[0] - end) * base->pages.n_sealed);
    return status;
}

void cache_save_share(const struct cache *cache) {
    const struct cache_base *base = cache_base_of(cache);
    struct terse_error error; /* goes to rank 0, where they agree */
    if (base->shape.ranks) (void)gather_pages(base, NULL, &error);
}

/* ---- Pages of one process */

static void put_pages(const struct cache_base *base, const struct chunk_copy *copies, struct state_writer *writer) {
    for (uint32_t rate = 0; rate < rates_of(base); rate++) put_pages_of(base, rate, copies, writer);
}

static void save_pages(const struct cache *cache, struct state_writer *writer) {
    const struct cache_base *base = cache_base_of(cache);
    state_writer_begin(writer, STATE_PAGES);
    if (base->shape.ranks) {
        const enum terse_status status = gather_pages(base, writer, NULL);
        if (status) state_writer_fail(writer, status == TERSE_E_MEMORY ? ENOMEM : EIO);
        return;
    }
    if (!base->storage->export_pages) {
        put_pages(base, NULL, writer);
        return;
    }
    struct chunk_copy *copies = calloc(base->pages.n_sealed + 1, sizeof *copies);
    int failed = copies ? copy_chunks(cache, copies) : ENOMEM;
    if (failed)
        state_writer_fail(writer, failed);
    else
        put_pages(base, copies, writer);
    free_copies(copies);
}

static uint16_t saved_rate(const struct cache_base *base, uint32_t rate) {
    return rate ? (uint16_t)lround(1000 * base->rates.bits[rate]) : 0;
}

/* Returns the number of a saved rate; METHOD_RATES: the cache has no such rate. */
static uint32_t rate_of(const struct cache_base *base, uint16_t saved) {
    for (uint32_t rate = 0; rate < rates_of(base); rate++)
        if (saved_rate(base, rate) == saved) return rate;
    return METHOD_RATES;
}

static void save_sections(const struct cache *cache, struct state_writer *writer) {
    const struct cache_base *base = cache_base_of(cache);
    const struct extent *e = &base->extent;
    const struct saved_cache saved = {
        e->exact,   e->first,         e->window_first, e->length,
        e->dropped, base->prompt_end, base->n_anchors, base->fitted_ready + 2 * (uint64_t)fitted_saved(base)};
    state_writer_begin(writer, STATE_CACHE);
    state_writer_put(writer, &saved, sizeof saved);
    recurrent_save(base, writer);
    state_writer_begin(writer, STATE_PAGE_SETS);
    for (size_t i = 0; i < base->pages.n_sealed; i++) {
        const struct page_set *set = &base->pages.sets[i];
        state_writer_put(writer, &(struct saved_page_set){set->first, set->count, set->generated, saved_rate(base, set->rate)},
                         sizeof(struct saved_page_set));
    }
    save_pieces(cache, writer);
    save_pages(cache, writer);
}

void cache_save(const struct cache *cache, struct state_writer *writer) {
    struct page_pool *pool = cache_base_of(cache)->pages.pool;
    block_pool_hold(pool);
    save_sections(cache, writer);
    block_pool_release(pool);
}

/* ---- Reading */

/* Returns the section's bytes; NULL with TERSE_E_FORMAT unless there are as many as `size` and `behind` say. */
static const uint8_t *section_of(const struct state_file *file, enum state_section section, struct piece_size size, uint64_t behind,
                                 struct terse_error *error) {
    size_t there;
    const uint8_t *data = state_file_section(file, section, &there);
    if (there >= behind &&
        (size.bytes ? !((there - behind) % size.bytes) && (there - behind) / size.bytes == size.n : there == behind))
        return data;
    state_file_refuse(file, section, "it is of another size", error);
    return NULL;
}

/* Reads the extent, and refuses one that no steps lead to, so that plans made from it are sound. */
static enum terse_status load_extent(struct cache_base *base, const struct state_file *file, struct terse_error *error) {
    const struct policy *policy = base->method.policy;
    struct saved_cache saved;
    size_t bytes;
    const uint8_t *data = state_file_section(file, STATE_CACHE, &bytes);
    if (bytes < sizeof saved) return state_file_refuse(file, STATE_CACHE, "it is of another size", error);
    memcpy(&saved, data, sizeof saved);
    base->extent = (struct extent){saved.exact, saved.first, saved.window_first, saved.length, saved.dropped};
    const struct extent *e = &base->extent;
    struct policy_decision kept = policy->retain(&base->method.parameters, e->length);
    bool dropped = !e->dropped || policy->keep_selected_only;
    bool ordered = e->exact <= e->window_first && e->window_first <= e->length && e->dropped <= e->length;
    const uint64_t window = e->length - e->window_first;
    if (e->length > base->storage->most_tokens || e->exact != kept.exact || e->first != kept.first || !ordered || !dropped ||
        saved.prompt_end > e->length || saved.anchors > e->length || saved.fitted / 2 > FITTED_SUMS)
        return state_file_refuse(file, STATE_CACHE, "its counts of tokens contradict one another", error);
    if (window >= base->method.tail_tokens + (uint64_t)PAGE_TOKENS && !method_fits_transforms(&base->method))
        return state_file_refuse(file, STATE_WINDOW, "it holds more tokens than the method keeps there", error);
    if (saved.anchors && !policy->anchors) return state_file_refuse(file, STATE_ANCHORS, "it is of another size", error);
    base->prompt_end = saved.prompt_end;
    base->fitted_ready = saved.fitted & 1;
    base->n_anchors = (size_t)saved.anchors;
    enum terse_status status = recurrent_load(base, file, data + sizeof saved, bytes - sizeof saved, error);
    return status ? status : fitted_load(base, (enum fitted_saved)(saved.fitted / 2), file, error);
}

/* Returns whether pages follow one another up to the window; only where tokens of prompts were dropped may some be missing, as many
 * as were. */
static bool follow(const struct cache_base *base) {
    const struct extent *e = &base->extent;
    const struct policy *policy = base->method.policy;
    uint64_t missing = 0, wanted = policy->keep_selected_only ? e->dropped + base->n_anchors : 0, end = e->exact;
    for (size_t i = 0; i <= base->pages.n_sealed; i++) {
        const struct page_set *set = i < base->pages.n_sealed ? &base->pages.sets[i] : NULL;
        uint64_t first = set ? set->first : e->window_first;
        if (first < end || first > e->length) return false;
        if (i == 0 && policy->oldest_leave) end = first; /* what is older was evicted */
        missing += first - end;
        end = set ? first + set->count : end;
        if (i == 0 && policy->oldest_leave && first > e->first) return false;
    }
    return missing == wanted;
}

/* Finds the rates[n] of saved page sets, and returns the bytes of their pages; 0 with *status where there is no such rate. */
static uint64_t load_rates(const struct cache_base *base, const struct state_file *file, const uint8_t *sets, size_t n,
                           uint8_t *rates, enum terse_status *status, struct terse_error *error) {
    uint64_t bytes = 0;
    *status = TERSE_OK;
    for (size_t i = 0; i < n; i++) {
        struct saved_page_set saved;
        memcpy(&saved, sets + i * sizeof saved, sizeof saved);
        const uint32_t rate = rate_of(base, saved.rate);
        if (saved.rate > 1000 * base->method.key.rate) {
            *status = state_file_refuse(file, STATE_PAGE_SETS, "a page of so many bits", error);
            return 0;
        }
        if (rate == METHOD_RATES) {
            *status =
                status_fail(error, TERSE_E_ARGUMENT,
                            "%s: has pages of %g bits per value, to which this session lowers none: use the least rate that it "
                            "was saved with (--kv auto:min=terse-N with --kv-budget)",
                            state_file_name(file), saved.rate / 1000.0);
            return 0;
        }
        rates[i] = (uint8_t)rate;
        bytes += base->pages.pool->page_set_bytes[rate];
    }
    return bytes;
}

/* Says of saved page sets[n] which are another rank's; NULL: memory is refused. */
static bool *find_elsewhere(const struct cache_base *base, const uint8_t *sets, size_t n) {
    bool *elsewhere = memory_array(n + 1, sizeof *elsewhere);
    for (size_t i = 0; i < n && elsewhere; i++) {
        struct saved_page_set saved;
        memcpy(&saved, sets + i * sizeof saved, sizeof saved);
        elsewhere[i] = !deal_holds(&base->shape, saved.first);
    }
    return elsewhere;
}

/* Makes the table hold n page sets of pages[bytes]. */
static enum terse_status load_pages(struct cache *cache, struct state_file *file, const uint8_t *sets, size_t n,
                                    struct terse_error *error) {
    struct cache_base *base = cache_base(cache);
    size_t page_bytes;
    const uint8_t *pages = state_file_section(file, STATE_PAGES, &page_bytes);
    uint8_t *rates = memory_array(n + 1, sizeof *rates);
    bool *elsewhere = base->shape.ranks ? find_elsewhere(base, sets, n) : NULL;
    enum terse_status status;
    if (!rates || (base->shape.ranks && !elsewhere)) {
        memory_free(rates);
        return status_no_memory(error, n, "the rates of saved pages");
    }
    struct saved_page_set first;
    const uint64_t bytes = load_rates(base, file, sets, n, rates, &status, error);
    if (!status && bytes != page_bytes) status = state_file_refuse(file, STATE_PAGE_SETS, "there are not as many pages", error);
    if (!status && elsewhere && n && base->storage->import_pages) {
        memcpy(&first, sets, sizeof first);
        status = block_table_deal(&base->pages, &base->shape, first.first, n, error);
    }
    if (!status)
        status = base->storage->import_pages ? base->storage->import_pages(cache, pages, rates, n, error)
                                             : block_table_map(&base->pages, file, pages, rates, elsewhere, n, error);
    memory_free(elsewhere);
    memory_free(rates);
    return status;
}

static enum terse_status load_page_sets(struct cache *cache, struct state_file *file, struct terse_error *error) {
    struct cache_base *base = cache_base(cache);
    size_t bytes;
    const uint8_t *sets = state_file_section(file, STATE_PAGE_SETS, &bytes);
    const size_t n = bytes / sizeof(struct saved_page_set);
    if (bytes % sizeof(struct saved_page_set) || n > UINT32_MAX)
        return state_file_refuse(file, STATE_PAGE_SETS, "there are not as many pages", error);
    enum terse_status status = load_pages(cache, file, sets, n, error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        struct saved_page_set saved;
        memcpy(&saved, sets + i * sizeof saved, sizeof saved);
        if (!saved.count || saved.count > PAGE_TOKENS || saved.generated > 1 || saved.first > base->storage->most_tokens)
            return state_file_refuse(file, STATE_PAGE_SETS, "a page of so many tokens", error);
        base->pages.sets[i].first = saved.first;
        base->pages.sets[i].count = saved.count;
        base->pages.sets[i].generated = saved.generated;
    }
    for (size_t i = 0; i < n; i++)
        if (!i || base->pages.sets[i].rate < base->pages.rate) base->pages.rate = base->pages.sets[i].rate;
    if (!follow(base)) return state_file_refuse(file, STATE_PAGE_SETS, "pages do not follow one another", error);
    if (n && cache_fit_pending(base)) return state_file_refuse(file, STATE_CACHE, "pages without what was fitted to them", error);
    return TERSE_OK;
}

/* Returns whether anchors are such as steps leave: the tokens of each side ascend and were sealed; where they were ranked by
 * attention, keys and values have the same. */
static bool anchors_can_be(const struct cache_base *base, const uint8_t *data) {
    const size_t n = base->n_anchors, side = n * anchor_bytes(&base->shape);
    for (size_t i = 0; n && i < 2 * cache_heads_of(&base->shape); i++) {
        const uint32_t *tokens = (const uint32_t *)(const void *)(data + i * side);
        for (size_t a = 0; a < n; a++)
            if (tokens[a] < base->extent.exact || tokens[a] >= base->extent.window_first || (a && tokens[a] <= tokens[a - 1]))
                return false;
        if (base->method.policy->rank_by_attention && i % 2 && memcmp(tokens, data + (i - 1) * side, n * sizeof *tokens) != 0)
            return false;
    }
    return true;
}

static enum terse_status load_pieces(struct cache *cache, const struct state_file *file, struct terse_error *error) {
    const struct cache_base *base = cache_base_of(cache);
    const uint8_t *pieces[CACHE_PIECES];
    for (int piece = 0; piece < CACHE_PIECES; piece++) {
        const uint64_t behind = piece == CACHE_LEARNED ? fitted_saved_bytes(base) : 0;
        pieces[piece] = section_of(file, sections[piece], size_of(cache, (enum cache_piece)piece), behind, error);
        if (!pieces[piece]) return TERSE_E_FORMAT;
    }
    if (!anchors_can_be(base, pieces[CACHE_ANCHORS])) return state_file_refuse(file, STATE_ANCHORS, "tokens out of order", error);
    return base->storage->import_pieces(cache, pieces, error);
}

enum terse_status cache_load(struct cache *cache, struct state_file *file, struct terse_error *error) {
    struct cache_base *base = cache_base(cache);
    enum terse_status status = load_extent(base, file, error);
    if (!status && base->fitted.layouts) status = base->storage->layouts_changed(cache, error);
    if (!status) status = load_page_sets(cache, file, error);
    return status ? status : load_pieces(cache, file, error);
}
