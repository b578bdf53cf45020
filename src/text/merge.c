/* Implements the heap of candidate pairs and the list of symbols that they merge. */
#include "text/merge.h"

#include <stdlib.h>

/* A candidate is a pair that may be merged. It is stale, and skipped, once one of its sides has grown or gone: then their sizes no
 * longer add up to `size`. (The left side can only grow by swallowing the right one, the right side only by swallowing what follows
 * it.) */
struct candidate {
    uint64_t order; /* priority, then the index of the left symbol */
    uint32_t size;
    int32_t token;
};

/* A node has four children: they share a cache line, and the heap is half as deep as a binary one. */
enum { CHILDREN = 4 };

void merger_destroy(struct merger *m) {
    free(m->symbols);
    free(m->heap);
    *m = (struct merger){0};
}

/* Returns the array, grown to hold `wanted` elements; NULL when memory is refused, and then the old array stays as it is. */
static void *reserve(void *array, size_t *capacity, size_t wanted, size_t element) {
    if (wanted <= *capacity) return array;
    size_t grown = *capacity + *capacity / 2 > wanted ? *capacity + *capacity / 2 : wanted;
    void *moved = realloc(array, grown * element);
    if (moved) *capacity = grown;
    return moved;
}

enum terse_status merger_begin(struct merger *m, size_t n, struct terse_error *error) {
    void *symbols = reserve(m->symbols, &m->symbol_capacity, n, sizeof *m->symbols);
    if (!symbols) return status_no_memory(error, n * sizeof *m->symbols, "tokenizing a text");
    m->symbols = symbols;
    m->n_symbols = m->n_heap = 0;
    return TERSE_OK;
}

void merger_add(struct merger *m, uint32_t start, uint32_t size, int32_t token) {
    uint32_t i = (uint32_t)m->n_symbols++;
    if (i) m->symbols[i - 1].next = i;
    m->symbols[i] = (struct symbol){i ? i - 1 : MERGE_END, MERGE_END, start, size, token};
}

static void push(struct merger *m, struct candidate c) {
    size_t i = m->n_heap++;
    while (i && c.order < m->heap[(i - 1) / CHILDREN].order) {
        m->heap[i] = m->heap[(i - 1) / CHILDREN];
        i = (i - 1) / CHILDREN;
    }
    m->heap[i] = c;
}

static struct candidate pop(struct merger *m) {
    struct candidate top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0, n = m->n_heap;
    for (;;) {
        size_t child = i * CHILDREN + 1, end = child + CHILDREN < n ? child + CHILDREN : n;
        if (child >= n) break;
        for (size_t other = child + 1; other < end; other++)
            if (m->heap[other].order < m->heap[child].order) child = other;
        if (m->heap[child].order >= last.order) break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

/* A merging is one word that is being merged. */
struct merging {
    struct merger *merger;
    merge_rule *rule;
    const void *context;
    const char *text;
};

/* Considers the symbol at `left` and the one after it. The heap has space for it. */
static void consider(const struct merging *r, uint32_t left) {
    const struct symbol *a = &r->merger->symbols[left];
    if (a->next == MERGE_END) return;
    const struct symbol *b = &r->merger->symbols[a->next];
    struct merge merge;
    if (r->rule(r->context, r->text, a, b, &merge))
        push(r->merger, (struct candidate){(uint64_t)merge.priority << 32 | left, a->size + b->size, merge.token});
}

enum terse_status merger_run(struct merger *m, merge_rule *rule, const void *context, const char *text, struct terse_error *error) {
    const struct merging merging = {m, rule, context, text};
    /* A merge takes one candidate out and puts at most two in, and there are fewer merges than symbols. */
    void *heap = reserve(m->heap, &m->heap_capacity, 2 * m->n_symbols, sizeof *m->heap);
    if (!heap) return status_no_memory(error, 2 * m->n_symbols * sizeof *m->heap, "tokenizing a text");
    m->heap = heap;
    for (uint32_t i = 0; i + 1 < m->n_symbols; i++) consider(&merging, i);
    while (m->n_heap) {
        struct candidate c = pop(m);
        uint32_t i = (uint32_t)c.order;
        struct symbol *left = &m->symbols[i];
        if (left->size == 0 || left->next == MERGE_END) continue;
        struct symbol *right = &m->symbols[left->next];
        if (left->size + right->size != c.size) continue;
        left->size = c.size;
        left->token = c.token;
        left->next = right->next;
        right->size = 0;
        if (left->next != MERGE_END) m->symbols[left->next].previous = i;
        if (left->previous != MERGE_END) consider(&merging, left->previous);
        consider(&merging, i);
    }
    return TERSE_OK;
}
