/* Computes AnTKV's anchor scores with NEON (AArch64). */
#include "backend/cpu/kernels/lanes/neon.h"

#include "backend/cpu/kernels/select/anchors_template.h"
