/* Reads and writes the codes of a page of the codec transform, one at a time (format/page_layout.h). Readers that need not be fast
 * use these functions, and so do tests of the fast ones. */
#ifndef TERSE_FORMAT_TRANSFORM_CODES_H
#define TERSE_FORMAT_TRANSFORM_CODES_H

#include "format/page_layout.h"
#include "format/transform.h"

/* Returns the place of token t's code of component i in its octet of tokens: a byte's number. */
static inline size_t transform_byte(enum codec_side side, size_t t, size_t i) {
    return side == CODEC_KEYS ? 4 * (t % 8) + i : 16 * (t % 8 / 4) + 4 * i + t % 4;
}

static inline unsigned transform_shift(size_t t) { return (unsigned)(t / 16 % 2 * 4); }

/* Sets four bits of a nibble; what was there is overwritten. */
static inline void transform_put(uint8_t *codes, size_t nibble, enum codec_side side, size_t t, size_t i, unsigned bits) {
    uint8_t *at = codes + nibble * PAGE_TRANSFORM_NIBBLE + t / 32 * 64 + t / 8 % 2 * 32 + transform_byte(side, t, i);
    *at = (uint8_t)((*at & ~(15u << transform_shift(t))) | bits << transform_shift(t));
}

static inline unsigned transform_get(const uint8_t *codes, size_t nibble, enum codec_side side, size_t t, size_t i) {
    const uint8_t *at = codes + nibble * PAGE_TRANSFORM_NIBBLE + t / 32 * 64 + t / 8 % 2 * 32 + transform_byte(side, t, i);
    return (unsigned)*at >> transform_shift(t) & 15;
}

/* Returns the integer level of component i of a plane's quad. */
static inline int transform_level(const struct transform_plane *plane, const uint8_t *codes, enum codec_side side, size_t t,
                                  size_t i) {
    const unsigned most = transform_most(plane->bits);
    return (int)(2 * (transform_get(codes, plane->nibble, side, t, i) >> plane->shift & most)) - (int)most;
}

#endif
