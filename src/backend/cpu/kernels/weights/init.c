/* Holds the tables of the weights kernels. */
#include "backend/cpu/kernels/weights/init.h"

#define OPS weights_ops
#define SCALAR weights_init_scalar
#define AVX2 weights_init_avx2, weights_init_avx2_tiles
#define AVXVNNI weights_init_avxvnni
#define AVX512 weights_init_avx512, weights_init_avx512_tiles
#define NEON weights_init_neon
#include "backend/cpu/kernels/init_template.h"
