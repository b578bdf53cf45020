/* Scores and accumulates f16 with AVX2, FMA and F16C. */
#include "backend/cpu/kernels/lanes/avx2.h"

#include "backend/cpu/kernels/scaled/f16_template.h"
