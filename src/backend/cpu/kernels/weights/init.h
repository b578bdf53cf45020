/* Declares the functions that fill the tables of the weights kernels, for each instruction set. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_INIT_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_INIT_H

#include "backend/cpu/kernels/weights/ops.h"

void weights_init_scalar(struct weights_ops *ops);
void weights_init_avx2(struct weights_ops *ops);
void weights_init_avx2_tiles(struct weights_ops *ops);
void weights_init_avxvnni(struct weights_ops *ops);
void weights_init_avx512(struct weights_ops *ops);
void weights_init_avx512_tiles(struct weights_ops *ops);
void weights_init_neon(struct weights_ops *ops);

#endif
