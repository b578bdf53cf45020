/* The read lists of a cache (read_list.h) are the one that all layers and KV heads share, which follows from the plan of a step,
 * and lists of the KV heads' own, which a policy or index that chooses tokens writes.
 *
 * Lists are made anew from what a cache holds, a fork's as well; their memory is a step's scratch, which reports do not count. One
 * thread at a time calls these functions, but lists of different KV heads may be written at once. */
#ifndef TERSE_KV_READ_LISTS_H
#define TERSE_KV_READ_LISTS_H

#include "kv/block_table.h"
#include "kv/plan.h"
#include "kv/read_list.h"

/* A read_lists begins as zeros. */
struct read_lists {
    struct read_list shared;
    struct read_page *pages; /* [capacity] of `shared`: entry i is page set i of the block table */
    size_t capacity;
    size_t good;     /* the first so many are as they should be where tokens are read from `from` on */
    uint64_t from;   /* no older token of a page or of the window is read */
    uint32_t n_kept; /* of `shared` */
    /* Entries [0, stale_low) and from stale_high on have changed since read_lists_copied was called last; a copy of `pages` lacks
     * these changes. */
    size_t stale_low, stale_high;

    struct read_list *own;        /* [own_heads], of the layer in progress; behind them in one piece of memory: */
    struct read_page *own_pages;  /* [own_heads][own_capacity] */
    struct read_exact *own_exact; /* [own_heads][own_capacity] */
    size_t own_heads, own_capacity;
    bool by_head; /* KV heads read `own` in this step, not `shared` */
};

void read_lists_free(struct read_lists *lists);
/* Returns the bytes of their memory. */
size_t read_lists_bytes(const struct read_lists *lists);

/* Makes the shared list of the step that the plan says, of a cache that has so many anchors; KV heads have no lists of their own.
 * The block table holds the page sets that the step seals. A failure is TERSE_E_MEMORY. */
enum terse_status read_lists_begin(struct read_lists *lists, const struct block_table *table, const struct plan *plan,
                                   const struct method *method, size_t anchors, struct terse_error *error);
/* Sets whether the step's new tokens are read from pages and exact rows, in which they lie by then (CACHE_STEP_PAPER), or by other
 * means, as they are after read_lists_begin. */
void read_lists_set_sealed(struct read_lists *lists, const struct block_table *table, const struct plan *plan,
                           const struct method *method, bool sealed);
/* Tells the lists, between steps, that page sets from `first` on are others, or hold other tokens. */
void read_lists_changed(struct read_lists *lists, size_t first);
/* Tells the lists that all entries of the shared list were copied to where kernels read them. */
void read_lists_copied(struct read_lists *lists);
/* Tells the lists that there is no such copy any more. */
void read_lists_forget_copy(struct read_lists *lists);

/* Gives so many KV heads lists of their own in the step that has begun, each equal to the shared one and with room for all pages of
 * the block table. A failure is TERSE_E_MEMORY. */
enum terse_status read_lists_reserve_own(struct read_lists *lists, size_t heads, struct terse_error *error);
/* Makes a KV head's own list equal to the shared one again and returns it, to be changed: own_pages_of and own_exact_of are room
 * for pages and tokens in place of theirs. */
struct read_list *read_lists_own(const struct read_lists *lists, uint32_t head);

static inline const struct read_list *read_list_of(const struct read_lists *lists, uint32_t head) {
    return lists->by_head ? &lists->own[head] : &lists->shared;
}
static inline struct read_page *own_pages_of(const struct read_lists *lists, uint32_t head) {
    return lists->own_pages + head * lists->own_capacity;
}
static inline struct read_exact *own_exact_of(const struct read_lists *lists, uint32_t head) {
    return lists->own_exact + head * lists->own_capacity;
}

/* Writes exact[n_pages] of a list: `anchors` are the tokens[n], ascending, of which a side has exact rows, by side. */
void read_exact_set(const struct read_list *list, const struct block_table *table, const uint32_t *const anchors[2], size_t n,
                    struct read_exact *exact);

#endif
