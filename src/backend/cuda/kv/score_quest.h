/* Declares the scores of tokens by the index quest (select.h). */
#ifndef TERSE_BACKEND_CUDA_KV_SCORE_QUEST_H
#define TERSE_BACKEND_CUDA_KV_SCORE_QUEST_H

#include "backend/cuda/kv/select.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t score_quest(const struct select_tokens *select, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
