/* Declares the limits of product quantization: codes of sub-vectors, as the codecs pq, vq and gain-shape have them. page_layout.h
 * has PQ_BITS_MIN and _MAX.
 *
 * Learned centroids are moved to a grid of at most 256 steps in each channel, all of them half floats, so that backends can read
 * them as one byte each; those that do not lie on a grid are read as halves. */
#ifndef TERSE_FORMAT_PQ_H
#define TERSE_FORMAT_PQ_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PQ_WIDTH_MAX 64   /* channels of a sub-vector */
#define PQ_CHANNEL_BITS 8 /* bits of a code up to which centroids may lie by channel too */

/* Returns whether any backend reads centroids of this shape as bytes, where they lie on a grid. */
static inline bool pq_may_read_u8(size_t width, unsigned bits) { return bits <= PQ_CHANNEL_BITS || width % 4 == 0; }

/* The search for the nearest of k centroids c gives row x the code with the least value, and of those the lowest,
 *
 *     value = half - sum over channels i of y_i z_i,   y = (x - origin) scale,   z = (c - origin) scale,   half = <z, z> / 2
 *
 * in fp32, each product subtracted by a fused multiply-add in order of i: so backends find the same codes, bit for bit. About the
 * origin, the centroids' mean, products do not cancel; the scale, a power of two, keeps squares from overflow. */

/* Writes the search's origin[d] of centroids[k][d]; returns its scale. */
float pq_search_origin(const float *centroids, size_t k, size_t d, float *origin);
/* Writes z[d] of one centroid; returns its half. */
float pq_search_centroid(const float *centroid, size_t d, const float *origin, float scale, float *z);

#ifdef __cplusplus
}
#endif

#endif
