/* Searches for the nearest codeword of one round of CommVQ's keys (format/commvq.h), for learning and encoding alike. It needs 2 *
 * entries inner products and entries^2 sums instead of entries^2 distances,
 *
 *     |x - z[a] - i z[b]|^2 / 2 = |x|^2 / 2 + half[a][b] - <x, z[a]> - <x, i z[b]>,   half[a][b] = |z[a] + i z[b]|^2 / 2
 *
 * A row is real parts[pairs], then imaginary parts[pairs]. */
#ifndef TERSE_BACKEND_CPU_CODEC_COMMVQ_SEARCH_H
#define TERSE_BACKEND_CPU_CODEC_COMMVQ_SEARCH_H

#include "format/commvq.h"

struct commvq_search {
    size_t pairs, entries, columns; /* columns: entries rounded up to whole registers */
    float *panel;                   /* [2 pairs][2 columns]: by number, z[a] and then i z[b] */
    float *half;                    /* [entries][columns], infinity past `entries` */
};

/* Makes a search. TERSE_E_ARGUMENT unless 1 <= pairs <= COMMVQ_MOST_PAIRS, 1 <= entries <= COMMVQ_ENTRIES. */
enum terse_status commvq_search_new(size_t pairs, size_t entries, struct commvq_search *search, struct terse_error *error);
/* Accepts a zeroed struct. */
void commvq_search_free(struct commvq_search *search);
size_t commvq_search_bytes(const struct commvq_search *search);
/* Takes over table[entries][2 pairs], finite; may be called again. */
void commvq_search_set(struct commvq_search *search, const float *table);
/* These are its two parts, for a search in memory of one's own: `half` takes long to compute, `panel` no time. */
void commvq_search_panel(struct commvq_search *search, const float *table);
void commvq_search_half(struct commvq_search *search, const float *table);

/* Computes products[n][2 columns] of rows[n][2 pairs], `stride` floats apart, which commvq_search_best and commvq_search_within
 * read. */
void commvq_search_products(const struct commvq_search *search, const float *rows, size_t n, size_t stride, float *products);
/* Finds the least of half[a][b] - products[a] - products[columns + b] of one row. Returns where it is, a columns + b; the lowest of
 * equal ones. */
uint32_t commvq_search_best(const struct commvq_search *search, const float *products, float *least);
/* Finds all that are less than `limit`, in order, and writes the first `most` of them; returns how many there are. */
size_t commvq_search_within(const struct commvq_search *search, const float *products, float limit, size_t most, uint32_t *cells,
                            float *values);

/* Writes codes[n] = a + entries b of the nearest codeword of each of rows[n]; of equally near ones that of the lowest a, then b. A
 * row's code depends on it and the table alone. It allocates nothing; any number of threads may search at once. */
void commvq_search_nearest(const struct commvq_search *search, const float *rows, size_t n, size_t stride, uint16_t *codes);

/* Subtracts from rows[n] the codewords of codes[n] in table[entries][2 pairs]. */
void commvq_subtract(const float *table, size_t pairs, size_t entries, const uint16_t *codes, size_t n, float *rows, size_t stride);

#endif
