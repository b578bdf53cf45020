/* Small matrix products and rotations with NEON. */
#include "backend/cpu/kernels/lanes/neon.h"

#define MULTIPLY_VECS 4
#include "backend/cpu/kernels/vector/multiply_template.h"

/* Even lanes take the difference, odd ones the sum. */
INLINE vec rotate_adjacent(vec x, const float *cosine, const float *sine) {
    const vec signs = {-1, 1, -1, 1};
    float32x2_t c = vld1_f32(cosine), s = vld1_f32(sine);
    vec c2 = vcombine_f32(vzip1_f32(c, c), vzip2_f32(c, c)), s2 = vcombine_f32(vzip1_f32(s, s), vzip2_f32(s, s));
    return vec_fma(vrev64q_f32(x), vec_mul(s2, signs), vec_mul(x, c2));
}

#include "backend/cpu/kernels/vector/rotate_template.h"

void vector_init_neon_multiply(struct vector_ops *ops) {
    ops->multiply = multiply_neon;
    ops->rotate = rotate_neon;
}
