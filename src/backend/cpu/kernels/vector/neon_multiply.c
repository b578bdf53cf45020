/* Small matrix products with NEON. */
#include "backend/cpu/kernels/lanes/neon.h"

#define MULTIPLY_VECS 4
#include "backend/cpu/kernels/vector/multiply_template.h"

void vector_init_neon_multiply(struct vector_ops *ops) { ops->multiply = multiply_neon; }
