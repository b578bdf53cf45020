/* The launches that encode pages and read them back whole, by codec or family of codecs: what the rows of codec.c name. A launch takes the sides
 * that it is told of `encode`, whose heads the row's `encodes` has accepted. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_KERNELS_H
#define TERSE_BACKEND_CUDA_KV_ENCODE_KERNELS_H

#include "backend/cuda/kv/encode_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* encode_scaled.cu */
cudaError_t encode_f16(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_f16(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t encode_q8_0(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_q8_0(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t encode_q4_0(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_q4_0(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t encode_kivi_4(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_kivi_4(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t encode_kivi_2(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_kivi_2(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
/* encode_centroids.cu: pq, vq and gain-shape, by what their views say. */
cudaError_t encode_centroids(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_centroids(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
/* encode_transform.cu, decode_transform.cu */
cudaError_t encode_transform(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_transform(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
/* encode_moments.cu: moments[n_layers][Hk][sides.n] of ENCODE_MOMENTS_FLOATS, of all the items' rows in the bases of the launch's `learned`; device
 * memory. The same rows give the same bits. */
cudaError_t encode_moments(const struct encode *encode, struct encode_sides sides, float *moments, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
