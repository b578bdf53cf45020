/* One specialisation for each number of queries that a pass serves, so that their sums lie in registers. Parameters, which the
 * lanes bring: ISA, MOST_QUERIES. */
#ifndef TERSE_BACKEND_CPU_KERNELS_PQ_EACH_GROUP_H
#define TERSE_BACKEND_CPU_KERNELS_PQ_EACH_GROUP_H

#include "backend/cpu/kernels/compiler.h"

#include <stddef.h>

/* A specialisation takes the object that is read, and the queries or weights; it writes the result to `out`. */
typedef void special_pq(const void *what, const float *in, float *out);

/* clang-format off */
#define SPECIAL_PQ(name, number) \
    static __attribute__((noinline)) void PASTE(name##_##number, ISA)(const void *what, const float *in, float *out) { \
        name(SMALLER(number, MOST_QUERIES), what, in, out); \
    }
#define EACH_PQ(name) \
    SPECIAL_PQ(name, 1) SPECIAL_PQ(name, 2) SPECIAL_PQ(name, 3) SPECIAL_PQ(name, 4) \
    SPECIAL_PQ(name, 5) SPECIAL_PQ(name, 6) SPECIAL_PQ(name, 7) SPECIAL_PQ(name, 8) \
    static special_pq *const name##_of[] = {PASTE(name##_1, ISA), PASTE(name##_2, ISA), PASTE(name##_3, ISA), PASTE(name##_4, ISA), \
                                            PASTE(name##_5, ISA), PASTE(name##_6, ISA), PASTE(name##_7, ISA), PASTE(name##_8, ISA)};
/* clang-format on */

/* Does what serve() in sums_template.h does: it makes passes as even as they can be. */
INLINE void serve_pq(special_pq *const *of, const void *what, const float *in, size_t in_row, size_t G, float *out,
                     size_t out_row) {
    for (size_t passes = (G + MOST_QUERIES - 1) / MOST_QUERIES; passes > 0; passes--) {
        size_t share = G / passes;
        of[share - 1](what, in, out);
        in += share * in_row;
        out += share * out_row;
        G -= share;
    }
}

#endif
