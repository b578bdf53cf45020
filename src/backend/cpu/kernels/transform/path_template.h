/* This template implements transform_ops.path_step in plain C, over rows of 64 floats that a compiler turns into the vectors of the
 * file that includes this. A file that defines ISA includes it once; it defines path_step_ISA. */
#include "backend/cpu/kernels/compiler.h"
#include "backend/cpu/kernels/transform/init.h"
#include "format/page_layout.h"

#include <string.h>

typedef float path_row[PAGE_TOKENS];
typedef int32_t path_states[PAGE_TOKENS];

/* Finds the best ways to each beginning of a window: its 4 - bits oldest bits, the last ones of the state before. */
INLINE void find_beginnings(unsigned bits, const path_row *cost, path_row *best, path_states *state) {
    const unsigned beginnings = TRANSFORM_WINDOWS >> bits;
    for (unsigned b = 0; b < beginnings; b++) {
        memcpy(best[b], cost[b], sizeof best[b]);
        for (size_t t = 0; t < PAGE_TOKENS; t++) state[b][t] = (int32_t)b;
        for (unsigned s = b + beginnings; s < TRANSFORM_PATH_STATES; s += beginnings) {
            const float *restrict own = cost[s];
            float *restrict least = best[b];
            int32_t *restrict from = state[b];
            for (size_t t = 0; t < PAGE_TOKENS; t++) {
                float x = own[t], y = least[t];
                int32_t before = from[t];
                from[t] = x < y ? (int32_t)s : before;
                least[t] = x < y ? x : y;
            }
        }
    }
}

/* Adds to errors[64] what a level costs in a term. */
INLINE void add_errors(const struct transform_path_term *term, float level, float *restrict errors) {
    const float square = term->square, step = term->upper_step, inverse = step > 0 ? 1 / step : 0;
    const float *restrict x = term->x;
    if (step > 0) {
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            const float y = x[t] - level, d = y - step * ((float)transform_upper_code(y, inverse) - 7.5f);
            errors[t] += square * d * d;
        }
    } else {
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            const float d = x[t] - level;
            errors[t] += square * d * d;
        }
    }
}

/* Sets of[window] to what a window costs in all terms. Windows with the same levels share a row. */
INLINE void find_errors(const struct transform_path_term *terms, size_t n, path_row *errors, const float **of) {
    for (size_t w = 0; w < TRANSFORM_WINDOWS; w++) {
        size_t same = 0;
        while (same < w && !(n == 1 && terms->levels[same] == terms->levels[w])) same++;
        of[w] = errors[same];
        if (same < w) continue;
        for (size_t t = 0; t < PAGE_TOKENS; t++) errors[w][t] = 0;
        for (size_t i = 0; i < n; i++) add_errors(&terms[i], terms[i].levels[w], errors[w]);
    }
}

static void PASTE(path_step, ISA)(unsigned bits, const struct transform_path_term *terms, size_t n,
                                  float cost[TRANSFORM_PATH_STATES][64], uint8_t from[TRANSFORM_PATH_STATES][64]) {
    path_row best[TRANSFORM_PATH_STATES], errors[TRANSFORM_WINDOWS];
    const float *error_of[TRANSFORM_WINDOWS];
    path_states state[TRANSFORM_PATH_STATES];
    find_errors(terms, n, errors, error_of);
    find_beginnings(bits, (const path_row *)cost, best, state);
    for (size_t s = 0; s < TRANSFORM_PATH_STATES; s++) {
        const size_t first = s >> bits, second = (s + TRANSFORM_PATH_STATES) >> bits;
        const float *restrict best_1 = best[first], *restrict best_2 = best[second];
        const float *restrict error_1 = error_of[s], *restrict error_2 = error_of[s + TRANSFORM_PATH_STATES];
        const int32_t *restrict state_1 = state[first], *restrict state_2 = state[second];
        float *restrict least = cost[s];
        int32_t chosen[PAGE_TOKENS];
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            float x = best_1[t] + error_1[t], y = best_2[t] + error_2[t];
            int32_t a = state_1[t], b = state_2[t] | TRANSFORM_PATH_STATES;
            chosen[t] = y < x ? b : a;
            least[t] = y < x ? y : x;
        }
        for (size_t t = 0; t < PAGE_TOKENS; t++) from[s][t] = (uint8_t)chosen[t];
    }
}
