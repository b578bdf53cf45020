/* What codec_pq and codec_vq have learned, for those who read blocks by pq_ops() themselves: tests and the benchmark,
 * which force either way of reading, and readers of keys that are to be turned. */
#ifndef TERSE_BACKEND_CPU_CODEC_PQ_H
#define TERSE_BACKEND_CPU_CODEC_PQ_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kernels/pq/pq.h"

/* Of shape.learned. */
const struct pq_codebook *pq_codebook_of(struct codec_shape shape);

/* Their `settle`: moves centroids, where there are no more than 256 or their width is a multiple of 4, to a grid of at most 256
 * levels in each channel, all of them halves. The fastest processors then read them as bytes; others may stay as they are, and are
 * read as halves. The squared error grows by some 2 % for pairs of channels at 8 bits, 0.2 % for fours, less for wider sub-vectors
 * (estimated on codebooks of the built-in model); at 12 bits by less than 0.1 % for fours (of normal numbers). */
void pq_snap_to_grid(struct codec_shape shape, enum codec_side side, float *parameters);

#endif
