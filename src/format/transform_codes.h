/* Where the codes of a plane lie (format/page_layout.h), one at a time. What readers that are not in a hurry use, and tests of those that
 * are. */
#ifndef TERSE_FORMAT_TRANSFORM_CODES_H
#define TERSE_FORMAT_TRANSFORM_CODES_H

#include "format/page_layout.h"
#include "format/transform.h"

/* The place of token t's code of component i in its octet of tokens: a byte's number. */
static inline size_t transform_byte(enum codec_side side, size_t t, size_t i) {
    return side == CODEC_KEYS ? 4 * (t % 8) + i : 16 * (t % 8 / 4) + 4 * i + t % 4;
}

static inline uint8_t *transform_part(uint8_t *plane, unsigned bits, size_t t, size_t byte, unsigned *shift) {
    size_t octet = t / 8;
    switch (bits) {
    case 1: *shift = (unsigned)octet; return plane + byte;
    case 2: *shift = (unsigned)(octet / 2 * 2); return plane + 32 * (octet % 2) + byte;
    default: *shift = (unsigned)(octet / 2 % 2 * 4); return plane + 64 * (octet / 4) + 32 * (octet % 2) + byte;
    }
}

static inline void transform_or(uint8_t *plane, unsigned bits, size_t t, size_t byte, unsigned code) {
    unsigned shift;
    uint8_t *at = transform_part(plane, bits, t, byte, &shift);
    unsigned mask = ((1u << bits) - 1) << shift;
    *at = (uint8_t)((*at & ~mask) | code << shift);
}

/* Sets a code of a plane of `bits` bits; what was there is overwritten. */
static inline void transform_put(uint8_t *plane, unsigned bits, enum codec_side side, size_t t, size_t i, unsigned code) {
    size_t byte = transform_byte(side, t, i);
    if (bits == 3) {
        transform_or(plane, 2, t, byte, code >> 1);
        transform_or(plane + PAGE_TRANSFORM_PLANE(2), 1, t, byte, code & 1);
    } else
        transform_or(plane, bits, t, byte, code);
}

static inline unsigned transform_get(const uint8_t *plane, unsigned bits, enum codec_side side, size_t t, size_t i) {
    size_t byte = transform_byte(side, t, i);
    unsigned shift;
    if (bits == 3) return transform_get(plane, 2, side, t, i) << 1 | transform_get(plane + PAGE_TRANSFORM_PLANE(2), 1, side, t, i);
    const uint8_t *at = transform_part((uint8_t *)plane, bits, t, byte, &shift);
    return (unsigned)*at >> shift & ((1u << bits) - 1);
}

#endif
