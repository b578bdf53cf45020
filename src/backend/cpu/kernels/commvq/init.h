/* Declares the functions that fill the tables of the commvq kernels, for each instruction set. */
#ifndef TERSE_BACKEND_CPU_KERNELS_COMMVQ_INIT_H
#define TERSE_BACKEND_CPU_KERNELS_COMMVQ_INIT_H

#include "backend/cpu/kernels/commvq/ops.h"

void commvq_init_scalar(struct commvq_ops *ops);
void commvq_init_scalar_additive(struct commvq_ops *ops);
void commvq_init_avx2(struct commvq_ops *ops);
void commvq_init_avx2_additive(struct commvq_ops *ops);
void commvq_init_avx512(struct commvq_ops *ops);
void commvq_init_avx512_additive(struct commvq_ops *ops);
void commvq_init_neon(struct commvq_ops *ops);
void commvq_init_neon_additive(struct commvq_ops *ops);

#endif
