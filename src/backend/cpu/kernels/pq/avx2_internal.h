/* Declares functions of the AVX2 tier where p->rows_i16: keys by 16-bit centroids (avx2_rows.c). */
#ifndef TERSE_BACKEND_CPU_KERNELS_PQ_AVX2_INTERNAL_H
#define TERSE_BACKEND_CPU_KERNELS_PQ_AVX2_INTERNAL_H

#include "backend/cpu/kernels/pq/pq.h"

void pq_avx2_quantize_query(const struct pq_codebook *p, const float *q, size_t G, float *fixed);
void pq_avx2_score_i16(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits);
void pq_avx2_score_rows(const struct pq_codebook *p, const float *q, size_t G, const void *page, float *logits);

#endif
