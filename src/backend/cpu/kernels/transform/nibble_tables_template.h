/* This template makes tables of levels by the four bits of a nibble, for byte shuffles of 16 entries. It has no parameters;
 * fill_tables() is called once, before the tables are read. */
#include "format/transform_codes.h"

/* The tables are [a plane's table][nibble as it lies in a page]. Levels of one kind are bytes without sign, from 0 on. */
static _Alignas(64) uint8_t levels_from_zero[4 * TRANSFORM_TABLES][16], signed_levels[4 * TRANSFORM_TABLES][16];

static void fill_tables(void) {
    for (unsigned table = 0; table < TRANSFORM_TABLES; table++) {
        for (unsigned written = 1; written <= 4; written++) {
            for (unsigned nibble = 0; nibble < 16; nibble++) {
                int level = transform_levels[table][transform_window(nibble, written)];
                levels_from_zero[4 * table + written - 1][nibble] = (uint8_t)(level + transform_largest[table]);
                signed_levels[4 * table + written - 1][nibble] = (uint8_t)level;
            }
        }
    }
}

/* Returns how many planes before the stream have a nibble each, in their order. */
INLINE size_t planes_alone(const struct transform_layout *layout) { return SMALLER(layout->stream, layout->planes); }

/* Returns the end of the planes whose older bits, if they have any, wrap around to the component before: those of the stream's
 * first nibble. */
INLINE size_t planes_wrapping(const struct transform_layout *layout) {
    const unsigned first = layout->nibbles > layout->stream ? transform_place(layout, 0) : 0;
    size_t p = planes_alone(layout);
    while (p < layout->planes && layout->plane[p].nibble == first) p++;
    return p;
}

/* Returns the nibble that the stream writes before that of a plane which does not wrap. It has no branches, which the processor
 * would have to guess. */
INLINE const uint8_t *nibble_before(const struct transform_layout *layout, const struct transform_plane *plane,
                                    const uint8_t *codes) {
    const size_t nibble = plane->nibble == layout->stream ? layout->nibbles : plane->nibble;
    return codes + (nibble - 1) * PAGE_TRANSFORM_NIBBLE;
}

INLINE const uint8_t *nibble_of(const struct transform_plane *plane, const uint8_t *codes) {
    return codes + (size_t)plane->nibble * PAGE_TRANSFORM_NIBBLE;
}

/* Returns a mask, in four bytes, of the bits of a byte's two nibbles that are the plane's own nibble's. */
INLINE uint32_t own_bits(const struct transform_plane *plane) {
    static const uint32_t own[4] = {0x88888888, 0xcccccccc, 0xeeeeeeee, 0xffffffff};
    return own[plane->table % 4];
}

/* Prefetches a part of a page. Called for each plane in turn, it covers every nibble, of which there are no more than planes. All
 * at once they would be more lines than the first cache can wait for. */
INLINE void prefetch_plane(const struct transform_layout *layout, size_t p, const uint8_t *codes) {
    if (p < layout->nibbles) prefetch_step(codes, p, PAGE_TRANSFORM_NIBBLE);
}
