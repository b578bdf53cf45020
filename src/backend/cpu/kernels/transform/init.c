/* Holds the tables of the transform kernels. */
#include "backend/cpu/kernels/transform/init.h"

#define OPS transform_ops
#define SCALAR transform_init_scalar
#define AVX2 transform_init_avx2
#define AVXVNNI transform_init_avxvnni
#define AVX512 transform_init_avx512
#define NEON transform_init_neon
#include "backend/cpu/kernels/init_template.h"
