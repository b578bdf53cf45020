/* Holds the tables of the pq kernels. */
#include "backend/cpu/kernels/pq/init.h"

#define OPS pq_ops
#define SCALAR pq_init_scalar, pq_init_scalar_nearest
#define AVX2 pq_init_avx2, pq_init_avx2_nearest
#define AVX512 pq_init_avx512, pq_init_avx512_nearest
#define NEON pq_init_neon, pq_init_neon_nearest
#include "backend/cpu/kernels/init_template.h"
