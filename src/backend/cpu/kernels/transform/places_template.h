/* This template finds the codes of a plane in a page. A file that defines INLINE and prefetch_step includes it once. */
#include "format/page_layout.h"
#include "format/transform.h"

/* A cut says which bits of a nibble are a plane's. Words that are read from memory spread for less than others. */
struct cut {
    uint32_t mask, shift; /* the largest code, in each of four bytes, and its lowest bit */
    uint32_t mask_in_place;
    float most_in_place; /* the largest code 2^shift times */
};

/* clang-format off */
#define CUT(bits, shift) {0x01010101u * ((1u << (bits)) - 1), shift, 0x01010101u * ((1u << (bits)) - 1) << (shift), \
                          ((1u << (bits)) - 1) << (shift)}
/* clang-format on */
static const struct cut cuts[TRANSFORM_NIBBLE_BITS][TRANSFORM_NIBBLE_BITS + 1] = {
    {CUT(0, 0), CUT(1, 0), CUT(2, 0), CUT(3, 0), CUT(4, 0)},
    {CUT(0, 1), CUT(1, 1), CUT(2, 1), CUT(3, 1)},
    {CUT(0, 2), CUT(1, 2), CUT(2, 2)},
    {CUT(0, 3), CUT(1, 3)},
};

/* A place says where the codes of a plane lie. */
struct place {
    const uint8_t *at; /* the nibble */
    const struct cut *cut;
};

INLINE struct place place_of(const struct transform_plane *plane, const uint8_t *codes) {
    return (struct place){codes + (size_t)plane->nibble * PAGE_TRANSFORM_NIBBLE, &cuts[plane->shift][plane->bits]};
}

/* Returns whether a plane has its nibble to itself. Such planes come first. */
INLINE bool is_whole(const struct transform_plane *plane) { return plane->bits == TRANSFORM_NIBBLE_BITS; }

/* Prefetches a part of a page. Called for each plane in turn, it covers every nibble, of which there are no more than planes. All
 * at once they would be more lines than the first cache can wait for. */
INLINE void prefetch_plane(const struct transform_layout *layout, size_t p, const uint8_t *codes) {
    if (p < layout->nibbles) prefetch_step(codes, p, PAGE_TRANSFORM_NIBBLE);
}
