/* A read list says what a step reads of the tokens that a sequence has stored, for each layer and KV head (elsewhere: page indices
 * or kv_indices, with a mask). It names pages of the block table, in order of their tokens, each with a mask of the 64 tokens that
 * are live, and the exact rows with their positions. Eviction, attention sinks, sliding windows, anchors, top-k and what a fork
 * shares are all said this way, and readers on every backend walk it and ask nothing else.
 *
 * All layers and KV heads read one list as a rule, which follows from the plan and costs what changes from step to step. A policy
 * or index that chooses tokens by KV head writes lists of the heads' own, for the layer in progress.
 *
 * A list leaves out how the new tokens see each other, and which stored tokens are too old for some of a step's queries only: where
 * layers slide it holds what the first of them sees. It is plain C for C and CUDA C++ alike: lists lie where kernels read them, and
 * are changed in place. */
#ifndef TERSE_KV_READ_LIST_H
#define TERSE_KV_READ_LIST_H

#include "format/page_layout.h"

#include <stdbool.h>
#include <stdint.h>

#define READ_ALL UINT64_MAX /* a mask: all 64 tokens are live */

#ifdef __CUDACC__
#define READ_LIST_INLINE static __host__ __device__ inline
#else
#define READ_LIST_INLINE static inline
#endif

struct read_page {
    uint64_t live; /* bit t: the token in slot t is read */
    uint32_t page; /* number of the page set in the block table */
};

/* A read_exact says which tokens of a page have exact rows that are read in place of their codes, keys and values apart (enum
 * codec_side). */
struct read_exact {
    uint64_t slots[2]; /* bit t: the token in slot t has one */
    uint32_t row[2];   /* the anchor that is the lowest of these tokens; the anchors of the others follow it */
};

struct read_list {
    const struct read_page *pages;  /* [n_pages]: the first n_chosen in order of their tokens, then the others in order of theirs */
    const struct read_exact *exact; /* [n_pages]; NULL: all tokens of pages are read as codes */
    uint32_t n_pages;
    uint32_t n_chosen; /* pages of which few tokens were chosen, to be packed before they are read */
    /* These are exact rows outside of pages: row r of [rows_begin, rows_end) stands at position r + moved. Behind them follow
     * n_kept rows of tokens that were kept of a prompt, which stand at the positions that they always had. */
    uint32_t rows_begin, rows_end, n_kept;
    uint64_t moved;
    uint64_t window_first; /* the recent window is read from this token on */
};

/* Returns the mask of slots [begin, end) of a page, begin <= end <= 64. */
READ_LIST_INLINE uint64_t read_slots(uint32_t begin, uint32_t end) {
    return begin == end ? 0 : READ_ALL >> (PAGE_TOKENS - (end - begin)) << begin;
}

/* Returns the mask of tokens [begin, end) of a page whose first token is `first` and which holds `count`. */
READ_LIST_INLINE uint64_t read_slots_of(uint64_t first, uint32_t count, uint64_t begin, uint64_t end) {
    uint64_t from = begin > first ? begin - first : 0, to = end > first ? end - first : 0;
    if (to > count) to = count;
    return from < to ? read_slots((uint32_t)from, (uint32_t)to) : 0;
}

/* Returns the first live slot, and the slot behind the last one; both 0 where none is live. */
static inline uint32_t read_begin(uint64_t live) { return live ? (uint32_t)__builtin_ctzll(live) : 0; }
static inline uint32_t read_end(uint64_t live) { return live ? PAGE_TOKENS - (uint32_t)__builtin_clzll(live) : 0; }
/* Returns the number of live slots. */
static inline uint32_t read_count(uint64_t live) { return live == READ_ALL ? PAGE_TOKENS : (uint32_t)__builtin_popcountll(live); }
/* Returns whether slots that are not live lie between live ones. */
static inline bool read_has_holes(uint64_t live) {
    uint64_t slots = live >> read_begin(live);
    return (slots & (slots + 1)) != 0;
}
/* Removes the lowest live slot from a mask that has one, and returns it. */
static inline uint32_t read_take(uint64_t *live) {
    uint32_t slot = (uint32_t)__builtin_ctzll(*live);
    *live &= *live - 1;
    return slot;
}
/* Returns the row of a slot whose bit is set in exact->slots[side]. */
static inline uint32_t read_exact_row(const struct read_exact *exact, int side, uint32_t slot) {
    return exact->row[side] + (uint32_t)__builtin_popcountll(exact->slots[side] & (((uint64_t)1 << slot) - 1));
}

#endif
