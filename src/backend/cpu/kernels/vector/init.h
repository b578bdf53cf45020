/* Declares the functions that fill the tables of the vector kernels, for each instruction set. */
#ifndef TERSE_BACKEND_CPU_KERNELS_VECTOR_INIT_H
#define TERSE_BACKEND_CPU_KERNELS_VECTOR_INIT_H

#include "backend/cpu/kernels/vector/ops.h"

void vector_init_scalar(struct vector_ops *ops);
void vector_init_avx2(struct vector_ops *ops);
void vector_init_avx512(struct vector_ops *ops);
void vector_init_neon(struct vector_ops *ops);
void vector_init_avx2_multiply(struct vector_ops *ops);
void vector_init_avx512_multiply(struct vector_ops *ops);
void vector_init_neon_multiply(struct vector_ops *ops);

#endif
