/* Scores and accumulates f16 with AVX-512. */
#include "backend/cpu/kernels/lanes/avx512.h"

#include "backend/cpu/kernels/scaled/f16_template.h"
