/* Computes AnTKV's anchor scores with AVX-512. */
#include "backend/cpu/kernels/lanes/avx512.h"

#include "backend/cpu/kernels/select/anchors_template.h"
