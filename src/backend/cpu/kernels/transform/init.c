/* Holds the tables of the transform kernels. */
#include "backend/cpu/kernels/transform/init.h"

#define OPS transform_ops
#define SCALAR transform_init_scalar, transform_init_scalar_path
#define AVX2 transform_init_avx2, transform_init_avx2_path
#define AVXVNNI transform_init_avxvnni
#define AVX512 transform_init_avx512, transform_init_avx512_path
#define NEON transform_init_neon, transform_init_neon_path
#include "backend/cpu/kernels/init_template.h"
