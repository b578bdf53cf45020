/* Declares the format of the codec transform, which takes a row of a head apart into components, each with its own number of bits.
 *
 *     row = mean + gain * sum_c y_c size_c basis_c          c = 0 .. head_dim - 1, falling in size
 *
 * A key's row is the key less its mean before rotation (kv/pre_rope.h), which the parameters hold for readers.
 *
 * The basis is that of the Karhunen-Loeve transform in the metric in which errors matter (transform_fit.h): its rows' coefficients
 * z = y size are uncorrelated, and |z|^2 is what an error costs. So each component is quantized by itself, with the levels that are
 * best for a Gaussian of variance 1, and bits go where they save most: reverse water-filling over all components of a model (Gersho
 * and Gray 1992, chapters 8 and 12; Cover and Thomas, section 10.3). Components of 0 bits are not stored.
 *
 * Four components, neighbours in size, have the same number of bits: a *quad*. Codes are stored in *nibbles*: four bits for each of
 * the four components of a quad. A quad of 4 bits has a nibble of its own, one of 5 to 8 bits the upper 4 bits. All other bits,
 * those of quads of 1 to 3 bits and the lower ones of 5 to 7, are written one after another into a *stream* of nibbles, in which a
 * level is looked up not by a quad's own bits alone but by a *window*, the last four bits of the stream: trellis-coded quantization
 * with a shift register (Marcellin and Fischer 1990, "Trellis coded quantization of memoryless and Gauss-Markov sources"). A
 * component of 1, 2 or 3 bits has 2, 4 or 8 levels to choose from, which differ by what was chosen before, and 16 levels are in
 * use: at the same bits the error is a sixth to a fifth less than that of a scalar quantizer. So are the lower bits of a component
 * of 5 to 7: its levels lie twice as close as its bits could tell apart (Ungerboeck 1982, "Channel coding with multilevel/phase
 * signals", has such partitions), and its error is a fifth, a seventh or a 25th less. The encoder finds the best path (Viterbi),
 * for lower bits together with the upper ones; readers look up.
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

/* ---- Levels
 *
 * A level is an integer times a scale. The integer is at most 20 in magnitude, so that readers without wide products can sum those
 * of several planes in 16 bits. */

enum transform_table {
    TRANSFORM_GAUSSIAN_4, /* Lloyd and Max's levels of a Gaussian, nearly */
    TRANSFORM_UNIFORM_4,  /* equally spaced ones, of the upper 4 bits of a quad of 5 to 8, and of the lower 4 of one of 8 */
    TRANSFORM_LOWER_1,    /* by the window, of the lower 1, 2 or 3 bits of a quad of 5 to 7 */
    TRANSFORM_LOWER_2,
    TRANSFORM_LOWER_3,
    TRANSFORM_TRELLIS_1, /* by the window, of a quad that has written 1, 2 or 3 bits of it */
    TRANSFORM_TRELLIS_2,
    TRANSFORM_TRELLIS_3,
    TRANSFORM_PAIR_FIRST, /* of two quads that have written 2 bits together */
    TRANSFORM_PAIR_SECOND,
    TRANSFORM_TABLES
};
#define TRANSFORM_LEVEL_MAX 20
/* Returns how far apart a component's upper levels lie, in units of the lower plane's, if `table` is of the lower bits of 5 to 7;
 * else 0. */
static inline float transform_upper_step(unsigned table) {
    return table >= TRANSFORM_LOWER_1 && table <= TRANSFORM_LOWER_3 ? (float)(4u << (table - TRANSFORM_LOWER_1)) : 0;
}
/* The levels are [table][window], the window's oldest bit the highest. */
extern const int8_t transform_levels[TRANSFORM_TABLES][16];
/* This is the largest magnitude in each table. */
extern const uint8_t transform_largest[TRANSFORM_TABLES];
/* So many bits of the window are new; for a pair's first quad those of both quads. */
extern const uint8_t transform_new_bits[TRANSFORM_TABLES];

/* This is the mean squared error of a Gaussian of variance 1 in 0 to TRANSFORM_BITS_MAX bits with the levels that are best for it; of
 * 1 to 3 and 5 to 7 bits in a long stream. */
extern const float transform_distortion[TRANSFORM_BITS_MAX + 1];

