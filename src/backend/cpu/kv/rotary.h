/* Rotates the rows of a step (RoPE): two small tables give the angles of any position, so that nothing as long as the context is
 * kept.
 *
 * Positions come in runs of 64, the slots of a segment (segment.h): angle(base + t) = angle(base) + angle(t), t in 0..63. The
 * angles of the slots are a constant table; those of the bases are computed once per step, in double precision, and shared by all
 * layers and heads. */
#ifndef TERSE_BACKEND_CPU_KV_ROTARY_H
#define TERSE_BACKEND_CPU_KV_ROTARY_H

#include "base/status.h"
#include "format/page_layout.h"
#include "model/rope.h"

#include <stddef.h>

struct rotary {
    const struct rope *rope;
    size_t pairs;         /* n_rot / 2 */
    float *slots;         /* [64][cosine, sine][pairs] of positions 0..63 */
    float *by_pair;       /* [cosine, sine][pairs][64] of the same, times the magnitude: for keys by channel */
    int16_t *by_pair_i16; /* [pairs][cosine, sine][64] of the same without the magnitude, times 32767 */
    float *bases;         /* [capacity][cosine, sine][pairs] */
    int64_t *positions;   /* [capacity] of the bases */
    size_t capacity;
};

enum terse_status rotary_init(struct rotary *rotary, const struct rope *rope, struct terse_error *error);
void rotary_destroy(struct rotary *rotary);

/* Reserves memory for `n` bases. */
enum terse_status rotary_reserve(struct rotary *rotary, size_t n, struct terse_error *error);
/* Sets the position of a base. It costs nothing where the base is at this position already. */
void rotary_set_base(struct rotary *rotary, size_t base, int64_t position);

/* Rotates n rows, `stride` floats apart, as each of the following does: by the position of `base` plus slot t. */
void rotary_rotate(const struct rotary *rotary, size_t base, size_t t, float *rows, uint32_t n, uint32_t stride);
/* Rotates by any position, which needs no base. */
void rotary_rotate_at(const struct rotary *rotary, int64_t position, float *rows, uint32_t n, uint32_t stride);
/* Undoes a rotation by `position`, magnitude included. */
void rotary_undo(const struct rotary *rotary, int64_t position, float *rows, uint32_t n, uint32_t stride);
/* Rotates rows that are rotated already, further by `position`. */
void rotary_advance(const struct rotary *rotary, int64_t position, float *rows, uint32_t n, uint32_t stride);
/* Rotates rows that are rotated already, further by the position of `base`. */
void rotary_advance_base(const struct rotary *rotary, size_t base, float *rows, uint32_t n, uint32_t stride);
/* Rotates rows that are rotated already back by the position of `base`. */
void rotary_rotate_back(const struct rotary *rotary, size_t base, float *rows, uint32_t n, uint32_t stride);

#endif
