/* Finds which methods are worth taking: the Pareto front of bytes and divergence, and the one to pick of it. */
#ifndef TERSE_TOOLS_FRONT_H
#define TERSE_TOOLS_FRONT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A row says what was measured of a method. */
struct front_row {
    const char *method;
    uint64_t bytes, peak;     /* of the cache of a full context, and at most on the way there */
    double bits;              /* per value of that cache */
    double divergence, error; /* mean KL divergence from f16, nats, and its standard error */
    uint64_t positions;       /* that were scored; 0: none, and the two above mean nothing */
    double rate;              /* tokens a second behind a full context; 0: not measured */
    double speed, attention;  /* how many times as fast as f16: a step, and its attention; 0: not measured */
    bool on_front;            /* set by front_find */
};

/* Sorts rows[n] from the most bytes to the fewest and marks those on the front: scored ones such that no other takes as few bytes with less
 * divergence, or fewer bytes with as little. */
void front_find(struct front_row *rows, size_t n);

/* Returns the row to pick of what front_find has sorted: the one of the fewest bytes whose divergence is at most `most`; where no
 * scored one has so little, the one with the least. Rows whose peak is above budget, where that is not 0, do not count; NULL: none
 * is left. */
const struct front_row *front_pick(const struct front_row *rows, size_t n, uint64_t budget, double most);

/* Writes why to text[capacity], as "3.06 bits per value, divergence 0.0018 from f16, 2.1x its speed; the next smaller one, terse-2.5, has
 * 0.006". */
void front_explain(const struct front_row *rows, size_t n, const struct front_row *pick, double most, char *text, size_t capacity);

#endif
