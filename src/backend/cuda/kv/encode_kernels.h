/* Declares the launches that encode pages and read them back whole, by codec or family of codecs; the rows of codec.h name them. A
 * launch takes only these `sides` of `encode`, whose heads the row's `encodes` has accepted. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_KERNELS_H
#define TERSE_BACKEND_CUDA_KV_ENCODE_KERNELS_H

#include "backend/cuda/kv/encode_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* encode_scaled.cu defines these. */
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
/* encode_centroids.cu defines these, for pq, vq and gain-shape, as the views say. */
cudaError_t encode_centroids(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_centroids(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
/* encode_commvq.cu and encode_additive.cu define these, for keys and values alone. */
cudaError_t encode_commvq(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_commvq(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t encode_additive(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_additive(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
/* These find what the searches need of a set, `half` of the one and `couplings` and `offset` of the other, from the rest of a view,
 * which lies in the host's memory and points to the device's. */
cudaError_t commvq_find_halves(const struct commvq_view *view, uint32_t pairs, cudaStream_t stream);
cudaError_t additive_find_couplings(const struct additive_view *view, uint32_t head_dim, cudaStream_t stream);
/* encode_transform.cu and decode_transform.cu define these. */
cudaError_t encode_transform(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_transform(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
/* encode_sign.cu defines these; values are kivi_2's. */
cudaError_t encode_sign(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t decode_sign(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);
cudaError_t fit_sign(const struct fit_sign *fit, cudaStream_t stream);
/* Write pages of an index of the items' keys; encode_sign.cu and encode_quest.cu define them. */
cudaError_t encode_index_sign(const struct encode *encode, cudaStream_t stream);
cudaError_t encode_index_quest(const struct encode *encode, cudaStream_t stream);
/* Computes moments[n_layers][Hk][sides.n] of ENCODE_MOMENTS_FLOATS, of all the items' rows in the bases of the launch's `learned`;
 * device memory. The same rows give the same bits. encode_moments.cu defines it. */
cudaError_t encode_moments(const struct encode *encode, struct encode_sides sides, float *moments, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
