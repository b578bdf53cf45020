/* Says where the parts lie that attention over pages of the codec transform leaves in memory. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_PARTS_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_PARTS_CUH

#include "backend/cuda/kv/attend_common.cuh"

/* A transform_parts says where the parts of a row and KV head lie, float4 [part][G][HD / 4]. Part 0 is that of the rows of halves, by
 * channel. The others are by component, the same whatever the rate of their pages. */
template <int HD> struct transform_parts {
    float4 *sums;
    float4 *states; /* [part][G]: ATTEND_STATE_FLOATS */
    uint32_t group;
    ATTEND_INLINE float4 *of(uint32_t part, uint32_t query) const { return sums + ((size_t)part * group + query) * (HD / 4); }
};

template <int HD> ATTEND_INLINE transform_parts<HD> transform_parts_of(const struct attend_decode &a, const struct share &s) {
    const size_t each = a.splits + 1, all = (size_t)a.n_rows * a.heads.kv_heads * each,
                 first = ((size_t)s.row * a.heads.kv_heads + s.head) * each;
    return {reinterpret_cast<float4 *>(a.parts + first * s.group * HD),
            reinterpret_cast<float4 *>(a.parts + all * s.group * HD) + first * s.group, s.group};
}

ATTEND_INLINE void add_scaled(float4 &to, float factor, const float4 &x) {
    to.x += factor * x.x, to.y += factor * x.y, to.z += factor * x.z, to.w += factor * x.w;
}

#endif
