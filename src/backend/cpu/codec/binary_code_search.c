/* Searches for a code of a sum. */
#include "backend/cpu/codec/binary_code_search.h"

#include "backend/cpu/kernels/commvq/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <string.h>

#define SOME_ROWS 8 /* whose fields lie on the stack */

enum terse_status additive_search_new(size_t channels, size_t codes, struct additive_search *search, struct terse_error *error) {
    *search = (struct additive_search){.channels = channels, .codes = codes};
    if (channels < 1 || codes < 1 || codes % ADDITIVE_STEP || codes > ADDITIVE_MOST_CODES)
        return status_fail(error, TERSE_E_ARGUMENT, "codes of %zu bits for %zu channels: use a multiple of %d bits up to %d", codes,
                           channels, ADDITIVE_STEP, ADDITIVE_MOST_CODES);
    search->panel = memory_array(channels * codes, sizeof *search->panel);
    search->couplings = memory_array(codes * codes, sizeof *search->couplings);
    search->offset = memory_array(codes, sizeof *search->offset);
    if (search->panel && search->couplings && search->offset) return TERSE_OK;
    size_t bytes = additive_search_bytes(search);
    additive_search_free(search);
    return status_no_memory(error, bytes, "the tables of a search");
}

void additive_search_free(struct additive_search *search) {
    memory_free(search->panel);
    memory_free(search->couplings);
    memory_free(search->offset);
    search->panel = search->couplings = search->offset = NULL;
}

size_t additive_search_bytes(const struct additive_search *search) {
    return (search->channels + search->codes + 1) * search->codes * sizeof(float);
}

void additive_search_set(struct additive_search *search, const float *C) {
    size_t d = search->channels, n = search->codes;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k <= i; k++)
            search->couplings[i * n + k] = search->couplings[k * n + i] = vector_ops()->dot(C + i * d, C + k * d, d) / 4;
        for (size_t c = 0; c < d; c++) search->panel[c * n + i] = C[i * d + c] / 2;
    }
    for (size_t i = 0; i < n; i++) {
        double offset = 0;
        for (size_t k = 0; k < n; k++) offset += (double)search->couplings[i * n + k];
        search->offset[i] = (float)offset;
    }
    for (size_t i = 0; i < n; i++) search->couplings[i * n + i] = 0;
}

void additive_search_find(const struct additive_search *search, const float *rows, size_t n, size_t stride, uint8_t *bits) {
    const size_t codes = search->codes;
    float fields[SOME_ROWS * ADDITIVE_MOST_CODES], signs[SOME_ROWS * ADDITIVE_MOST_CODES];
    for (size_t first = 0; first < n; first += SOME_ROWS) {
        size_t count = n - first < SOME_ROWS ? n - first : SOME_ROWS;
        commvq_ops()->multiply_panel(rows + first * stride, count, search->channels, stride, search->panel, codes, fields);
        for (size_t i = 0; i < count * codes; i++) fields[i] -= search->offset[i % codes];
        commvq_ops()->local_search(search->couplings, codes, count, fields, signs);
        memset(bits + first * codes / 8, 0, count * codes / 8);
        for (size_t i = 0; i < count * codes; i++) {
            uint8_t *to = bits + (first * codes + i) / 8;
            *to = (uint8_t)(*to | (signs[i] > 0) << i % 8);
        }
    }
}
