/* The codec additive: what learning must know of it. */
#ifndef TERSE_BACKEND_CPU_CODEC_ADDITIVE_H
#define TERSE_BACKEND_CPU_CODEC_ADDITIVE_H

#include "backend/cpu/codec/codec.h"

/* The coding of `bits` bits per value, the gain not counted. A coding's width is the whole head, its bits those of a row's code. */
struct coding additive_coding(uint32_t head_dim, uint32_t bits);

/* Parameters of a layer and KV head: C[bits][head_dim], then the frame of backend/cpu/codec/normalization.h. */

#endif
