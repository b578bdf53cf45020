/* This template implements CommVQ's values for any vector instruction set. avx2_additive.c, avx512_additive.c and neon_additive.c
 * include it once; it defines commvq_init_ISA_additive. Parameters, besides those of lanes/sums_template.h:
 *
 *     vec_minus_size(a, b)      a - |b|
 *     vec_tag(x, places)        x with places[LANES] in its lowest 9 bits
 *     vec_least(a, b)           the lesser of each lane, b where a is NaN
 *     vec_least_lane(a)         the least of all lanes
 *     ACCUMULATE_BY_CODE        the function accumulate_by_code, where there is a better one than the scalar */
#include "backend/cpu/kernels/commvq/init.h"
#include "backend/cpu/kernels/lanes/bytes_template.h"
#include "backend/cpu/kernels/lanes/sums_template.h"

#include <math.h>

#define TWO 2 /* rows that are searched for together */

/* A search is a row whose code is being searched for: its fields, what keeps set signs from being set again, the update that the
 * last sweep has left to the next, and the least key it found. */
struct search {
    float *field, *signs, *bias;
    const float *row; /* of the couplings, NULL at first */
    float by, least;
};

INLINE vec pass_some(bool set, const struct search *s, size_t i, const uint32_t *places, vec least) {
    vec f = vec_load(s->field + i), b = vec_load((set ? s->signs : s->bias) + i);
    if (s->row) {
        f = vec_fnma(vec_set(s->by), vec_load(s->row + i), f);
        vec_store(s->field + i, f);
    }
    return vec_least(vec_tag(set ? vec_mul(f, b) : vec_minus_size(b, f), places + i), least);
}

/* Does what scalar_additive.c's sweep() does for N rows: each sweep waits for the result of the one before, and another row's sweep
 * fills the time. */
INLINE void sweep(size_t N, size_t n, bool set, const uint32_t *places, struct search *rows) {
    vec least[TWO];
    UNROLL for (size_t r = 0; r < N; r++) least[r] = vec_set(INFINITY);
    for (size_t i = 0; i < n; i += LANES) {
        UNROLL for (size_t r = 0; r < N; r++) least[r] = pass_some(set, &rows[r], i, places, least[r]);
    }
    UNROLL for (size_t r = 0; r < N; r++) rows[r].least = vec_least_lane(least[r]);
}

INLINE void search_some(size_t N, const float *couplings, size_t n, float *fields, float *signs) {
    uint32_t places[ADDITIVE_MOST_CODES];
    float bias[TWO][ADDITIVE_MOST_CODES];
    struct search rows[TWO];
    for (size_t i = 0; i < n; i++) places[i] = (uint32_t)i;
    for (size_t r = 0; r < N; r++) {
        rows[r] = (struct search){fields + r * n, signs + r * n, bias[r], NULL, 0, 0};
        for (size_t i = 0; i < n; i++) {
            bias[r][i] = 0;
            signs[r * n + i] = -1;
        }
    }
    sweep(N, n, false, places, rows);
    for (size_t left = n; left > 0; left--) {
        for (size_t r = 0; r < N; r++) {
            uint32_t at = additive_place(rows[r].least);
            rows[r].by = rows[r].signs[at] = rows[r].field[at] < 0 ? -1 : 1;
            rows[r].bias[at] = ADDITIVE_SET;
            rows[r].row = couplings + at * n;
        }
        if (left > 1) sweep(N, n, false, places, rows);
    }
    for (struct search *row = rows; row < rows + N; row++) {
        sweep(1, n, true, places, row);
        for (size_t flipped = 0; flipped < n && row->least < -ADDITIVE_LEAST_FIELD; flipped++) {
            uint32_t at = additive_place(row->least);
            row->signs[at] = -row->signs[at];
            row->by = 2 * row->signs[at];
            row->row = couplings + at * n;
            sweep(1, n, true, places, row);
        }
    }
}

static void PASTE(local_search_additive, ISA)(const float *couplings, size_t n, size_t count, float *fields, float *signs) {
    size_t r = 0;
    for (; r + TWO <= count; r += TWO) search_some(TWO, couplings, n, fields + r * n, signs + r * n);
    if (r < count) search_some(1, couplings, n, fields + r * n, signs + r * n);
}

/* ---- Code sums times rows of bytes --------------------------------------------------------------------------------------- */

static void PASTE(add_bytes, ISA)(const float *a, size_t G, size_t K, const uint8_t *b, size_t ldb, float *out, size_t ldo) {
    const struct bytes bytes = {b, K, ldb, ldo};
    for (size_t g = 0; g < G;) {
        size_t left = G - g, n = left >= 4 ? 4 : left;
        const float *from = a + g * K;
        float *to = out + g * ldo;
        if (n == 4) add_bytes(4, from, &bytes, to);
        if (n == 3) add_bytes(3, from, &bytes, to);
        if (n == 2) add_bytes(2, from, &bytes, to);
        if (n == 1) add_bytes(1, from, &bytes, to);
        g += n;
    }
}

void PASTE(PASTE(commvq_init, ISA), additive)(struct commvq_ops *ops) {
#ifdef ACCUMULATE_BY_CODE
    ops->accumulate_by_code = ACCUMULATE_BY_CODE;
#endif
    ops->add_bytes = PASTE(add_bytes, ISA);
    ops->local_search = PASTE(local_search_additive, ISA);
}
