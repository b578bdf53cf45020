/* Searches for the nearest codeword of a round. */
#include "backend/cpu/codec/commvq_search.h"

#include "backend/cpu/kernels/commvq/commvq.h"
#include "backend/cpu/kernels/commvq/ops.h"
#include "base/memory.h"

#include <math.h>

#define SOME_ROWS 16 /* whose products lie on the stack */

enum terse_status commvq_search_new(size_t pairs, size_t entries, struct commvq_search *search, struct terse_error *error) {
    *search = (struct commvq_search){.pairs = pairs, .entries = entries, .columns = memory_round_up(entries, COMMVQ_COLUMNS)};
    if (pairs < 1 || pairs > COMMVQ_MOST_PAIRS || entries < 1 || entries > COMMVQ_ENTRIES)
        return status_fail(error, TERSE_E_ARGUMENT, "tables of %zu entries of %zu pairs: use 1 to %d entries of 1 to %d pairs",
                           entries, pairs, COMMVQ_ENTRIES, COMMVQ_MOST_PAIRS);
    search->panel = memory_zeros(2 * pairs * 2 * search->columns, sizeof *search->panel);
    search->half = memory_array(entries * search->columns, sizeof *search->half);
    if (search->panel && search->half) return TERSE_OK;
    commvq_search_free(search);
    return status_no_memory(error, commvq_search_bytes(search), "the tables of a search");
}

void commvq_search_free(struct commvq_search *search) {
    memory_free(search->panel);
    memory_free(search->half);
    search->panel = search->half = NULL;
}

size_t commvq_search_bytes(const struct commvq_search *search) {
    return (4 * search->pairs + search->entries) * search->columns * sizeof(float);
}

void commvq_search_panel(struct commvq_search *search, const float *table) {
    const size_t g = search->pairs, columns = search->columns;
    for (size_t j = 0; j < g; j++) {
        float *real = search->panel + j * 2 * columns, *imaginary = search->panel + (g + j) * 2 * columns;
        for (size_t l = 0; l < columns; l++) {
            bool entry = l < search->entries;
            float re = entry ? table[l * 2 * g + j] : 0, im = entry ? table[(l * 2 + 1) * g + j] : 0;
            real[l] = re;
            imaginary[l] = im;
            real[columns + l] = -im;
            imaginary[columns + l] = re;
        }
    }
}

void commvq_search_half(struct commvq_search *search, const float *table) {
    const size_t g = search->pairs;
    for (size_t a = 0; a < search->entries; a++) {
        const float *x = table + a * 2 * g;
        float *half = search->half + a * search->columns;
        for (size_t b = 0; b < search->entries; b++) {
            const float *y = table + b * 2 * g;
            double square = 0;
            for (size_t j = 0; j < g; j++) {
                double re = (double)x[j] - (double)y[g + j], im = (double)x[g + j] + (double)y[j];
                square += re * re + im * im;
            }
            half[b] = (float)(square / 2);
        }
        for (size_t b = search->entries; b < search->columns; b++) half[b] = INFINITY;
    }
}

void commvq_search_set(struct commvq_search *search, const float *table) {
    commvq_search_panel(search, table);
    commvq_search_half(search, table);
}

void commvq_search_products(const struct commvq_search *search, const float *rows, size_t n, size_t stride, float *products) {
    commvq_ops()->multiply_panel(rows, n, 2 * search->pairs, stride, search->panel, 2 * search->columns, products);
}

uint32_t commvq_search_best(const struct commvq_search *search, const float *products, float *least) {
    return commvq_ops()->nearest(search->half, search->entries, search->columns, products, least);
}

size_t commvq_search_within(const struct commvq_search *search, const float *products, float limit, size_t most, uint32_t *cells,
                            float *values) {
    return commvq_ops()->within(search->half, search->entries, search->columns, products, limit, most, cells, values);
}

void commvq_search_nearest(const struct commvq_search *search, const float *rows, size_t n, size_t stride, uint16_t *codes) {
    _Alignas(MEMORY_ALIGN) float products[SOME_ROWS * 2 * COMMVQ_ENTRIES];
    for (size_t row = 0; row < n; row += SOME_ROWS) {
        size_t count = n - row < SOME_ROWS ? n - row : SOME_ROWS;
        commvq_search_products(search, rows + row * stride, count, stride, products);
        for (size_t r = 0; r < count; r++) {
            float least;
            uint32_t cell = commvq_search_best(search, products + r * 2 * search->columns, &least);
            codes[row + r] = (uint16_t)(cell / search->columns + cell % search->columns * search->entries);
        }
    }
}

void commvq_subtract(const float *table, size_t pairs, size_t entries, const uint16_t *codes, size_t n, float *rows,
                     size_t stride) {
    for (size_t r = 0; r < n; r++) {
        const float *a = table + codes[r] % entries * 2 * pairs, *b = table + codes[r] / entries * 2 * pairs;
        float *re = rows + r * stride, *im = re + pairs;
        for (size_t j = 0; j < pairs; j++) {
            re[j] -= a[j] - b[pairs + j];
            im[j] -= a[pairs + j] + b[j];
        }
    }
}
