/* Declares the functions that fill the tables of the pq kernels, for each instruction set. */
#ifndef TERSE_BACKEND_CPU_KERNELS_PQ_INIT_H
#define TERSE_BACKEND_CPU_KERNELS_PQ_INIT_H

#include "backend/cpu/kernels/pq/ops.h"

void pq_init_scalar(struct pq_ops *ops);
void pq_init_scalar_nearest(struct pq_ops *ops);
void pq_init_avx2(struct pq_ops *ops);
void pq_init_avx2_nearest(struct pq_ops *ops);
void pq_init_avx512(struct pq_ops *ops);
void pq_init_avx512_nearest(struct pq_ops *ops);
void pq_init_neon(struct pq_ops *ops);
void pq_init_neon_nearest(struct pq_ops *ops);

#endif
