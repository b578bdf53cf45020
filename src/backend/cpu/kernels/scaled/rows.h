/* Describes the packed rows of codec sign's keys and kivi's values as the vector tiers read them, sixteen bytes at a time. */
#ifndef TERSE_BACKEND_CPU_KERNELS_SCALED_ROWS_H
#define TERSE_BACKEND_CPU_KERNELS_SCALED_ROWS_H

#include "backend/cpu/kernels/limits.h"
#include "format/page_layout.h"

#include <string.h>

/* A `rows` is the rows of a page of kivi's values: each of the 64 has `codes` bytes, a multiple of 16, and pairs of scale and
 * zero. */
struct rows {
    const uint8_t *at;
    size_t length, codes;
};

#define PADDED_ROW (KERNELS_MOST_CHANNELS * 3 / 8)

/* Returns the rows of a page. If a row's codes are no multiple of 16 bytes, which happens with 2 bits, codes and pairs are padded to whole sixteen
 * bytes in `padded`. */
static inline struct rows rows_of(const uint8_t *at, size_t hd, unsigned bits, uint8_t *padded) {
    const size_t codes = hd * bits / 8, pairs = hd / 8;
    struct rows rows = {at, codes + pairs, codes};
    if (codes % 16 == 0) return rows;
    rows = (struct rows){padded, (codes + 15) / 16 * 16 + (pairs + 15) / 16 * 16, (codes + 15) / 16 * 16};
    memset(padded, 0, PAGE_TOKENS * rows.length);
    for (size_t t = 0; t < PAGE_TOKENS; t++, at += codes + pairs) {
        memcpy(padded + t * rows.length, at, codes);
        memcpy(padded + t * rows.length + rows.codes, at + codes, pairs);
    }
    return rows;
}

/* Unpacks 2-bit codes to bytes[64][hd], one a byte. */
static inline void spread_codes(const struct rows *rows, size_t hd, uint8_t *bytes) {
    for (size_t t = 0; t < PAGE_TOKENS; t++)
        for (size_t k = 0; k < 4; k++)
            for (size_t j = 0; j < hd / 4; j++)
                bytes[t * hd + k * (hd / 4) + j] = (uint8_t)(rows->at[t * rows->length + j] >> 2 * k & 3);
}

#endif
