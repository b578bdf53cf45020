/* Codec, its learning: what is done to samples before their parameters are fitted, and to parameters after. The fits themselves are
 * train/kmeans.h, train/em.h and train/additive.h, which calibrate.c chooses among by the codec's `learner`. */
#ifndef TERSE_TRAIN_CODEC_LEARNING_H
#define TERSE_TRAIN_CODEC_LEARNING_H

#include "format/codec.h"

/* Codecs that are `normalized`: sets how rows are normalized, the last of the parameters, from rows[n][head_dim]. */
void codec_fit_normalization(const struct codec *codec, struct codec_shape shape, const float *rows, size_t n, float *parameters);
/* Then normalizes a row, and returns by how much an error in what it becomes is larger in the row itself: samples weigh by its square. */
float codec_normalize_row(const struct codec *codec, struct codec_shape shape, const float *parameters, float *row);

/* Moves centroids that were just learned to where they are read faster, at next to no loss: where there are no more than 256 or their width
 * is a multiple of 4, to a grid of at most 256 steps in each channel, all of them half floats. The fastest processors then read them as
 * bytes; others may read halves. The squared error grows by some 2 % for pairs of channels at 8 bits, 0.2 % for fours, less for wider
 * sub-vectors (estimated on codebooks of the built-in model); at 12 bits by less than 0.1 % for fours (of normal numbers). Other codecs'
 * parameters stay as they are. */
void codec_snap_to_grid(const struct codec *codec, struct codec_shape shape, float *parameters);

#endif
