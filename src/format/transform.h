/* Declares the format of the codec transform, which takes a row of a head apart into components, each with its own number of bits.
 *
 *     row = mean + gain * sum_c y_c size_c basis_c          c = 0 .. head_dim - 1, falling in size
 *
 * A key's row is the key less its mean before rotation (kv/pre_rope.h), which the parameters hold for readers.
 *
 * The basis is that of the Karhunen-Loeve transform in the metric in which errors matter (transform_fit.h): its rows' coefficients
 * z = y size are uncorrelated, and |z|^2 is what an error costs. So each component is quantized by itself, by the uniform quantizer
 * that is best for a Gaussian of variance 1 (Max 1960, table II), and bits go where they save most: reverse water-filling over all
 * components of a model (Gersho and Gray 1992, chapters 8 and 12; Cover and Thomas, section 10.3). Components of 0 bits are not
 * stored.
 *
 * Four components, neighbours in size, have the same number of bits: a *quad*, of 0 to 6 or 8 bits. A component's code is an integer,
 * and its level is linear in it, so that readers multiply codes as they are. A code's bits are stored in one or two *planes* of at
 * most 4 bits each, of which each adds its own part of the level. Planes lie in *nibbles*: four bits for each of the four components
 * of a quad, filled by a plane of 4 bits, one of 3 and one of 1, or planes of 2 and of 1.
 *
 * format/page_layout.h says how nibbles lie in a page. All that a reader must know of a layer, KV head and side is its layout,
 * below. It is plain C, for C and CUDA C++ alike. */
#ifndef TERSE_FORMAT_TRANSFORM_H
#define TERSE_FORMAT_TRANSFORM_H

#include "format/shape.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRANSFORM_QUAD 4     /* components that share a number of bits */
#define TRANSFORM_BITS_MAX 8 /* of a component */
#define TRANSFORM_NIBBLE_BITS 4
#define TRANSFORM_QUADS_MAX (CODEC_HEAD_DIM_MAX / TRANSFORM_QUAD)
#define TRANSFORM_PLANES_MAX (2 * TRANSFORM_QUADS_MAX)

/* ---- Levels */

/* This is the mean squared error of a Gaussian of variance 1 in 0 to TRANSFORM_BITS_MAX bits. There are no quads of 7 bits, whose number
 * stands between its neighbours'. */
extern const float transform_distortion[TRANSFORM_BITS_MAX + 1];

/* Levels reach so much further, in components of 0 to TRANSFORM_BITS_MAX bits, than is best for a Gaussian: components of real models
 * have longer tails (docs/reports/transform-second.md has by how much, and what a further reach costs and gains).
 * Bits are shared as if they were Gaussian. */
extern const float transform_reach[TRANSFORM_BITS_MAX + 1];

/* A row may be coded as if it were so many times as large, with the gain that this asks for, where levels would otherwise cut off
 * more of it than all its components then err by: values of tokens on which attention rests are nearly zero, so that such a row less
 * the mean lies in a direction in which others hardly differ, 10 to 15 times a component's size. */
#define TRANSFORM_ROW_SCALES 5
extern const float transform_row_scale[TRANSFORM_ROW_SCALES];
/* Then each row is quantized as if it were so many times as large, and coded as that with which it errs least: a row has few components,
 * and levels at equal steps happen to suit them better at one size than at another (docs/reports/transform-second.md). */
#define TRANSFORM_ROW_TRIALS 7
extern const float transform_row_trial[TRANSFORM_ROW_TRIALS];

/* A row of values may be coded less no mean: row = gain * sum_c y_c size_c basis_c. Tokens on which attention rests have values that
 * are nearly zero, and what is coded would then be the mean, for which components of few bits have no room, times a weight that may
 * be nearly 1. So the first codes of gains say that the mean is left out; those gains are halves, quarters and so on of the rows'. */
#define TRANSFORM_NO_MEAN_GAINS 8
#define TRANSFORM_MUCH_SMALLER \
    4 /* that is tried where the square of the row is smaller, by so much, than that of the row less the mean */

/* ---- Layout */

/* A plane holds some bits of the codes of a quad. With code = nibble >> shift & transform_most(bits), its integer level is
 * 2 code - transform_most(bits), and it adds scale times that to the level of a component of variance 1. */
struct transform_plane {
    uint8_t quad;   /* of components 4 quad .. 4 quad + 3 */
    uint8_t nibble; /* that it lies in */
    uint8_t shift, bits;
    float scale;
};

/* Returns the largest code of so many bits. */
static inline unsigned transform_most(unsigned bits) { return (1u << bits) - 1; }

/* A layout describes the stored components of a row. Its planes fall in size, so that neighbours are alike; a quad's first one has
 * the upper bits. */
struct transform_layout {
    uint16_t planes, quads; /* planes; quads with any bits: the first ones */
    uint16_t nibbles;       /* of 16 bits for each token */
    uint8_t quad_bits[TRANSFORM_QUADS_MAX];
    struct transform_plane plane[TRANSFORM_PLANES_MAX]; /* zeros from `planes` on */
};

/* Makes the layout of quad_bits[head_dim / 4], which do not rise and of which none is 7. Where their sum is no multiple of 4, a part of
 * the last nibble is unused. */
void transform_layout_set(const uint8_t *quad_bits, uint32_t head_dim, struct transform_layout *layout);

/* So many bits of a key rank its token (index_components). With 3/4 of a bit for each channel, of which terse-2 has 2, selection
 * misses a third more (KL divergence of 10 % read 0.0075), with all bits hardly less (0.0057 instead of 0.0059). */
