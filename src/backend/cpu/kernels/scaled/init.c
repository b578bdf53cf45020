/* Holds the tables of the scaled kernels. */
#include "backend/cpu/kernels/scaled/init.h"

#define OPS scaled_ops
#define SCALAR scaled_init_scalar, scaled_init_scalar_sign
#define AVX2 scaled_init_avx2, scaled_init_avx2_q, scaled_init_avx2_nibbles, scaled_init_avx2_kivi, scaled_init_avx2_sign
#define AVXVNNI scaled_init_avxvnni_q, scaled_init_avxvnni_nibbles
#define AVX512 scaled_init_avx512, scaled_init_avx512_q, scaled_init_avx512_kivi, scaled_init_avx512_sign
#define NEON scaled_init_neon, scaled_init_neon_q, scaled_init_neon_sign
#include "backend/cpu/kernels/init_template.h"
