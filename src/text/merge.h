/* Merges neighbours, best pair first. Byte-level BPE (pairs ranked by the merge list) and SentencePiece-style BPE (pairs ranked by
 * the score of the token that they give) share it. O(n log n) for n symbols. */
#ifndef TERSE_TEXT_MERGE_H
#define TERSE_TEXT_MERGE_H

#include "base/status.h"

#define MERGE_END UINT32_MAX

/* A symbol is a stretch of the text. Merging makes `previous` and `next` skip what a symbol has swallowed. */
struct symbol {
    uint32_t previous, next; /* indices, or MERGE_END */
    uint32_t start, size;    /* bytes of the text; size 0 once swallowed by a neighbour */
    int32_t token;           /* -1 when the vocabulary has no such token */
};

/* A merge is the token that replaces two neighbours, and its priority. */
struct merge {
    uint32_t priority; /* the smallest is done first; among equals the leftmost */
    int32_t token;
};

/* Returns whether `left` and `right`, neighbours in `text`, may be merged, and writes the merge. */
typedef bool merge_rule(const void *context, const char *text, const struct symbol *left, const struct symbol *right,
                        struct merge *merge);

/* A merger is working memory, zeroed before first use and reused from word to word. */
struct merger {
    struct symbol *symbols;
    size_t n_symbols, symbol_capacity;
    struct candidate *heap;
    size_t n_heap, heap_capacity;
};
void merger_destroy(struct merger *merger);

/* Discards the last word and allocates for n > 0 symbols. */
enum terse_status merger_begin(struct merger *merger, size_t n, struct terse_error *error);
/* Appends the next symbol of the word. */
void merger_add(struct merger *merger, uint32_t start, uint32_t size, int32_t token);
/* Merges until no rule applies. The symbols that are left are symbols[0] and those that follow it by `next`. */
enum terse_status merger_run(struct merger *merger, merge_rule *rule, const void *context, const char *text,
                             struct terse_error *error);

#endif
