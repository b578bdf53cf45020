/* Writes pages, and reads them back whole: a launch encodes 64 rows each of many pages, layers and heads by their codecs. The bytes
 * are the CPU's (backend/cpu/codec): bit for bit where its arithmetic is exact in fp32 in one order, else within what tests
 * state. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_H
#define TERSE_BACKEND_CUDA_KV_ENCODE_H

#include "backend/cuda/kv/encode_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

bool encode_supports(const struct head_view *heads, const enum codec_id codec[2]);

/* Encodes both sides of all pages, and the index's. Keys in runs are rotated back by their run's position first, those stored before
 * rotation by their own. */
cudaError_t encode_pages(const struct encode *encode, cudaStream_t stream);

/* Decodes pages to rows, with keys rotated by their own positions again: a prompt's attention reads these, and tests compare with
 * them. Slots from `set.count` on are not written. */
cudaError_t decode_pages(const struct encode *encode, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
