/* Score and mix with AVX2, FMA and F16C. */
#include "kernels/avx2_lanes.h"

#include "kernels/cache_template.h"
#include "kernels/codes_template.h"
