/* The likeliest tokens of rows of logits, and rows that stay on the device (struct held_logits of backend/backend.h). Plain C. */
#ifndef TERSE_BACKEND_CUDA_LIKELIEST_H
#define TERSE_BACKEND_CUDA_LIKELIEST_H

#include "backend/backend.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All pointers are the device's. */
struct find_likeliest {
    const float *logits; /* [n][vocabulary] */
    uint32_t n, vocabulary;
    float *const *held;            /* [n]: where each row is copied to, or NULL */
    struct token_logit *parts;     /* [n][likeliest_parts(vocabulary)][LIKELIEST] */
    struct token_logit *likeliest; /* [n][LIKELIEST], of which min(LIKELIEST, vocabulary) are written */
};

uint32_t likeliest_parts(uint32_t vocabulary);
cudaError_t find_likeliest(const struct find_likeliest *find, cudaStream_t stream);

/* held.c: functions of executor_ops. */
enum terse_status held_new(struct executor *executor, struct held_logits *held, struct terse_error *error);
void held_free(struct executor *executor, struct held_logits *held);
enum terse_status held_fetch(const struct executor *executor, const struct held_logits *held, float *logits,
                             struct terse_error *error);

#ifdef __cplusplus
}
#endif

#endif
