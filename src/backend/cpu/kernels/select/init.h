/* Declares the functions that fill the tables of the select kernels, for each instruction set. */
#ifndef TERSE_BACKEND_CPU_KERNELS_SELECT_INIT_H
#define TERSE_BACKEND_CPU_KERNELS_SELECT_INIT_H

#include "backend/cpu/kernels/select/ops.h"

void select_init_scalar(struct select_ops *ops);
void select_init_avx2(struct select_ops *ops);
void select_init_avx2_anchors(struct select_ops *ops);
void select_init_avx512(struct select_ops *ops);
void select_init_avx512_anchors(struct select_ops *ops);
void select_init_neon(struct select_ops *ops);
void select_init_neon_anchors(struct select_ops *ops);

#endif
