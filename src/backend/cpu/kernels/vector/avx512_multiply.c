/* Small matrix products with AVX-512. */
#include "backend/cpu/kernels/lanes/avx512.h"

#define MULTIPLY_VECS 4
#include "backend/cpu/kernels/vector/multiply_template.h"

void vector_init_avx512_multiply(struct vector_ops *ops) { ops->multiply = multiply_avx512; }
