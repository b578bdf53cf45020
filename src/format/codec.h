/* Declares the format of a codec: how 64 keys or values of one KV head are represented, as plain facts and arithmetic on which
 * every backend, every file and every accounting of memory agrees. It is plain C, for C and CUDA C++ alike: no kernel, no table of
 * functions.
 *
 * A codec has three faces. This one says what a page and a codebook's parameters are; learning (src/train/codec_learning.h) finds
 * the parameters; execution (src/backend/cpu/codec/codec.h for the CPU) encodes and reads pages. Each backend makes its own form of
 * the parameters. format/page_layout.h says how the bytes of a page lie.
 *
 * docs/architecture.md says step by step how a codec is added. */
#ifndef TERSE_FORMAT_CODEC_H
#define TERSE_FORMAT_CODEC_H

#include "format/page_layout.h"
#include "format/shape.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum codec_id {
    CODEC_F16,
    CODEC_Q8_0,
    CODEC_Q4_0,
    CODEC_KIVI_4,
    CODEC_KIVI_2,
    CODEC_SIGN,
    CODEC_PQ,
    CODEC_VQ,
    CODEC_GAIN_SHAPE,
    CODEC_COMMVQ,
    CODEC_ADDITIVE,
    CODEC_TRANSFORM,
    CODEC_COUNT
};

/* A key codec takes keys after rotation by their own position; or before rotation, and then they are rotated as they are read; or
 * in a rope run, rotated by their offset from the run's first position, the largest multiple of ROPE_RUN_TOKENS not above the
 * position of the page's first token. Queries are then rotated back by that position, once for four pages, and keys never again. */
enum codec_rope { CODEC_ROPE_AFTER, CODEC_ROPE_BEFORE, CODEC_ROPE_IN_RUN };

/* A codec's learner says what a codebook's parameters are and how they are found. */
enum codec_learner {
    CODEC_LEARNS_NOTHING, /* no codebook */
    CODEC_LEARNS_KMEANS,  /* for each sub-vector 2^bits centroids of `width` channels, in this order; train/kmeans.h */
    CODEC_LEARNS_EM, /* tables of each sub-vector of `width` channels, and which channels RoPE pairs; train/em.h, format/commvq.h */
    CODEC_LEARNS_ADDITIVE, /* rows of which a value is a sum; train/additive.h */
    CODEC_LEARNS_TRANSFORM /* a basis, the sizes of its components and how much they matter; format/transform.h */
};

/* These values say for which sides tokens of different pages can be packed into one page that decodes to the same bits, without
 * encoding anew. */
enum codec_gather {
    CODEC_GATHERS_NOTHING,
    CODEC_GATHERS_VALUES, /* keys of a page share their scales */
    CODEC_GATHERS_BOTH
};

struct codec {
    enum codec_id id;
    const char *name; /* "q8_0": as files and users write it */
    enum codec_rope rope;
    enum codec_learner learner;
    enum codec_gather gather;
    bool exact;  /* as exact as the recent window itself: no tail of tokens need stay outside of its pages */
    bool fitted; /* learns while it runs, from the first rows that are sealed: codec_fitted_bytes */
    /* The parameters describe rows about their mean and at a size of 1, and end with format/normalization.h's numbers. */
    bool normalized;
    bool by_rate;              /* width and bits of its codes follow from head_dim and a number of bits per value: codec_coding */
    const struct index *index; /* whose pages its pages of keys begin with, as does what it fits with that index's; or NULL */
};

/* These are the rows of the table. */
extern const struct codec codec_f16, codec_q8_0, codec_q4_0;
/* KIVI quantizes to asymmetric integers, keys by channel, values by token. */
extern const struct codec codec_kivi_4, codec_kivi_2;
/* Sign stores signs and magnitudes of centred keys (Self-Indexing KVCache); its values are kivi-2's. */
extern const struct codec codec_sign;
/* pq and vq are product quantization of keys after rotation (MILLION) and before it (AnTKV, CQ); their values are the same. */
extern const struct codec codec_pq, codec_vq;
/* Gain-shape is vq of rows about their mean and at a size of 1, with a gain for each row. */
extern const struct codec codec_gain_shape;
/* CommVQ stores keys as sums of complex numbers that commute with RoPE, and values as sums of rows, one for each bit of a code. */
extern const struct codec codec_commvq, codec_additive;

/* Transform stores components of rows, each with its own number of bits (format/transform.h). */
extern const struct codec codec_transform;

/* Returns the i-th of all codecs, NULL past the last. */
const struct codec *codec_at(size_t i);
/* Returns a codec that needs neither a codebook nor fitting and so can be asked for by name alone; NULL for an unknown name. */
const struct codec *codec_find(const char *name);

/* A coding is a codec as one side of a method uses it. */
struct coding {
    const struct codec *codec;
    uint32_t width, bits; /* vector quantizers: channels of a sub-vector and bits of its code; else 0 */
    double rate;          /* transform: bits per value, on average over a model; else 0 */
};

static inline bool codec_learns(const struct codec *codec) { return codec->learner != CODEC_LEARNS_NOTHING; }

/* Returns the coding of `bits` bits per value of a codec `by_rate`; another codec's is {codec, 0, 0}. */
struct coding codec_coding(const struct codec *codec, uint32_t head_dim, uint32_t bits);

/* Returns TERSE_E_UNSUPPORTED when the codec cannot serve this shape (say, a head_dim that it does not divide). */
enum terse_status codec_check(const struct codec *codec, struct codec_shape shape, enum codec_side side, struct terse_error *error);

/* Returns the exact size of a page of a shape that codec_check accepts, a multiple of 64; every account of memory uses it. */
size_t codec_page_bytes(const struct codec *codec, struct codec_shape shape, enum codec_side side);

/* Returns how many floats a codebook's parameters have for one layer, KV head and side; 0 when the codec learns nothing. The last
 * codec_normalization_floats of them say how rows are normalized. */
size_t codec_parameters(const struct codec *codec, struct codec_shape shape);
size_t codec_normalization_floats(const struct codec *codec, struct codec_shape shape);
/* Returns TERSE_E_FORMAT unless parameters[codec_parameters] are what encoding and reading take for granted: finite, and within half precision. */
enum terse_status codec_check_parameters(const struct codec *codec, struct codec_shape shape, const float *parameters,
                                         struct terse_error *error);

/* Returns the bytes, all floats, of what a `fitted` codec learns of a sequence for one layer, KV head and side; 0 when that is
 * nothing. */
size_t codec_fitted_bytes(const struct codec *codec, struct codec_shape shape, enum codec_side side);

#ifdef __cplusplus
}
#endif

#endif
