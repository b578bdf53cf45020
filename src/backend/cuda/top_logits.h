/* Finds the likeliest tokens of rows of logits, and keeps rows on the device (struct device_logits of backend/backend.h). Plain
 * C. */
#ifndef TERSE_BACKEND_CUDA_TOP_LOGITS_H
#define TERSE_BACKEND_CUDA_TOP_LOGITS_H

#include "backend/backend.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All pointers are to the device's memory. */
struct find_top_logits {
    const float *logits; /* [n][vocabulary] */
    uint32_t n, vocabulary;
    float *const *held;             /* [n]: where each row is copied to, or NULL */
    struct token_logit *parts;      /* [n][top_logits_parts(vocabulary)][TOP_LOGITS] */
    struct token_logit *top_logits; /* [n][TOP_LOGITS], of which min(TOP_LOGITS, vocabulary) are written */
};

uint32_t top_logits_parts(uint32_t vocabulary);
cudaError_t find_top_logits(const struct find_top_logits *find, cudaStream_t stream);

/* device_logits.c defines these functions of executor_ops. */
enum terse_status device_logits_new(struct executor *executor, struct device_logits *held, struct terse_error *error);
void device_logits_free(struct executor *executor, struct device_logits *held);
enum terse_status device_logits_fetch(const struct executor *executor, const struct device_logits *held, float *logits,
                                      struct terse_error *error);

#ifdef __cplusplus
}
#endif

#endif
