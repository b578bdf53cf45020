/* Where the vector tiers find the packed rows of codec sign's keys and kivi-2's values, sixteen bytes at a time. */
#ifndef TERSE_KERNELS_SIGN_ROWS_H
#define TERSE_KERNELS_SIGN_ROWS_H

#include "codec/block_layout.h"
#include "kernels/kernels.h"

#include <string.h>

/* Of a block, what kivi-2 has for values: `codes` bytes, a multiple of 16, and pairs of scale and zero in each of 64 rows. */
struct rows {
    const uint8_t *at;
    size_t length, codes;
};

#define PADDED_ROW (KERNELS_MOST_CHANNELS * 3 / 8)

/* Where hd is no multiple of 64, codes and pairs are brought to whole sixteen bytes each. */
static inline struct rows rows_of(const uint8_t *at, size_t hd, uint8_t *padded) {
    struct rows rows = {at, 3 * hd / 8, hd / 4};
    if (hd % 64 == 0) return rows;
    rows = (struct rows){padded, (hd / 4 + 15) / 16 * 16 + (hd / 8 + 15) / 16 * 16, (hd / 4 + 15) / 16 * 16};
    memset(padded, 0, BLOCK_TOKENS * rows.length);
    for (size_t t = 0; t < BLOCK_TOKENS; t++, at += 3 * hd / 8) {
        memcpy(padded + t * rows.length, at, hd / 4);
        memcpy(padded + t * rows.length + rows.codes, at + hd / 4, hd / 8);
    }
    return rows;
}

#endif
