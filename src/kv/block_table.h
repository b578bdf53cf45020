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
    uint8_t *memory;
    uint32_t sets;           /* n */
    uint32_t held;           /* page sets that at least one cache holds */
    uint32_t *holders;       /* [n] caches that hold them */
    struct state_file *file; /* of whose mapping `memory` is a part, never to be written; NULL: it is memory of its own */
};

/* A pool has the chunks of a cache and of those that were forked from it, directly or not: their pages have the same sizes and
 * layouts. */
struct page_pool {
    const struct page_memory *memory;
    struct kv_budget *budget; /* of which the chunks take; or NULL */
    size_t page_set_bytes;
    size_t caches;
    struct page_chunk *chunks;
};

/* A page_set is one of sealed tokens, as one cache knows it. Pages of a set that several caches hold are not written. */
struct page_set {
    uint8_t *chunk; /* owner->memory */
    struct page_chunk *owner;
    uint32_t chunk_sets, index; /* page sets of the chunk, and which of them this is */
    uint64_t first;             /* token of slot 0 */
    uint32_t count;             /* slots that hold tokens, the first ones */
    bool generated;             /* tokens that were generated, not a prompt's */
};

/* A block_table lists the page sets of one cache. */
struct block_table {
    struct page_pool *pool;
    struct page_set *sets;        /* [n]: [0, n_sealed) in order of their tokens, the rest free and held by this cache alone */
    size_t n, n_sealed, capacity; /* capacity: of sets[] */
};

/* Makes an empty table, with a pool of its own. */
enum terse_status block_table_new(struct block_table *table, const struct page_memory *memory, size_t page_set_bytes,
                                  struct terse_error *error);
void block_table_free(struct block_table *table);

/* Makes the table hold `n` page sets in all, sealed or free. A failure leaves it as it was. Page sets that no cache holds any more
 * are taken before new ones are made. */
enum terse_status block_table_reserve(struct block_table *table, size_t n, struct terse_error *error);
/* Sets which tokens the free page sets hold that the plan's step seals. The last prompt ended before token `prompt_end`. */
void block_table_assign(struct block_table *table, const struct plan *plan, uint64_t prompt_end);
/* Returns how many sealed page sets, the first ones, hold no token from `first` on. */
size_t block_table_evicted(const struct block_table *table, uint64_t first);
/* Returns the first token that is in a page, sealed or of the window; 0 where all after the exact rows are. */
uint64_t block_table_first(const struct block_table *table, const struct extent *extent);
/* Drops the sealed page sets [first, first + n) from the sequence: they become free ones behind the others, or, where another cache
 * holds them too, the table lets them go. */
void block_table_drop(struct block_table *table, size_t first, size_t n);
/* Makes a table without page sets hold the sealed ones of `from` and belong to its pool. */
enum terse_status block_table_share(struct block_table *table, const struct block_table *from, struct terse_error *error);
/* Makes a table without page sets hold `n` whose pages lie in a file, `memory` being laid out as a chunk is. Their pages stay
 * there. */
enum terse_status block_table_map(struct block_table *table, struct state_file *file, const uint8_t *memory, size_t n,
                                  struct terse_error *error);
/* Counts the sealed page sets that other tables hold too. */
size_t block_table_shared(const struct block_table *table);

/* Computes parts_common_prefix (parts.h) of a cache in one part: `fitted` tokens decide what it has learned of its sequence. */
uint64_t block_table_common_prefix(const struct block_table *table, const struct method *method, const struct extent *extent,
                                   uint64_t fitted, uint64_t n, uint64_t prompt);

/* Returns the page of one side, layer and head. */
static inline uint8_t *page_set_page(const struct page_set *set, const struct page_address *place, enum codec_side side) {
    uint8_t *pages = set->chunk + set->chunk_sets * (place->offset + (side == CODEC_KEYS ? 0 : place->bytes[CODEC_KEYS]));
    return pages + set->index * place->bytes[side];
}

#endif
