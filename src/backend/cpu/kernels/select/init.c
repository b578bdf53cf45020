/* Holds the tables of the select kernels. */
#include "backend/cpu/kernels/select/init.h"

#define OPS select_ops
#define SCALAR select_init_scalar
#define AVX2 select_init_avx2, select_init_avx2_anchors
#define AVX512 select_init_avx512, select_init_avx512_anchors
#define NEON select_init_neon, select_init_neon_anchors
#include "backend/cpu/kernels/init_template.h"
