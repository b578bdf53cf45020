/* Holds the tables of the vector kernels. */
#include "backend/cpu/kernels/vector/init.h"

#define OPS vector_ops
#define SCALAR vector_init_scalar
#define AVX2 vector_init_avx2, vector_init_avx2_multiply
#define AVX512 vector_init_avx512, vector_init_avx512_multiply
#define NEON vector_init_neon, vector_init_neon_multiply
#include "backend/cpu/kernels/init_template.h"
