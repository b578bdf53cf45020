/* Implements the parts of codecs' gather_tokens that are not kernels: rows of tokens, and pages of scales and codes. */
#ifndef TERSE_BACKEND_CPU_CODEC_GATHER_H
#define TERSE_BACKEND_CPU_CODEC_GATHER_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kernels/select/ops.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Copies rows slots[n] of from[64][bytes] to rows at, at + 1, ... of `to`, by sixteen bytes, the last of which may overlap those
 * before: a copy of unknown size would be a call. */
static inline void gather_rows(const void *from, size_t bytes, const uint8_t *slots, size_t n, void *to, size_t at) {
    for (size_t i = 0; i < n; i++) {
        const char *in = (const char *)from + slots[i] * bytes;
        char *out = (char *)to + (at + i) * bytes;
        if (bytes < 16) {
            memcpy(out, in, bytes);
            continue;
        }
        for (size_t b = 0; b + 16 < bytes; b += 16) memcpy(out + b, in + b, 16);
        memcpy(out + bytes - 16, in + bytes - 16, 16);
    }
}

/* Prefetches the rows that gather_rows copies. */
static inline void prefetch_rows(const void *from, size_t bytes, const uint8_t *slots, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *row = (const char *)from + slots[i] * bytes;
        for (size_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 0, 2);
        __builtin_prefetch(row + bytes - 1, 0, 2);
    }
}

/* Gathers pages of scales by group of 32 channels, half floats [hd/32][64], and then codes: `bytes` of each token, by channel for
 * keys and by token for values (q8_0, q4_0). */
static inline void gather_scaled(size_t hd, size_t bytes, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                                 void *to, size_t at) {
    size_t scales = hd / SCALE_GROUP * PAGE_TOKENS * sizeof(uint16_t);
    select_ops()->gather_codes(from, hd / SCALE_GROUP, 16, slots, n, to, at);
    from = (const uint8_t *)from + scales;
    to = (uint8_t *)to + scales;
    if (side == CODEC_VALUES)
        gather_rows(from, bytes, slots, n, to, at);
    else
        select_ops()->gather_codes(from, bytes, 8, slots, n, to, at);
}

#endif
