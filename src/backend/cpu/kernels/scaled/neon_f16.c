/* Score and mix with NEON (AArch64). */
#include "backend/cpu/kernels/lanes/neon.h"

#include "backend/cpu/kernels/scaled/f16_template.h"
#include "backend/cpu/kernels/scaled/float_template.h"
