/* Layouts of a profile: how the bits of a method are shared over the layers, KV heads and sides of a model. A profile serves every rate; for each
 * that is asked for, layouts are made once, kept with the codebook and freed with it. Immutable; thread-safe. */
#ifndef TERSE_FORMAT_CODEBOOK_LAYOUTS_H
#define TERSE_FORMAT_CODEBOOK_LAYOUTS_H

#include "format/codebook.h"
#include "format/transform.h"

struct codebook_layouts {
    struct codebook_layouts *next;      /* of the same codebook */
    double rate[2];                     /* by enum codec_side, bits per value; 0: the side is of another codec */
    struct transform_layout *layout[2]; /* [sets]; NULL: as above */
    size_t sets;
};

/* Makes the layouts of `codebook`, whose coded sides are of codec transform, at these rates. Keys and values of one rate share their bits, those
 * of two have each their own. */
enum terse_status codebook_layouts(const struct terse_codebook *codebook, const double rate[2],
                                   const struct codebook_layouts **layouts, struct terse_error *error);

/* Added to the importance of keys, a logarithm to base 2, where rows are a sequence's own: errors of keys matter less than they seem to. With
 * terse-2 of a sequence's own transforms it takes 7 % off the divergence of Qwen2.5-Coder-0.5B and 10 % off that of SmolLM2-135M. */
#define FITTED_KEYS_IMPORTANCE (-0.67f)

/* The rows of a sequence, of one set: what a fit says of them (struct transform_fitted). */
struct codebook_rows {
    const float *size; /* [head_dim]; NULL: the set is of no layer that the sequence's cache has */
    float gain, residual;
};

/* Makes layouts of a sequence's own rows[side][sets]. How much errors matter is what the codebook says, as many times as squares of the sequence's
 * rows are larger than those of the codebook's, and as the residual stream, to which errors are added, is smaller: an error of values is in
 * proportion to their size, and one of keys to theirs and, since it moves weight from one value to another, to that of the values.
 * `normalized`: what a layer's attention adds to the residual stream goes through a norm, so that values count by their part of it.
 * codebook_layouts_free releases the layouts. */
enum terse_status codebook_layouts_of_rows(const struct terse_codebook *codebook, const double rate[2],
                                           const struct codebook_rows *rows[2], bool normalized, struct codebook_layouts **layouts,
                                           struct terse_error *error);
void codebook_layouts_free(struct codebook_layouts *layouts); /* accepts NULL */
uint64_t codebook_layouts_bytes(const struct codebook_layouts *layouts);

#endif
