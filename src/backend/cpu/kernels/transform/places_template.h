/* This template finds the codes of a plane in a page. A file that defines INLINE, SMALLER and prefetch_step includes it once. */
#include "format/page_layout.h"
#include "format/transform.h"

/* A place says where the codes of a plane lie: from bit `shift` and from bit `shift` + 4 of each of a nibble's bytes on. */
struct place {
    const uint8_t *at; /* the nibble */
    uint32_t mask;     /* the largest code, in each of four bytes */
    uint32_t shift;
};

INLINE struct place place_of(const struct transform_plane *plane, const uint8_t *codes) {
    return (struct place){codes + (size_t)plane->nibble * PAGE_TRANSFORM_NIBBLE, 0x01010101u * transform_most(plane->bits),
                          plane->shift};
}

/* Prefetches a part of a page. Called for each plane in turn, it covers every nibble, of which there are no more than planes. All
 * at once they would be more lines than the first cache can wait for. */
INLINE void prefetch_plane(const struct transform_layout *layout, size_t p, const uint8_t *codes) {
    if (p < layout->nibbles) prefetch_step(codes, p, PAGE_TRANSFORM_NIBBLE);
}
