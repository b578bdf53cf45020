/* Score and mix of f16, and sums of bytes, with AVX-512. */
#include "kernels/avx512_lanes.h"

#include "kernels/cache_template.h"
