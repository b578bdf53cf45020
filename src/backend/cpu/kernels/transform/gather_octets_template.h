/* This template copies tokens of a page of the codec transform into another with AVX2. Each octet that is written takes its tokens,
 * which are dwords, from the octets of the other page, for all nibbles alike. Values become such dwords by transposing 128 bits as
 * 4 by 4 bytes, and become values again in the same way. octets_template.h, which defines load(), OCTET and ISA, includes it once;
 * it defines gather_ISA. */
#include "format/page_layout.h"
#include "format/shape.h"

struct octet_moves {
    bool any;           /* of its slots are written */
    __m256i live;       /* bytes of those: all bits set */
    __m256i from;       /* where their dwords lie in their octet */
    __m256i odd, upper; /* all bits set where that is an odd octet, and one of the last four */
    __m256i shift;      /* lowest bit of theirs */
};

/* Makes a dword of the components of a value's token, or values of the dwords of tokens again; keys are such dwords already. */
INLINE __m256i transpose_values(bool keys, __m256i x) {
    const __m128i by = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return keys ? x : _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(by));
}

/* Returns the moves for the octet `half` of 16 slots, of which n from `first` on are written from slots[16]. */
INLINE struct octet_moves octet_moves_of(bool keys, const uint8_t *slots, size_t first, size_t n, size_t half) {
    const __m256i number = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * (int)half));
    const __m256i slot = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(slots + 8 * half)));
    const __m256i octet = _mm256_srli_epi32(slot, 3), pair = _mm256_srli_epi32(slot, 4);
    struct octet_moves moves = {.from = slot};
    __m256i live = _mm256_and_si256(_mm256_cmpgt_epi32(number, _mm256_set1_epi32((int)first - 1)),
                                    _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(first + n)), number));
    moves.any = !_mm256_testz_si256(live, live);
    moves.live = transpose_values(keys, live);
    moves.odd = _mm256_srai_epi32(_mm256_slli_epi32(octet, 31), 31);
    moves.upper = _mm256_srai_epi32(_mm256_slli_epi32(octet, 29), 31);
    moves.shift = _mm256_slli_epi32(_mm256_and_si256(pair, _mm256_set1_epi32(1)), 2);
    return moves;
}

/* Writes the lowest four bits of each byte of x to those from bit `at` on where slots are written. */
INLINE void write_codes(bool keys, const struct octet_moves *moves, size_t at, __m256i x, uint8_t *to) {
    const __m256i mask = _mm256_and_si256(moves->live, _mm256_set1_epi8((char)(15u << at))), old = load(to);
    x = transpose_values(keys, _mm256_sll_epi32(x, _mm_cvtsi32_si128((int)at)));
    _mm256_storeu_si256((__m256i *)to, _mm256_xor_si256(old, _mm256_and_si256(_mm256_xor_si256(old, x), mask)));
}

/* Takes the dwords of an even octet and the odd one after it. */
INLINE __m256i from_pair(const struct octet_moves *moves, const __m256i *codes) {
    __m256i even = _mm256_permutevar8x32_epi32(codes[0], moves->from), odd = _mm256_permutevar8x32_epi32(codes[1], moves->from);
    return _mm256_blendv_epi8(even, odd, moves->odd);
}

INLINE void move_nibble(bool keys, const struct octet_moves *moves, size_t row, const uint8_t *from, uint8_t *to) {
    __m256i codes[4];
    UNROLL for (size_t i = 0; i < 4; i++) codes[i] = transpose_values(keys, load(from + i * OCTET));
    UNROLL for (size_t half = 0; half < 2; half++) {
        if (!moves[half].any) continue;
        __m256i x = _mm256_blendv_epi8(from_pair(&moves[half], codes), from_pair(&moves[half], codes + 2), moves[half].upper);
        x = _mm256_srlv_epi32(x, moves[half].shift);
        write_codes(keys, &moves[half], row % 2 * 4, x, to + row / 2 * 64 + half * OCTET);
    }
}

INLINE void gather_side(bool keys, const struct transform_layout *layout, const uint8_t *from, const uint8_t *slots, size_t n,
                        uint8_t *to, size_t at) {
    for (size_t k = 0, some; k < n; k += some, at += some) {
        uint8_t sixteen[16] = {0};
        const size_t first = at % 16;
        some = SMALLER(16 - first, n - k);
        for (size_t i = 0; i < some; i++) sixteen[first + i] = slots[k + i];
        struct octet_moves moves[2];
        UNROLL for (size_t half = 0; half < 2; half++) moves[half] = octet_moves_of(keys, sixteen, first, some, half);
        for (size_t nibble = 0; nibble < layout->nibbles; nibble++)
            move_nibble(keys, moves, at / 16, from + nibble * PAGE_TRANSFORM_NIBBLE, to + nibble * PAGE_TRANSFORM_NIBBLE);
    }
}

static void PASTE(gather, ISA)(const struct transform_layout *layout, enum codec_side side, const void *from, const uint8_t *slots,
                               size_t n, void *to, size_t at) {
    if (side == CODEC_KEYS)
        gather_side(true, layout, from, slots, n, to, at);
    else
        gather_side(false, layout, from, slots, n, to, at);
}
