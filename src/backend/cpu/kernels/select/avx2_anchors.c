/* Computes AnTKV's anchor scores with AVX2 and FMA. */
#include "backend/cpu/kernels/lanes/avx2.h"

#include "backend/cpu/kernels/select/anchors_template.h"
