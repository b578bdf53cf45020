/* Product quantization's limits: codes of sub-vectors, as the codecs pq, vq and gain-shape have them. PQ_BITS_MIN and _MAX are page_layout.h's.
 *
 * Learned centroids are moved to a grid of at most 256 steps in each channel, all of them half floats, so that backends can read them as
 * one byte each; those that do not lie on a grid are read as halves. */
#ifndef TERSE_FORMAT_PQ_H
#define TERSE_FORMAT_PQ_H

#include <stdbool.h>
#include <stddef.h>

#define PQ_WIDTH_MAX 64   /* channels of a sub-vector */
#define PQ_CHANNEL_BITS 8 /* bits of a code up to which centroids may lie by channel too */

/* Whether any backend reads centroids of this shape as bytes, where they lie on a grid. */
static inline bool pq_may_read_u8(size_t width, unsigned bits) { return bits <= PQ_CHANNEL_BITS || width % 4 == 0; }

#endif
