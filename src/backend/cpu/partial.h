/* Computes partial states of attention (online softmax): what some of the keys and values contribute to the outputs of some
 * queries. Split-K parts, pages, exact tokens and the window all leave such states, which merge in any order.
 *
 * For a query with logits x_t over the tokens t of a part, the part's state is
 *     max = max x_t,   sum = sum exp(x_t - max),   acc = sum exp(x_t - max) v_t
 * and two states of disjoint parts merge to that of their union, in any order (Milakov and Gimelshein 2018, "Online normalizer
 * calculation for softmax", section 3.1). An empty part has max -INFINITY and sum 0 and changes nothing. All numbers are fp32. */
#ifndef TERSE_BACKEND_CPU_PARTIAL_H
#define TERSE_BACKEND_CPU_PARTIAL_H

#include <stddef.h>

struct partial {
    size_t rows, width; /* queries, channels of a value */
    float *max, *sum;   /* [rows] */
    float *acc;         /* [rows][width] */
    size_t coded;       /* floats of a row that a value codec has added up by code; 0: there are none */
    float *by_code;     /* [rows][coded], then [rows] sums of weights: they become a part of acc once all parts are merged */
};

/* Returns a view of memory[partial_floats(rows, width)], which the caller owns. It is not cleared. */
struct partial partial_at(float *memory, size_t rows, size_t width);
size_t partial_floats(size_t rows, size_t width);

/* Adds sums by code of `coded` floats a row to a state, in memory[partial_code_floats(rows, coded)], which the caller owns. */
void partial_keep_codes(struct partial *partial, size_t coded, float *memory);
size_t partial_code_floats(size_t rows, size_t coded);
/* Makes the sums by code, if there are any, zeros. */
void partial_clear_codes(struct partial *partial);

/* Makes all rows empty. */
void partial_clear(struct partial *partial);

/* Prepares `row` for logits of at most `max`: its state is rescaled if they are the largest yet. Returns the number to subtract
 * from them before exp; -INFINITY while the row has met no finite logit: their weights are then 0. */
float partial_raise(struct partial *partial, size_t row, float max);

/* Adds the part `from` of the same shape. */
void partial_merge(struct partial *into, const struct partial *from);

/* Computes out[width] of one row: acc / sum, zeros for an empty row. */
void partial_finish(const struct partial *partial, size_t row, float *out);

#endif
