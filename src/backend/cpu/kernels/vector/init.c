/* The tables of the vector kernels. */
#include "backend/cpu/kernels/vector/init.h"

#define OPS vector_ops
#define SCALAR vector_init_scalar
#define AVX2 vector_init_avx2
#define AVX512 vector_init_avx512
#define NEON vector_init_neon
#include "backend/cpu/kernels/init_template.h"
