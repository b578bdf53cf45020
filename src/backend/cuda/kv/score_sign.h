/* Declares the scores of tokens by the index sign (select.h), whose pages are those of codec sign or stand beside any codec's. */
#ifndef TERSE_BACKEND_CUDA_KV_SCORE_SIGN_H
#define TERSE_BACKEND_CUDA_KV_SCORE_SIGN_H

#include "backend/cuda/kv/select.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t score_sign(const struct select_tokens *select, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
