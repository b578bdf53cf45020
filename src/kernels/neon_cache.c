/* Score and mix with NEON (AArch64). */
#include "kernels/neon_lanes.h"

#include "kernels/cache_template.h"
#include "kernels/codes_template.h"
