/* Declares the functions that fill the tables of the scaled kernels, for each instruction set. */
#ifndef TERSE_BACKEND_CPU_KERNELS_SCALED_INIT_H
#define TERSE_BACKEND_CPU_KERNELS_SCALED_INIT_H

#include "backend/cpu/kernels/scaled/ops.h"

void scaled_init_scalar(struct scaled_ops *ops);
void scaled_init_scalar_sign(struct scaled_ops *ops);
void scaled_init_avx2(struct scaled_ops *ops);
void scaled_init_avx2_q(struct scaled_ops *ops);
void scaled_init_avx2_nibbles(struct scaled_ops *ops);
void scaled_init_avx2_kivi(struct scaled_ops *ops);
void scaled_init_avx2_sign(struct scaled_ops *ops);
void scaled_init_avxvnni_q(struct scaled_ops *ops);
void scaled_init_avxvnni_nibbles(struct scaled_ops *ops);
void scaled_init_avx512(struct scaled_ops *ops);
void scaled_init_avx512_q(struct scaled_ops *ops);
void scaled_init_avx512_kivi(struct scaled_ops *ops);
void scaled_init_avx512_sign(struct scaled_ops *ops);
void scaled_init_neon(struct scaled_ops *ops);
void scaled_init_neon_q(struct scaled_ops *ops);
void scaled_init_neon_sign(struct scaled_ops *ops);

#endif
