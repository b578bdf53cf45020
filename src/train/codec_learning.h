/* Declares the learning of a codec: steps on samples before its parameters are fitted, and on parameters after. The fits themselves
 * are train/kmeans.h, train/em.h and train/additive.h, among which calibrate.c chooses by the codec's `learner`. */
#ifndef TERSE_TRAIN_CODEC_LEARNING_H
#define TERSE_TRAIN_CODEC_LEARNING_H

#include "format/codec.h"

/* Sets, for codecs that are `normalized`, how rows are normalized, the last of the parameters, from rows[n][head_dim]. */
void codec_fit_normalization(const struct codec *codec, struct codec_shape shape, const float *rows, size_t n, float *parameters);
/* Learns the same about a mean of zero. */
void codec_fit_scale(const struct codec *codec, struct codec_shape shape, const float *rows, size_t n, float *parameters);
/* Normalizes a row by these parameters, and returns the factor by which an error in the normalized row is larger in the row itself; samples are
 * weighted by its square. */
float codec_normalize_row(const struct codec *codec, struct codec_shape shape, const float *parameters, float *row);

/* Moves centroids that were just learned to where they are read faster, at next to no loss: where there are no more than 256 or their width
 * is a multiple of 4, to a grid of at most 256 steps in each channel, all of them half floats. The fastest processors then read them as
 * bytes; others may read halves. The squared error grows by some 2 % for pairs of channels at 8 bits, 0.2 % for fours, less for wider
 * sub-vectors (estimated on codebooks of the built-in model); at 12 bits by less than 0.1 % for fours (of normal numbers). Other codecs'
 * parameters stay as they are. */
void codec_snap_to_grid(const struct codec *codec, struct codec_shape shape, float *parameters);

#endif