#define TRANSFORM_RANK_BITS(hd) ((hd)*3 / 2)

/* Makes a layout for readers of the first components alone: its first planes, as many as have `bits` bits of a token, or all; it
 * has no quad_bits. Such readers read a page up to the last nibble of these planes. */
void transform_layout_first(const struct transform_layout *layout, unsigned bits, struct transform_layout *first);

/* ---- Parameters: floats of one layer, KV head and side, as a codebook keeps them */

struct transform_parameters {
    const float *mean;          /* [head_dim] */
    const float *pre_rope_mean; /* [head_dim], zeros of values */
    const float
        *size; /* [head_dim], not negative, falling: root mean square of a component where rows have the root mean square 1 */
    const float *basis; /* [head_dim][head_dim], a component's direction each; regular */
    float gain_least, gain_most;
    float gain;     /* root mean square of the rows' */
    float residual; /* log2 of the residual stream's mean square in the layer where the importance was found; 0: it is not known */
    float importance; /* log2 of how much a unit of squared error matters in a row of gain 1, up to what all sets have in common */
};
#define TRANSFORM_SINGLE_FLOATS 5 /* these come last: gain_least and those below it */
size_t transform_parameter_floats(uint32_t head_dim);
/* Returns where the parameters lie in floats[transform_parameter_floats]. */
struct transform_parameters transform_parameters_at(const float *floats, uint32_t head_dim);
/* Returns TERSE_E_FORMAT unless the parameters are as described; the basis is not inverted here. */
enum terse_status transform_check_parameters(const float *floats, uint32_t head_dim, struct terse_error *error);

/* ---- Fitted: the rows of a sequence give one layer, KV head and side a mean, sizes, basis and range of gains in place of a
 * codebook's. They are a record in memory and in a saved state: floats, then the basis in 16-bit integers, of which a component's
 * unit is a 32767th of its norm. */

#define TRANSFORM_STRIP 16 /* components whose integers lie together */

struct transform_fitted {
    const float *mean;          /* [head_dim] */
    const float *pre_rope_mean; /* [head_dim], zeros of values */
    const float *size;          /* [head_dim], not negative, falling */
    const float *unit;          /* [head_dim] of each component's integers */
    float gain_least, gain_most, gain;
    const int16_t *basis; /* [component / 16][channel / 2][component % 16][channel % 2] */
};
#define TRANSFORM_RECORD_BYTES(head_dim) \
    ((4 * (size_t)(head_dim) + 3) * sizeof(float) + (size_t)(head_dim) * (head_dim) * sizeof(int16_t))
/* Records of several layers, KV heads, sides or slices lie so far apart. */
#define TRANSFORM_RECORD_STRIDE(head_dim) ((TRANSFORM_RECORD_BYTES(head_dim) + 63) / 64 * 64)
/* Returns where the numbers lie in a record. */
struct transform_fitted transform_fitted_at(const void *record, uint32_t head_dim);
/* Return the step of gains, and what a gain would be whose code is 0: gain = zero + code * step from code TRANSFORM_NO_MEAN_GAINS on, whose
 * gain is gain_least. Code 255 is gain_most. */
static inline float transform_gain_step(const struct transform_fitted *fitted) {
    return (fitted->gain_most - fitted->gain_least) / (255 - TRANSFORM_NO_MEAN_GAINS);
}
static inline float transform_gain_zero(const struct transform_fitted *fitted) {
    return fitted->gain_least - TRANSFORM_NO_MEAN_GAINS * transform_gain_step(fitted);
}
/* The gain of a row that is coded less no mean, where rows have the gain `gain` (a macro, for kernels too). */
#define TRANSFORM_NO_MEAN_GAIN(gain, code) ((gain) / (float)(2u << (code)))
/* Writes parameters into a record, all but their importance; the basis is rounded. */
void transform_record_set(struct transform_parameters parameters, uint32_t head_dim, void *record);
/* Reads the integers of a component, [head_dim]. */
void transform_record_integers(const struct transform_fitted *fitted, uint32_t head_dim, size_t component, int16_t *integers);
/* Reads basis[components][head_dim] of the first components, a multiple of TRANSFORM_STRIP. */
void transform_record_basis(const struct transform_fitted *fitted, uint32_t head_dim, size_t components, float *basis);

/* ---- Bits shared over a model */

/* A share is one layer, KV head and side among those that share bits. */
struct transform_share {
    float importance;   /* as above */
    const float *size;  /* [head_dim] */
    uint8_t *quad_bits; /* [head_dim / 4], written */
};
/* Gives `rate` bits per component, on average over shares[n], to where they save most: a quad gets its b-th bit where 2^importance
 * size^2 (distortion[b - 1] - distortion[b]) is largest, under the condition that the bits of each share's quads fill whole
 * nibbles: their sum is a multiple of 4. From 6 bits a quad gets two at once. It spends rate * n * head_dim bits, rounded down to a
 * nibble's 16, unless components of size 0 and quads of TRANSFORM_BITS_MAX cannot take them all. It is deterministic. TERSE_E_MEMORY. */
enum terse_status transform_share_bits(const struct transform_share *shares, size_t n, uint32_t head_dim, double rate,
                                       struct terse_error *error);

/* Returns the bytes of a page of each of n shares together when these shared bits at this rate and no share's quads are full. */
uint64_t transform_shared_page_bytes(size_t n, uint32_t head_dim, double rate);

#ifdef __cplusplus
}
#endif

#endif