/* Levels reach so much further, in components of 0 to TRANSFORM_BITS_MAX bits, than is best for a Gaussian: components of real models
 * have longer tails (a kurtosis of 4 to 5 where a Gaussian's is 3; docs/reports/transform-second.md has what that costs and gains).
 * Bits are shared as if they were Gaussian. */
extern const float transform_reach[TRANSFORM_BITS_MAX + 1];

/* A row may be coded as if it were so many times as large, with the gain that this asks for, where levels would otherwise cut off
 * more of it than all its components then err by: values of tokens on which attention rests are nearly zero, so that such a row less
 * the mean lies in a direction in which others hardly differ, 10 to 15 times a component's size. */
#define TRANSFORM_ROW_SCALES 5
extern const float transform_row_scale[TRANSFORM_ROW_SCALES];

/* A row of values may be coded less no mean: row = gain * sum_c y_c size_c basis_c. Tokens on which attention rests have values that
 * are nearly zero, and what is coded would then be the mean, for which components of few bits have no room, times a weight that may
 * be nearly 1. So the first codes of gains say that the mean is left out; those gains are halves, quarters and so on of the rows'. */
#define TRANSFORM_NO_MEAN_GAINS 8
#define TRANSFORM_MUCH_SMALLER \
    4 /* that is tried where the square of the row is smaller, by so much, than that of the row less the mean */

/* The stream of a page is a ring through which the encoder looks for a path. It begins by walking over the ring's seam, from so
 * many steps before it to as many behind it: nearly all paths have met by then, wherever they began. A page of 1 bit per component
 * errs 0.1 % more than with twice as many steps, others no more. */
#define TRANSFORM_PATH_WARM_UP 10

/* ---- Layout */

/* A plane is what one look-up adds to a quad, whose level is the sum over its planes. */
struct transform_plane {
    uint8_t quad;    /* of components 4 quad .. 4 quad + 3 */
    uint8_t nibble;  /* that has the window's last bit; if `written` is 4, all of it */
    uint8_t table;   /* 4 * enum transform_table + written - 1; the nibble is written so far when the window ends */
    uint8_t largest; /* transform_largest of the table */
    float scale;     /* level = integer * scale, of a component of variance 1 */
};

static inline unsigned transform_table_of(const struct transform_plane *plane) { return plane->table / 4u; }
static inline unsigned transform_written(const struct transform_plane *plane) { return plane->table % 4u + 1; }

/* A layout describes the stored components of a row. Its planes are in the order of the page, in which planes of like size are
 * neighbours. */
struct transform_layout {
    uint16_t planes, quads; /* planes; quads with any bits: the first ones */
    uint16_t nibbles,
        stream; /* nibbles, of 16 bits for each token; those from `stream` on are the stream, whose last is the first of them */
    uint8_t quad_bits[TRANSFORM_QUADS_MAX];
    struct transform_plane plane[TRANSFORM_PLANES_MAX]; /* zeros from `planes` on */
};

/* Returns where the n-th nibble of the stream lies. */
static inline unsigned transform_place(const struct transform_layout *layout, unsigned n) {
    return layout->stream + (n + 1) % (layout->nibbles - layout->stream);
}

/* Returns the nibble that the stream writes before `nibble`. *wraps: it is the stream's last, written for the component before, as
 * if the stream of all four were a ring. The last nibble lies in front, so that readers of the first planes alone need no more than
 * the front of a page. */
static inline unsigned transform_before(const struct transform_layout *layout, unsigned nibble, bool *wraps) {
    unsigned stream = layout->stream, nibbles = layout->nibbles;
    *wraps = nibble == (nibbles - stream > 1 ? stream + 1 : stream); /* transform_place(layout, 0) */
    return *wraps ? stream : nibble == stream ? nibbles - 1 : nibble - 1;
}

/* Makes the layout of quad_bits[head_dim / 4], which do not rise. Where their sum is no multiple of 4, a part of the last nibble is
 * unused. */
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
 * nibbles: their sum is a multiple of 4. It spends rate * n * head_dim bits, rounded down to a nibble's 16, unless components of
 * size 0 and quads of TRANSFORM_BITS_MAX cannot take them all. It is deterministic. */
void transform_share_bits(const struct transform_share *shares, size_t n, uint32_t head_dim, double rate);

/* Returns the bytes of a page of each of n shares together when these shared bits at this rate and no share's quads are full. */
uint64_t transform_shared_page_bytes(size_t n, uint32_t head_dim, double rate);

#ifdef __cplusplus
}
#endif

#endif
