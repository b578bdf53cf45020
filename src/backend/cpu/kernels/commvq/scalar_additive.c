/* Has the reference of CommVQ's values. codec/binary_code_search.h says what fields and signs are. */
#include "backend/cpu/kernels/commvq/init.h"
#include "format/page_layout.h"

#include <math.h>

static void accumulate_by_code_additive_scalar(const float *weights, size_t G, size_t n, const uint8_t *codes, float *code_sums) {
    for (size_t g = 0; g < G; g++) {
        for (size_t i = 0; i < n; i++) {
            float sum = 0;
            for (size_t t = 0; t < PAGE_TOKENS; t++)
                if (codes[t / 8 * n + i] >> t % 8 & 1) sum += weights[g * PAGE_TOKENS + t];
            code_sums[g * n + i] += sum;
        }
    }
}

static float tag(float number, size_t place) {
    union {
        float number;
        uint32_t bits;
    } x = {number};
    x.bits = x.bits / ADDITIVE_MOST_CODES * ADDITIVE_MOST_CODES | (uint32_t)place;
    return x.number;
}

/* Subtracts by * row from field where there is a row. Returns the least key, with its index: the key of a set sign is how far it
 * lies along its field, that of a sign yet to be set is minus the magnitude of its field. */
static float sweep(size_t n, bool set, const float *row, float by, const float *bias, float *field) {
    float least = INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (row) field[i] -= by * row[i];
        float key = tag(set ? field[i] * bias[i] : bias[i] - fabsf(field[i]), i);
        if (key < least) least = key;
    }
    return least;
}

static void search(const float *couplings, size_t n, float *field, float *signs) {
    float bias[ADDITIVE_MOST_CODES], by = 0;
    const float *row = NULL;
    for (size_t i = 0; i < n; i++) {
        bias[i] = 0;
        signs[i] = -1;
    }
    for (size_t step = 0; step < n; step++) {
        uint32_t at = additive_place(sweep(n, false, row, by, bias, field));
        by = signs[at] = field[at] < 0 ? -1 : 1;
        bias[at] = ADDITIVE_SET;
        row = couplings + at * n;
    }
    float least = sweep(n, true, row, by, signs, field);
    for (size_t flipped = 0; flipped < n && least < -ADDITIVE_LEAST_FIELD; flipped++) {
        uint32_t at = additive_place(least);
        signs[at] = -signs[at];
        least = sweep(n, true, couplings + at * n, 2 * signs[at], signs, field);
    }
}

static void local_search_additive_scalar(const float *couplings, size_t n, size_t count, float *fields, float *signs) {
    for (size_t r = 0; r < count; r++) search(couplings, n, fields + r * n, signs + r * n);
}

static void add_bytes_scalar(const float *a, size_t G, size_t K, const uint8_t *b, size_t ldb, float *out, size_t ldo) {
    for (size_t g = 0; g < G; g++) {
        for (size_t n = 0; n < SCALE_GROUP; n++) {
            float sum = 0;
            for (size_t k = 0; k < K; k++) sum += a[g * K + k] * (float)b[k * ldb + n];
            out[g * ldo + n] += sum;
        }
    }
}

void commvq_init_scalar_additive(struct commvq_ops *ops) {
    ops->add_bytes = add_bytes_scalar;
    ops->accumulate_by_code = accumulate_by_code_additive_scalar;
    ops->local_search = local_search_additive_scalar;
}
