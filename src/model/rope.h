/* Applies the rotary position embedding of one head: which channels pair up, how fast each pair rotates.
 *
 * View a head as n_rot/2 complex numbers. Rotation at position t multiplies pair i by exp(j t frequency[i]); it is relative: <R(p)
 * q, R(t) k> depends only on p - t. So a reader may rotate the query instead of the key, and the keys of a page may be rotated by
 * their offsets within the page only. Channels past n_rot pass through. The model builds this from its metadata
 * (model/rope_scaling.c); here it is only applied. Source: Su et al. 2021 (RoFormer), eq. 34; pairings as in GGUF: llama adjacent,
 * qwen half-split. */
#ifndef TERSE_MODEL_ROPE_H
#define TERSE_MODEL_ROPE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum rope_pairing {
    ROPE_ADJACENT,  /* (0,1), (2,3), ... */
    ROPE_HALF_SPLIT /* (i, i + n_rot/2) */
};

struct rope {
    enum rope_pairing pairing;
    uint32_t head_dim;
    uint32_t n_rot;         /* rotated channels, even, at most head_dim; 0: no rotation */
    const float *frequency; /* [n_rot/2] radians per token */
    float magnitude;        /* yarn's attention factor: rotated channels are multiplied by it; 1 otherwise */
};

/* Writes cosine[n_rot/2] and sine[n_rot/2] of position * frequency, right to the last bit of a float for positions up to 1e9; `position`
 * may be negative (the inverse rotation). The magnitude is not in them. */
void rope_angles(const struct rope *rope, int64_t position, float *cosine, float *sine);

/* Rotates rows[n][stride], a head each, in place; all by the same angles. Multiplies by the magnitude for either direction: to
 * rotate rotated rows further or back, pass a rope whose magnitude is 1. */
void rope_rotate(const struct rope *rope, const float *cosine, const float *sine, float *rows, uint32_t n, uint32_t stride);

#ifdef __cplusplus
}
#endif

#endif
