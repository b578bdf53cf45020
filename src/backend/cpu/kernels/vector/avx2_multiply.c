/* Small matrix products with AVX2. */
#include "backend/cpu/kernels/lanes/avx2.h"

#define MULTIPLY_VECS 2
#include "backend/cpu/kernels/vector/multiply_template.h"

void vector_init_avx2_multiply(struct vector_ops *ops) { ops->multiply = multiply_avx2; }
