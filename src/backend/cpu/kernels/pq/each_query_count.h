/* Makes kernels of pq for each number of queries (kernels/query_counts.h). Its parameters, which the lanes define, are ISA and
 * MOST_QUERIES. */
#ifndef TERSE_BACKEND_CPU_KERNELS_PQ_EACH_QUERY_COUNT_H
#define TERSE_BACKEND_CPU_KERNELS_PQ_EACH_QUERY_COUNT_H

#include "backend/cpu/kernels/query_counts.h"

/* A function for one number of queries takes the object that is read, and the queries or weights; it writes the result to `out`. */
typedef void pq_kernel(const void *what, const float *in, float *out);

/* Defines the table name_of[] of name(G, what, in, out). */
#define PQ_KERNELS(name) QUERY_COUNTS_8(pq_kernel, name, (const void *what, const float *in, float *out), what, in, out)

/* Calls of[n - 1] with in[G][in_row] and out[G][out_row], n queries at a time. */
INLINE void call_pq_kernels(pq_kernel *const *of, const void *what, const float *in, size_t in_row, size_t G, float *out,
                            size_t out_row) {
    while (G > 0) {
        size_t n = queries_of_next_call(G, MOST_QUERIES);
        of[n - 1](what, in, out);
        in += n * in_row;
        out += n * out_row;
        G -= n;
    }
}

#endif
