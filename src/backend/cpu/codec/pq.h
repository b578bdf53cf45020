/* Gives access to what codec_pq and codec_vq have learned, for code that reads pages by pq_ops() itself: tests and benchmarks that
 * choose the algorithm, and readers of keys that are rotated as they are read. */
#ifndef TERSE_BACKEND_CPU_CODEC_PQ_H
#define TERSE_BACKEND_CPU_CODEC_PQ_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kernels/pq/pq.h"

/* Returns the codebook in shape.learned. */
const struct pq_codebook *pq_codebook_of(struct codec_shape shape);

#endif
