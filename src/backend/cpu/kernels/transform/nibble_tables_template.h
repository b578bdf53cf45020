/* Template: levels by the four bits of a nibble, for byte shuffles of 16 entries. No parameters; fill_tables() is called once, before the
 * tables are read. */
#include "format/transform_codes.h"

/* [a plane's table][nibble as it lies in a page]. Levels of one kind are bytes without sign, from 0 on. */
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

/* Whether a plane is looked up by a window of its own; if not, by that of the plane before. */
INLINE bool has_window(const struct transform_plane *plane) { return transform_table_of(plane) != TRANSFORM_PAIR_SECOND; }

/* The nibble before a plane's, whose lower bits are the window's oldest; *wraps: of the component before. */
INLINE const uint8_t *nibble_before(const struct transform_layout *layout, const struct transform_plane *plane,
                                    const uint8_t *codes, bool *wraps) {
    return codes + (size_t)transform_before(layout, plane->nibble, wraps) * PAGE_TRANSFORM_NIBBLE;
}

/* Both nibbles' bits of a byte that are the plane's own nibble's. */
INLINE uint8_t own_bits(const struct transform_plane *plane) { return (uint8_t)(17u * (15u & ~(15u >> transform_written(plane)))); }
