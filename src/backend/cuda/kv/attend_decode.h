/* Computes the attention of a decoding step: a few query tokens, each of one sequence, read that sequence's sealed pages, exact
 * rows and window. A layer takes one launch: each split-K part of a query row and KV head reads its share of the pages, of the
 * exact rows and of the window, and leaves a partial state (backend/cpu/partial.h) in fp32; the last to arrive merges them.
 *
 * attend_launch.h has the arguments, attend_common.cuh what all families share: the exact rows and the window, and merging. A
 * family of codecs has files of its own: attend_scaled*.cu (f16, q8_0, q4_0, kivi), attend_transform*.cu, attend_centroids*.cu (pq,
 * vq, gain-shape), attend_tables.cu (pq with one query head a KV head), attend_commvq*.cu (comm, additive); codec.c says which family reads a codec, and which codecs of keys and values may be mixed. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_DECODE_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_DECODE_H

#include "backend/cuda/kv/attend_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns how many floats the partial states of a launch have. */
size_t attend_decode_part_floats(const struct head_view *heads, enum codec_id keys, uint32_t n_rows, uint32_t splits);

/* Returns how many words the queries of runs and positions have: 0 where the kernels prepare none beforehand. */
size_t attend_decode_run_words(const struct head_view *heads, enum codec_id keys, uint32_t n_rows, uint32_t runs);

/* Returns the number of splits that serves a row of so many sealed pages well when so many rows are read together. */
uint32_t attend_decode_splits(const struct head_view *heads, enum codec_id keys, uint32_t multiprocessors, uint32_t n_rows,
                              uint32_t pages);

/* Returns the number of splits that serves a row well that reads so many rows of halves and no page. */
uint32_t attend_decode_row_splits(const struct head_view *heads, uint32_t multiprocessors, uint64_t rows);

/* Returns how many parts a multiprocessor reads, rounded up, if all are dealt evenly, of which the rows have `parts` together for each KV
 * head; rows of several rates those of the rate with most. */
uint32_t attend_decode_multiprocessor_parts(const struct head_view *heads, uint32_t multiprocessors, uint32_t parts);

/* Returns whether there are kernels for these codecs and heads. `centroid` holds, by side, the shapes of codecs with centroids; for
 * others it may be NULL. */
bool attend_decode_supports(const struct head_view *heads, const enum codec_id codec[2], const struct centroid_shape centroid[2]);

/* Launches the kernels; the caller has allocated all memory. */
cudaError_t attend_decode_launch(const struct attend_decode *attend, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
