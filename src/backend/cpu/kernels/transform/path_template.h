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

/* Computes errors[64], what a window costs in all terms. */
INLINE void find_errors(const struct transform_path_term *terms, size_t n, size_t window, float *restrict errors) {
    for (size_t t = 0; t < PAGE_TOKENS; t++) errors[t] = 0;
    for (size_t i = 0; i < n; i++) {
        const float level = terms[i].levels[window], square = terms[i].square * level;
        const float *restrict twice = terms[i].twice;
        for (size_t t = 0; t < PAGE_TOKENS; t++) errors[t] += level * (twice[t] + square);
    }
}

static void PASTE(path_step, ISA)(unsigned bits, const struct transform_path_term *terms, size_t n,
                                  float cost[TRANSFORM_PATH_STATES][64], uint8_t from[TRANSFORM_PATH_STATES][64]) {
    path_row best[TRANSFORM_PATH_STATES], error_1, error_2;
    path_states state[TRANSFORM_PATH_STATES];
    find_beginnings(bits, (const path_row *)cost, best, state);
    for (size_t s = 0; s < TRANSFORM_PATH_STATES; s++) {
        const size_t first = s >> bits, second = (s + TRANSFORM_PATH_STATES) >> bits;
        const float *restrict best_1 = best[first], *restrict best_2 = best[second];
        const int32_t *restrict state_1 = state[first], *restrict state_2 = state[second];
        float *restrict least = cost[s];
        int32_t chosen[PAGE_TOKENS];
        find_errors(terms, n, s, error_1);
        find_errors(terms, n, s + TRANSFORM_PATH_STATES, error_2);
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            float x = best_1[t] + error_1[t], y = best_2[t] + error_2[t];
            int32_t a = state_1[t], b = state_2[t] | TRANSFORM_PATH_STATES;
            chosen[t] = y < x ? b : a;
            least[t] = y < x ? y : x;
        }
        for (size_t t = 0; t < PAGE_TOKENS; t++) from[s][t] = (uint8_t)chosen[t];
    }
}
