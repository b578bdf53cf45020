/* Declares the functions that fill the tables of the transform kernels, for each instruction set. */
#ifndef TERSE_BACKEND_CPU_KERNELS_TRANSFORM_INIT_H
#define TERSE_BACKEND_CPU_KERNELS_TRANSFORM_INIT_H

#include "backend/cpu/kernels/transform/ops.h"

void transform_init_scalar(struct transform_ops *ops);
void transform_init_avx2(struct transform_ops *ops);
void transform_init_avxvnni(struct transform_ops *ops);
void transform_init_avx512(struct transform_ops *ops);
void transform_init_neon(struct transform_ops *ops);

#endif
