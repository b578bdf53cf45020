/* Score and mix of f16, and sums of bytes, with AVX2, FMA and F16C. */
#include "kernels/avx2_lanes.h"

#include "kernels/cache_template.h"
