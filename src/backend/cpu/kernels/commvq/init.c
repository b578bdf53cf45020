/* Holds the tables of the commvq kernels. */
#include "backend/cpu/kernels/commvq/init.h"

#define OPS commvq_ops
#define SCALAR commvq_init_scalar, commvq_init_scalar_additive
#define AVX2 commvq_init_avx2, commvq_init_avx2_additive
#define AVX512 commvq_init_avx512, commvq_init_avx512_additive
#define NEON commvq_init_neon, commvq_init_neon_additive
#include "backend/cpu/kernels/init_template.h"
