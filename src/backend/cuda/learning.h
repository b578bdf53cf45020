/* Declares how the CUDA backend does the heavy part of learning. */
#ifndef TERSE_BACKEND_CUDA_LEARNING_H
#define TERSE_BACKEND_CUDA_LEARNING_H

#include "backend/learning.h"

/* Bytes of attention's logits that are together, those of a tile of queries; tests make tiles smaller. */
extern size_t learning_logit_bytes;

/* The members open_search, find and close_search of the table: learning_search.c. */
struct search *learning_search_open(const float *rows, size_t n, size_t d, size_t stride, size_t k);
enum terse_status learning_search_find(struct search *search, const float *centroids, uint16_t *codes, struct terse_error *error);
void learning_search_close(struct search *search);

/* Chooses the process's device for the calling thread, and has freed memory of its streams kept for the next search or mixture: giving it back
 * to the device would stop all threads. */
void learning_choose_device(void);

/* The members open_mixture, expect and close_mixture: learning_mixture.c. */
struct mixture *learning_mixture_open(const float *rows, const float *weights, size_t n, size_t pairs, size_t entries);
enum terse_status learning_mixture_expect(struct mixture *mixture, const struct expectation *expectation,
                                          struct terse_error *error);
void learning_mixture_close(struct mixture *mixture);

extern const struct learning_ops cuda_learning_ops;

#endif
