/* Product quantization beyond the hooks: what a codec of this kind has learned, and the two ways of reading each side, either of
 * which tests and the benchmark may force. codec_pq's and codec_vq's hooks choose between them (pq.c, `by_table`, `by_tally`). */
#ifndef TERSE_CODEC_PQ_H
#define TERSE_CODEC_PQ_H

#include "codec/codec.h"
#include "kernels/kernels.h"

#define PQ_MOST_WIDTH 64 /* channels of a sub-vector */

/* shape.learned of codec_pq and codec_vq. */
const struct product_code *pq_product(struct codec_shape shape);

#endif
