/* Score and mix with AVX-512. */
#include "kernels/avx512_lanes.h"

#include "kernels/cache_template.h"
