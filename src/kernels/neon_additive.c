/* CommVQ's values with NEON (AArch64); tallies are the scalar ones. */
#include "kernels/kernels.h"
#include "kernels/neon_lanes.h"

static inline vec vec_minus_size(vec a, vec b) { return vsubq_f32(a, vabsq_f32(b)); }

static inline vec vec_tag(vec x, const uint32_t *places) {
    uint32x4_t keep = vdupq_n_u32(~(uint32_t)(ADDITIVE_MOST_CODES - 1));
    return vreinterpretq_f32_u32(vorrq_u32(vandq_u32(vreinterpretq_u32_f32(x), keep), vld1q_u32(places)));
}

static inline vec vec_least(vec a, vec b) { return vminnmq_f32(a, b); }
static inline float vec_least_lane(vec a) { return vminnmvq_f32(a); }

#include "kernels/additive_template.h"
