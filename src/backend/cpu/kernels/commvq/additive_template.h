/* CommVQ's values for any vector instruction set: included once by avx2_additive.c, avx512_additive.c and neon_additive.c after
 * their lanes, which bring besides
 *
 *     vec_minus_size(a, b)      a - |b|
 *     vec_tag(x, places)        x with places[LANES] in its lowest 9 bits
 *     vec_least(a, b)           the lesser of each lane, b where a is NaN
 *     vec_least_lane(a)         the least of all lanes
 *     TALLY                     accumulate_by_code_additive, if there is a better one than the scalar
 */
#include "backend/cpu/codec/binary_code_search.h"
#include "backend/cpu/kernels/lanes/sums_template.h"

#include <math.h>

#define TWO 2 /* rows that are searched for together */

/* A row that is being searched for: what it feels, what keeps set spins from being set again, and what the last pass has left to
 * do and found. */
struct search {
    float *field, *spins, *bias;
    const float *row; /* of the couplings, NULL at first */
    float by, least;
};

INLINE vec pass_some(bool set, const struct search *s, size_t i, const uint32_t *places, vec least) {
    vec f = vec_load(s->field + i), b = vec_load((set ? s->spins : s->bias) + i);
    if (s->row) {
        f = vec_fnma(vec_set(s->by), vec_load(s->row + i), f);
        vec_store(s->field + i, f);
    }
    return vec_least(vec_tag(set ? vec_mul(f, b) : vec_minus_size(b, f), places + i), least);
}

/* As the scalar one, which says what is meant, for N rows: each pass waits for what the last one found, and that of another row fills
 * the time. */
INLINE void pass(size_t N, size_t n, bool set, const uint32_t *places, struct search *rows) {
    vec least[TWO];
    UNROLL for (size_t r = 0; r < N; r++) least[r] = vec_set(INFINITY);
    for (size_t i = 0; i < n; i += LANES) {
        UNROLL for (size_t r = 0; r < N; r++) least[r] = pass_some(set, &rows[r], i, places, least[r]);
    }
    UNROLL for (size_t r = 0; r < N; r++) rows[r].least = vec_least_lane(least[r]);
}

INLINE void search_some(size_t N, const float *couplings, size_t n, float *fields, float *spins) {
    uint32_t places[ADDITIVE_MOST_CODES];
    float bias[TWO][ADDITIVE_MOST_CODES];
    struct search rows[TWO];
    for (size_t i = 0; i < n; i++) places[i] = (uint32_t)i;
    for (size_t r = 0; r < N; r++) {
        rows[r] = (struct search){fields + r * n, spins + r * n, bias[r], NULL, 0, 0};
        for (size_t i = 0; i < n; i++) {
            bias[r][i] = 0;
            spins[r * n + i] = -1;
        }
    }
    pass(N, n, false, places, rows);
    for (size_t left = n; left > 0; left--) {
        for (size_t r = 0; r < N; r++) {
            uint32_t at = additive_place(rows[r].least);
            rows[r].by = rows[r].spins[at] = rows[r].field[at] < 0 ? -1 : 1;
            rows[r].bias[at] = ADDITIVE_SET;
            rows[r].row = couplings + at * n;
        }
        if (left > 1) pass(N, n, false, places, rows);
    }
    for (struct search *row = rows; row < rows + N; row++) {
        pass(1, n, true, places, row);
        for (size_t rotated = 0; rotated < n && row->least < -ADDITIVE_LEAST_FIELD; rotated++) {
            uint32_t at = additive_place(row->least);
            row->spins[at] = -row->spins[at];
            row->by = 2 * row->spins[at];
            row->row = couplings + at * n;
            pass(1, n, true, places, row);
        }
    }
}

static void PASTE(local_search_additive, ISA)(const float *couplings, size_t n, size_t count, float *fields, float *spins) {
    size_t r = 0;
    for (; r + TWO <= count; r += TWO) search_some(TWO, couplings, n, fields + r * n, spins + r * n);
    if (r < count) search_some(1, couplings, n, fields + r * n, spins + r * n);
}

void PASTE(PASTE(kernels_init, ISA), additive)(struct kernels *k) {
#ifdef BY_CODE
    k->accumulate_by_code_additive = BY_CODE;
#endif
    k->local_search_additive = PASTE(local_search_additive, ISA);
}
