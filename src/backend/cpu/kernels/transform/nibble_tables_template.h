/* Template: levels of a plane by the four bits of a nibble, for byte shuffles of 16 entries. Tables are written for codes that lie anywhere
 * in a nibble, so that a mask serves all codes of it. No parameters; fill_tables() is called once, before the tables are read. */
#include "format/transform.h"

#define LAST_LEVEL 15 /* of a table: its largest */

struct plane_tables {
    _Alignas(16) uint8_t at[TRANSFORM_PLANE_BITS][16]; /* of a code that begins at bit s */
};

/* Codes of three bits have their lowest one above the others. Levels of one kind are bytes without sign, from 0 on. */
static struct plane_tables levels_from_zero[TRANSFORM_TABLES], signed_levels[TRANSFORM_TABLES];
static _Alignas(32) int32_t last_level[TRANSFORM_TABLES];

static void fill_tables(void) {
    for (unsigned table = 0; table < TRANSFORM_TABLES; table++) {
        last_level[table] = transform_levels[table][LAST_LEVEL];
        unsigned bits = table % TRANSFORM_PLANE_BITS + 1;
        for (unsigned s = 0; s < TRANSFORM_PLANE_BITS; s++) {
            for (unsigned nibble = 0; nibble < 16; nibble++) {
                unsigned code = bits == 3 ? (nibble & 3) << 1 | (nibble >> 2 & 1) : nibble >> s & ((1u << bits) - 1);
                int8_t level = transform_levels[table][code];
                levels_from_zero[table].at[s][nibble] = (uint8_t)(level - transform_levels[table][0]);
                signed_levels[table].at[s][nibble] = (uint8_t)level;
            }
        }
    }
}
