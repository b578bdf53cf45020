/* Compares rows with each other; there are a dozen. */
#include "front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_bytes(const void *left, const void *right) {
    const struct front_row *a = left, *b = right;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    if (a->divergence != b->divergence) return a->divergence > b->divergence ? 1 : -1;
    return strcmp(a->method, b->method);
}

/* Returns whether a is at least as good as b in both ways, and better in one. */
static bool is_better(const struct front_row *a, const struct front_row *b) {
    return a->bytes <= b->bytes && a->divergence <= b->divergence && (a->bytes < b->bytes || a->divergence < b->divergence);
}

void front_find(struct front_row *rows, size_t n) {
    qsort(rows, n, sizeof *rows, by_bytes);
    for (size_t i = 0; i < n; i++) {
        rows[i].on_front = rows[i].positions > 0;
        for (size_t j = 0; j < n && rows[i].on_front; j++) rows[i].on_front = !rows[j].positions || !is_better(&rows[j], &rows[i]);
    }
}

const struct front_row *front_pick(const struct front_row *rows, size_t n, uint64_t budget, double most) {
    const struct front_row *pick = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct front_row *row = &rows[i];
        if (!row->on_front || (budget && row->peak > budget)) continue;
        /* On the front divergence grows as bytes fall. */
        if (!pick || row->divergence <= most) pick = row;
    }
    return pick;
}

void front_explain(const struct front_row *rows, size_t n, const struct front_row *pick, double most, char *text, size_t capacity) {
    const struct front_row *next = pick + 1;
    int length = snprintf(text, capacity, "%.2f bits per value, %.1f MiB, divergence %.2g from f16", pick->bits,
                          (double)pick->bytes / 0x1p20, pick->divergence);
    if (pick->speed > 0) length += snprintf(text + length, capacity - (size_t)length, ", %.1fx its speed", pick->speed);
    while (next < rows + n && !next->on_front) next++;
    if (pick->divergence > most)
        snprintf(text + length, capacity - (size_t)length, "; none that fits has at most %g", most);
    else if (next < rows + n)
        snprintf(text + length, capacity - (size_t)length, "; the next smaller one, %s, has %.2g", next->method, next->divergence);
    else
        snprintf(text + length, capacity - (size_t)length, "; no smaller one was measured");
}
