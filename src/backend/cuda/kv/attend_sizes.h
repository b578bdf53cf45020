/* Has the sizes of the memory that a decoding step's attention works in, in one place for the host, which allocates it, and for the
 * kernels, which index it. Plain C, for C and CUDA C++ alike. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_SIZES_H
#define TERSE_BACKEND_CUDA_KV_ATTEND_SIZES_H

#include "backend/cuda/kv/view.h"

/* Returns whether kernels of attention are compiled for so many channels. */
static inline bool attend_head_dim(uint32_t hd) { return hd == 64 || hd == 96 || hd == 128 || hd == 256; }

/* A partial state of a query head is a sum of hd numbers, by channel or by component of a transform, and, behind the sums of all partial
 * states, its maximum and sum of weights; of transforms then the weights of rows that are coded less the mean, and an unused float. */
#define ATTEND_STATE_FLOATS 4

/* A part has at most so many stretches, whose states lie in memory where CTAs read several parts (attend_stretches.cuh). */
#define ATTEND_STRETCHES 12

/* Returns how many words of 32 bits a launch of 4 `tiles` queries reads the pages of a run with: for each query (zeros from G on)
 * unit, mean and zero, a logit being gain * unit * (sum of products - zero) + mean; then bytes [tile][plane][column] of 4
 * components each, planes up to a multiple of 4. */
TERSE_DEVICE uint32_t run_record_words(uint32_t tiles, uint32_t planes) { return tiles * (12 + (planes + 3) / 4 * 4 * 8); }

#endif
