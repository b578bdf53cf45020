/* The codec transform, its format: a row of a head is taken apart into components, of which each has its own number of bits.
 *
 *     row = mean + gain * sum_c y_c size_c basis_c          c = 0 .. head_dim - 1, falling in size
 *
 * The basis is of the Karhunen-Loeve transform in the metric in which errors matter (train/transform_fit.h): its rows' coefficients
 * z = y size are uncorrelated, and |z|^2 is what an error costs. So each component is quantized by itself, with the levels that are best
 * for a Gaussian of variance 1, and bits go where they save most: reverse water-filling over all components of a model (Gersho and
 * Gray 1992, chapters 8 and 12; Cover and Thomas, section 10.3). Components of 0 bits are not stored.
 *
 * Four components, neighbours in size, have the same number of bits: a *quad*. A quad of up to 4 bits is one *plane* of codes; one
 * of 5 to 8 bits is two, a plane of the upper 4 bits and one of the others, of which each contributes its own level. How planes
 * lie in a page is format/page_layout.h. All that a reader must know of a layer, KV head and side is its layout, below. Plain C, for
 * C and CUDA C++ alike.
 */
#ifndef TERSE_FORMAT_TRANSFORM_H
#define TERSE_FORMAT_TRANSFORM_H

#include "format/shape.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRANSFORM_QUAD 4       /* components that share a number of bits */
#define TRANSFORM_BITS_MAX 8   /* of a component */
#define TRANSFORM_PLANE_BITS 4 /* of a plane, at most */
#define TRANSFORM_QUADS_MAX (CODEC_HEAD_DIM_MAX / TRANSFORM_QUAD)
#define TRANSFORM_PLANES_MAX (2 * TRANSFORM_QUADS_MAX)

/* ---- Levels
 *
 * A plane's level is an integer of at most 20 in magnitude times the plane's scale: so small that readers without wide products sum those
 * of several planes in 16 bits. Planes of quads of up to 4 bits have nearly Lloyd and Max's levels of a Gaussian, planes of the others
 * equally spaced ones, so that two of them add up to a uniform quantizer. */

enum transform_table {
    TRANSFORM_GAUSSIAN_1,
    TRANSFORM_GAUSSIAN_2,
    TRANSFORM_GAUSSIAN_3,
    TRANSFORM_GAUSSIAN_4,
    TRANSFORM_UNIFORM_1,
    TRANSFORM_UNIFORM_2,
    TRANSFORM_UNIFORM_3,
    TRANSFORM_UNIFORM_4,
    TRANSFORM_TABLES
};
#define TRANSFORM_LEVEL_MAX 20
/* [table][code], rising, the first one the last one's negative; codes that a table does not have repeat its last level. */
extern const int8_t transform_levels[TRANSFORM_TABLES][16];

/* Mean squared error of a Gaussian of variance 1 in so many bits, 0 to TRANSFORM_BITS_MAX. */
extern const float transform_distortion[TRANSFORM_BITS_MAX + 1];

/* ---- Layout */

struct transform_plane {
    uint8_t quad;  /* of components 4 quad .. 4 quad + 3 */
    uint8_t bits;  /* of a code, 1 to TRANSFORM_PLANE_BITS */
    uint8_t table; /* enum transform_table; its levels have `bits` bits */
    uint8_t upper; /* 1: the upper plane of two, which the quantizer sets first */
    float scale;   /* level = integer * scale, of a component of variance 1 */
};

/* The components of a row that are stored, planes in the order of the page: like sizes are neighbours. */
struct transform_layout {
    uint16_t planes, quads; /* planes; quads with any bits: the first ones */
    uint16_t bits;          /* of a token's codes, gains not counted: 4 times the sum over planes */
    uint8_t quad_bits[TRANSFORM_QUADS_MAX];
    struct transform_plane plane[TRANSFORM_PLANES_MAX]; /* zeros from `planes` on */
};

/* The layout of quad_bits[head_dim / 4], which do not rise. */
void transform_layout_set(const uint8_t *quad_bits, uint32_t head_dim, struct transform_layout *layout);

/* Its first planes, as many as make up `bits` bits of a token or all: a layout for readers of components, which has no quad_bits. */
void transform_layout_first(const struct transform_layout *layout, unsigned bits, struct transform_layout *first);

/* ---- Parameters: floats of one layer, KV head and side, as a codebook keeps them */

struct transform_parameters {
    const float *mean; /* [head_dim] */
    const float
        *size; /* [head_dim], not negative, falling: root mean square of a component where rows have the root mean square 1 */
    const float *basis;          /* [head_dim][head_dim], a component's direction each; regular */
    float gain_least, gain_most; /* gain = least + code * (most - least) / 255 */
    float
        importance; /* log2 of how much a unit of squared error matters: Fisher information of a row of gain 1, mean over components */
};
size_t transform_parameter_floats(uint32_t head_dim);
/* Where they lie in floats[transform_parameter_floats]. */
struct transform_parameters transform_parameters_at(const float *floats, uint32_t head_dim);
/* TERSE_E_FORMAT unless they are as described; the basis is not inverted here. */
enum terse_status transform_check_parameters(const float *floats, uint32_t head_dim, struct terse_error *error);

/* ---- Fitted: what the rows of a sequence say in place of a set's own mean, sizes and range of gains */

struct transform_fitted {
    const float *mean, *size; /* [head_dim]; sizes are not negative, and need not fall */
    float gain_least, gain_most;
};
size_t transform_fitted_floats(uint32_t head_dim);
/* Where they lie in floats[transform_fitted_floats]: in this order. */
struct transform_fitted transform_fitted_at(const float *floats, uint32_t head_dim);

/* ---- Bits shared over a model */

/* One layer, KV head and side, as sharing bits sees it. */
struct transform_share {
    float importance;   /* as above */
    const float *size;  /* [head_dim] */
    uint8_t *quad_bits; /* [head_dim / 4], written */
};
/* Gives `rate` bits per component, on average over shares[n], to where they save most: a quad gets its b-th bit where
 * 2^importance * size^2 * (distortion[b - 1] - distortion[b]) is largest. Spends rate * n * head_dim bits rounded down to a quad's 4, but
 * for what components of size 0 and quads of TRANSFORM_BITS_MAX cannot take. Deterministic. */
void transform_share_bits(const struct transform_share *shares, size_t n, uint32_t head_dim, double rate);

/* Moves single bits between shares until at most one of them has an odd sum of quads' bits: pages are whole cache lines, and two of such
 * bits fill one. The sum over all stays. */
void transform_pair_bits(const struct transform_share *shares, size_t n, uint32_t head_dim);

/* Bytes of a page of each of n shares together that were given so many bits by both, where no share's quads are full. */
uint64_t transform_shared_page_bytes(size_t n, uint32_t head_dim, double rate);

#ifdef __cplusplus
}
#endif

#endif
