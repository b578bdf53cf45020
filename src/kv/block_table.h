/* The block table of a paged KV cache says which pages a sequence holds, and where they lie in memory. Backends share it and differ
 * in where that memory is.
 *
 * A page is 64 consecutive tokens of one layer, KV head and side (keys or values), in the layout of a codec. A page set (elsewhere:
 * a block) is the pages of the same 64 tokens for all layers, KV heads and sides, with those of an index where the method has one
 * beside the keys.
 *
 * A prompt takes one chunk of as many page sets as it seals; generation adds chunks of at most a 64th of what there is. Caches that
 * were forked from one another share sealed page sets, which do not change, and count who holds them; one thread at a time works on
 * all caches of a pool. */
#ifndef TERSE_KV_BLOCK_TABLE_H
#define TERSE_KV_BLOCK_TABLE_H

#include "kv/budget.h"
#include "kv/plan.h"
#include "kv/shape.h"
#include "kv/state_file.h"
#include "method/method.h"

/* A page_address says where the sealed pages of a layer and KV head lie in a chunk, and how large a page is, which may differ from
 * head to head. */
struct page_address {
    size_t bytes[2]; /* of a page of keys, of values */
    size_t offset;   /* bytes of the pages of all layers and heads before it, per page set, those of an index included */
};

/* Returns the bytes of a page of the method's index; 0 where it has none, or pages of keys begin with the index. */
size_t index_page_bytes_of(const struct method *method, uint32_t head_dim);

/* Return the bytes of what a side's codec learns of a sequence for each layer and KV head, and of what both sides' codecs and an index
 * that stands beside them learn. */
size_t learned_side_bytes(const struct method *method, enum codec_side side, uint32_t head_dim);
size_t learned_head_bytes(const struct method *method, uint32_t head_dim);

/* Returns the sizes of the pages of a layer and KV head, without the offset: every size of a page in a cache comes from here. */
struct page_address page_address_of(const struct cache_shape *shape, const struct method *method, uint32_t layer, uint32_t head);
/* Writes places[layers][Hk], with index pages of so many bytes; returns the bytes of all pages of a page set. */
size_t page_addresses_set(const struct cache_shape *shape, const struct method *method, size_t index_page_bytes,
                          struct page_address *places);
/* Returns the bytes of all pages of a page set, with index pages of so many bytes, whether or not bits are shared over the model
 * already. */
uint64_t page_set_bytes_of(const struct cache_shape *shape, const struct method *method, size_t index_page_bytes);

/* A page_memory provides memory for chunks: `take` gives count * size bytes of the budget (or NULL: no limit), or NULL with *error
 * of TERSE_E_MEMORY. */
struct page_memory {
    void *(*take)(struct kv_budget *budget, size_t count, size_t size, const char *what, struct terse_error *error);
    void (*give)(struct kv_budget *budget, void *memory, size_t bytes);
};
extern const struct page_memory page_memory_host;

/* A chunk is memory of n page sets,
 *
 *     [layers][Hk]{key pages [n], value pages [n], index pages [n]}
 *
 * so that pages which are read one after another lie one after another (the kernels prefetch on that). Caches that were forked from
 * one another hold the same page sets; a chunk is released when no cache holds any of its own. */
struct page_chunk {
    struct page_chunk *next; /* of the pool's */
    uint8_t *memory;         /* of `stride` page sets, of which the chunk has `sets` from number `first` on */
    uint32_t stride, first;  /* they are n and 0, unless it shares a file's memory with other chunks */
    uint32_t sets;           /* n */
    uint32_t held;           /* page sets that at least one cache holds */
    uint32_t rate;           /* of its pages (kv/rates.h) */
    uint32_t *holders;       /* [n] caches that hold them */
    struct state_file *file; /* of whose mapping `memory` is a part, never to be written; NULL: it is memory of its own */
};

/* Chunks whose pages may be lowered have so few page sets: they are lowered together. */
#define LOWERED_SETS 4

/* A pool has the chunks of a cache and of those that were forked from it, directly or not: their pages have the same sizes and
 * layouts, at each of `rates` rates. */
struct page_pool {
    const struct page_memory *memory;
    struct kv_budget *budget; /* of which the chunks take; or NULL */
    size_t rates, page_set_bytes[METHOD_RATES];
    size_t caches;
    struct page_chunk *chunks;
    _Atomic int users; /* threads that save caches of the pool; -1: its pages are being lowered */
};

/* A page_set is one of sealed tokens, as one cache knows it. Pages of a set that several caches hold are not written. */
struct page_set {
    uint8_t *chunk; /* owner->memory; NULL: the set is another rank's (kv/deal.h), and this one knows its tokens alone */
    struct page_chunk *owner;
    uint32_t chunk_sets, index; /* owner->stride, and which of these page sets this is */
    uint64_t first;             /* token of slot 0 */
    uint32_t count;             /* slots that hold tokens, the first ones */
    bool generated;             /* tokens that were generated, not a prompt's */
    uint8_t rate;               /* owner->rate */
};

/* A block_table lists the page sets of one cache. */
struct block_table {
    struct page_pool *pool;
    struct page_set *sets;        /* [n]: [0, n_sealed) in order of their tokens, the rest free and held by this cache alone */
    size_t n, n_sealed, capacity; /* capacity: of sets[] */
    /* Page sets are made at this rate, but the first `lower` that the step in progress seals at the next lower one (kv/lower.h). */
    uint32_t rate;
    size_t lower;
};

