/* Computes small matrix products and rotations with NEON. */
#include "backend/cpu/kernels/lanes/neon.h"

#include <math.h>
#include <string.h>

#define MULTIPLY_VECS 4
#include "backend/cpu/kernels/vector/multiply_template.h"

typedef int32x4_t ints;
static inline ints ints_zero(void) { return vdupq_n_s32(0); }
static inline vec ints_to_vec(ints x) { return vcvtq_f32_s32(x); }
static inline ints ints_add_pairs(ints sums, const int16_t *row, const int16_t *b) {
    int16x4x2_t columns = vld2_s16(b);
    return vmlal_n_s16(vmlal_n_s16(sums, columns.val[0], row[0]), columns.val[1], row[1]);
}
#define MULTIPLY_I16_VECS 4
#include "backend/cpu/kernels/vector/multiply_i16_template.h"

/* Rotates neighbours: even lanes take the difference, odd ones the sum. */
INLINE vec rotate_adjacent(vec x, const float *cosine, const float *sine) {
    const vec signs = {-1, 1, -1, 1};
    float32x2_t c = vld1_f32(cosine), s = vld1_f32(sine);
    vec c2 = vcombine_f32(vzip1_f32(c, c), vzip2_f32(c, c)), s2 = vcombine_f32(vzip1_f32(s, s), vzip2_f32(s, s));
    return vec_fma(vrev64q_f32(x), vec_mul(s2, signs), vec_mul(x, c2));
}

#include "backend/cpu/kernels/vector/rotate_template.h"

static inline vec vec_reverse(vec x) {
    vec pairs = vrev64q_f32(x);
    return vextq_f32(pairs, pairs, 2);
}
static inline void sum_four(const vec *x, float *to) { vst1q_f32(to, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]))); }
#define POSITION_ROWS 4
#define POSITION_VECS 2
#include "backend/cpu/kernels/vector/positions_template.h"

void vector_init_neon_multiply(struct vector_ops *ops) {
    ops->multiply = multiply_neon;
    ops->multiply_i16 = multiply_i16_neon;
    ops->rotate = rotate_neon;
    ops->score_positions = score_positions_neon;
    ops->score_position_slots = score_position_slots_neon;
}
