/* Template: tokens of a page of the codec transform copied into another, a word of 32 bits at a time: a key's four components of a plane
 * lie in one, a value's in a byte of four. No parameter but ISA; gather_ISA comes out. */
#include "backend/cpu/kernels/compiler.h"
#include "format/page_layout.h"
#include "format/shape.h"
#include "format/transform.h"

#include <string.h>

/* How codes of 1, 2 or 4 bits get from a slot of a plane to one of another: bytes of the first word, and what becomes of each word. */
struct word_move {
    size_t from, to;
    uint32_t right, left; /* shifts, one after the other */
    uint32_t mask;        /* of the bits that are the slot's */
};

/* Where a slot's words begin in a plane, and its lowest bit in them. */
INLINE size_t first_word(bool keys, unsigned bits, size_t slot, uint32_t *shift) {
    size_t octet = slot / 8, byte = keys ? 4 * (slot % 8) : 16 * (slot % 8 / 4);
    *shift = keys ? 0 : 8 * (uint32_t)(slot % 4);
    if (bits == 1) {
        *shift += (uint32_t)octet;
        return byte;
    }
    *shift += bits == 2 ? (uint32_t)(octet / 2 * 2) : (uint32_t)(octet / 2 % 2 * 4);
    return byte + 32 * (octet % 2) + (bits == 2 ? 0 : 64 * (octet / 4));
}

INLINE struct word_move word_move_of(bool keys, unsigned bits, size_t from, size_t to) {
    struct word_move move;
    uint32_t source, target;
    move.from = first_word(keys, bits, from, &source);
    move.to = first_word(keys, bits, to, &target);
    move.right = source > target ? source - target : 0;
    move.left = target > source ? target - source : 0;
    move.mask = (keys ? 0x01010101u : 1u) * ((1u << bits) - 1) << target;
    return move;
}

typedef uint32_t four_words __attribute__((vector_size(16)));

/* `planes` planes that lie `stride` bytes apart. */
INLINE void move_words(bool keys, struct word_move move, const uint8_t *from, uint8_t *to, size_t planes, size_t stride) {
    from += move.from;
    to += move.to;
    const four_words right = {move.right, move.right, move.right, move.right}, left = {move.left, move.left, move.left, move.left},
                     mask = {move.mask, move.mask, move.mask, move.mask};
    for (size_t p = 0; p < planes; p++, from += stride, to += stride) {
        if (keys) {
            uint32_t x, y;
            memcpy(&x, from, sizeof x);
            memcpy(&y, to, sizeof y);
            y ^= (y ^ x >> move.right << move.left) & move.mask;
            memcpy(to, &y, sizeof y);
        } else {
            four_words x, y;
            memcpy(&x, from, sizeof x);
            memcpy(&y, to, sizeof y);
            y ^= (y ^ x >> right << left) & mask;
            memcpy(to, &y, sizeof y);
        }
    }
}

/* Slots slots[n] of `planes` planes of `bits` bits, which lie `stride` bytes apart. */
INLINE void gather_planes(bool keys, unsigned bits, const uint8_t *from, const uint8_t *slots, size_t n, uint8_t *to, size_t at,
                          size_t planes, size_t stride) {
    for (size_t k = 0; k < n; k++) move_words(keys, word_move_of(keys, bits, slots[k], at + k), from, to, planes, stride);
}

INLINE void gather_side(bool keys, const struct transform_layout *layout, const uint8_t *from, const uint8_t *slots, size_t n,
                        uint8_t *to, size_t at) {
    for (size_t first = 0, end; first < layout->planes; first = end) {
        const unsigned bits = layout->plane[first].bits;
        const size_t stride = PAGE_TRANSFORM_PLANE(bits);
        for (end = first + 1; end < layout->planes && layout->plane[end].bits == bits;) end++;
        const size_t planes = end - first;
        switch (bits) {
        case 1: gather_planes(keys, 1, from, slots, n, to, at, planes, stride); break;
        case 2: gather_planes(keys, 2, from, slots, n, to, at, planes, stride); break;
        case 3:
            gather_planes(keys, 2, from, slots, n, to, at, planes, stride);
            gather_planes(keys, 1, from + PAGE_TRANSFORM_PLANE(2), slots, n, to + PAGE_TRANSFORM_PLANE(2), at, planes, stride);
            break;
        default: gather_planes(keys, 4, from, slots, n, to, at, planes, stride); break;
        }
        from += planes * stride;
        to += planes * stride;
    }
}

static void PASTE(gather, ISA)(const struct transform_layout *layout, enum codec_side side, const void *from, const uint8_t *slots,
                               size_t n, void *to, size_t at) {
    if (side == CODEC_KEYS)
        gather_side(true, layout, from, slots, n, to, at);
    else
        gather_side(false, layout, from, slots, n, to, at);
}
