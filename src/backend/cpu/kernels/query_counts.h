/* Makes a kernel for each number of queries, so that the sums of all of them lie in registers. Its parameters, which the lanes
 * define, are ISA and MOST_QUERIES.
 *
 * A kernel is written once, as an inlined name(G, arguments...); G is a constant in each of the functions made here. These are not
 * inlined: clang keeps the sums in memory where several of them are one function. */
#ifndef TERSE_BACKEND_CPU_KERNELS_QUERY_COUNTS_H
#define TERSE_BACKEND_CPU_KERNELS_QUERY_COUNTS_H

#include "backend/cpu/kernels/compiler.h"

#include <stddef.h>

/* clang-format off */
#define QUERY_COUNT(name, count, parameters, ...) \
    static __attribute__((noinline)) void PASTE(name##_##count, ISA) parameters { name(SMALLER(count, MOST_QUERIES), __VA_ARGS__); }

/* Defines the table name_of[4] of functions `type` with these parameters: name_of[G - 1] calls name(G, arguments...). */
#define QUERY_COUNTS_4(type, name, parameters, ...) \
    QUERY_COUNT(name, 1, parameters, __VA_ARGS__) QUERY_COUNT(name, 2, parameters, __VA_ARGS__) \
    QUERY_COUNT(name, 3, parameters, __VA_ARGS__) QUERY_COUNT(name, 4, parameters, __VA_ARGS__) \
    static type *const name##_of[] = {PASTE(name##_1, ISA), PASTE(name##_2, ISA), PASTE(name##_3, ISA), PASTE(name##_4, ISA)};

/* Does the same for name_of[8]; those past MOST_QUERIES are never called. */
#define QUERY_COUNTS_8(type, name, parameters, ...) \
    QUERY_COUNT(name, 1, parameters, __VA_ARGS__) QUERY_COUNT(name, 2, parameters, __VA_ARGS__) \
    QUERY_COUNT(name, 3, parameters, __VA_ARGS__) QUERY_COUNT(name, 4, parameters, __VA_ARGS__) \
    QUERY_COUNT(name, 5, parameters, __VA_ARGS__) QUERY_COUNT(name, 6, parameters, __VA_ARGS__) \
    QUERY_COUNT(name, 7, parameters, __VA_ARGS__) QUERY_COUNT(name, 8, parameters, __VA_ARGS__) \
    static type *const name##_of[] = {PASTE(name##_1, ISA), PASTE(name##_2, ISA), PASTE(name##_3, ISA), PASTE(name##_4, ISA), \
                                      PASTE(name##_5, ISA), PASTE(name##_6, ISA), PASTE(name##_7, ISA), PASTE(name##_8, ISA)};
/* clang-format on */

/* Returns how many of the G queries that are left the next call takes, at most `most`: all calls take numbers as even as they can be. */
INLINE size_t queries_of_next_call(size_t G, size_t most) { return G / ((G + most - 1) / most); }

#endif