/* Makes an empty table, with a pool of its own. page_set_bytes[rates] are those of all pages of a page set, at each rate. */
enum terse_status block_table_new(struct block_table *table, const struct page_memory *memory, const size_t *page_set_bytes,
                                  size_t rates, struct terse_error *error);
void block_table_free(struct block_table *table);

/* Makes the table hold `n` page sets in all, sealed or free. A failure leaves it as it was. Page sets that no cache holds any more
 * are taken before new ones are made. */
enum terse_status block_table_reserve(struct block_table *table, size_t n, struct terse_error *error);
/* Returns whether the pages lie here, and not with another rank. */
static inline bool page_set_is_here(const struct page_set *set) { return set->chunk != NULL; }
/* Makes the free page sets of a table whose pages are dealt to ranks those of the next n pages, of which the first one begins with
 * token `first`: this rank's have memory. Those that were encoded ahead stay in their places. A failure leaves the sealed ones as they
 * were. */
enum terse_status block_table_deal(struct block_table *table, const struct cache_shape *shape, uint64_t first, size_t n,
                                   struct terse_error *error);
/* Returns how many page sets lie here. */
size_t block_table_here(const struct block_table *table);
/* Lets go of free page sets until the table holds `n` in all. */
void block_table_trim(struct block_table *table, size_t n);
/* Sets which tokens the free page sets hold that the plan's step seals. The last prompt ended before token `prompt_end`. */
void block_table_assign(struct block_table *table, const struct plan *plan, uint64_t prompt_end);
/* Returns how many sealed page sets, the first ones, hold no token from `first` on. */
size_t block_table_evicted(const struct block_table *table, uint64_t first);
/* Returns whether token n is the first one behind a sealed page set. */
bool block_table_ends_at(const struct block_table *table, uint64_t n);
/* Returns the first token that is in a page, sealed or of the window; 0 where all after the exact rows are. */
uint64_t block_table_first(const struct block_table *table, const struct extent *extent);
/* Drops the sealed page sets [first, first + n) from the sequence: they become free ones behind the others, or, where another cache
 * holds them too, the table lets them go. */
void block_table_drop(struct block_table *table, size_t first, size_t n);
/* Makes a table without page sets hold the sealed ones of `from` and belong to its pool. */
enum terse_status block_table_share(struct block_table *table, const struct block_table *from, struct terse_error *error);
/* Makes a table without page sets hold `n` whose pages lie in a file, of rates[n]: `memory` is laid out as a chunk of the page sets
 * of rate 0, then one of those of rate 1, and so on. Their pages stay there. Those whose elsewhere[i] is true are another rank's; NULL: none is. */
enum terse_status block_table_map(struct block_table *table, struct state_file *file, const uint8_t *memory, const uint8_t *rates,
                                  const bool *elsewhere, size_t n, struct terse_error *error);
/* Returns the bytes of the table's page sets, and of the sealed ones that other tables hold too. */
uint64_t block_table_bytes(const struct block_table *table);
uint64_t block_table_shared_bytes(const struct block_table *table);

/* ---- Lowering, for kv/lower.c: a chunk is replaced by one of the next lower rate */

/* Makes such a chunk for `chunk`, which is not the pool's yet and takes nothing of the budget; NULL: the system refused memory. */
struct page_chunk *block_chunk_lower(const struct page_pool *pool, const struct page_chunk *chunk);
/* Returns the chunk's i-th page set. */
struct page_set block_chunk_set(struct page_chunk *chunk, uint32_t i);
/* Puts `to` in the place of `from`, and frees that. Tables that hold its page sets are told by block_table_replace, before. */
void block_chunk_replace(struct page_pool *pool, struct page_chunk *from, struct page_chunk *to);
/* Makes the table's page sets of `from` those of `to`; returns the number of the first, or table->n. */
size_t block_table_replace(struct block_table *table, const struct page_chunk *from, struct page_chunk *to);
/* Frees a chunk that has taken no place. */
void block_chunk_drop(const struct page_pool *pool, struct page_chunk *chunk);
/* Keep pages from being lowered while another thread reads them: `hold` waits until none is. */
void block_pool_hold(struct page_pool *pool);
void block_pool_release(struct page_pool *pool);
/* Returns whether pages may be lowered until block_pool_end_lowering. */
bool block_pool_begin_lowering(struct page_pool *pool);
void block_pool_end_lowering(struct page_pool *pool);
bool block_pool_is_held(const struct page_pool *pool);

/* Computes parts_common_prefix (parts.h) of a cache in one part: `fitted` tokens decide what it has learned of its sequence. */
uint64_t block_table_common_prefix(const struct block_table *table, const struct method *method, const struct extent *extent,
                                   uint64_t fitted, uint64_t n, uint64_t prompt);

/* Returns the page of one side, layer and head. */
static inline uint8_t *page_set_page(const struct page_set *set, const struct page_address *place, enum codec_side side) {
    uint8_t *pages = set->chunk + set->chunk_sets * (place->offset + (side == CODEC_KEYS ? 0 : place->bytes[CODEC_KEYS]));
    return pages + set->index * place->bytes[side];
}

#endif
