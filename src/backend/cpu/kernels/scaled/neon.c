/* Scores and accumulates f16, q8_0, q4_0 and kivi with NEON (AArch64). */
#include "backend/cpu/kernels/lanes/neon.h"

#include "backend/cpu/kernels/scaled/f16_template.h"
#include "backend/cpu/kernels/scaled/float_template.h"
