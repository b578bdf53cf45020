/* Implements matmul of weights of four to eight bits with AVX-512 (VNNI): weights/tiles_template.h with sixteen rows to a
 * tile. A number of a vector is an operand in memory, which the instruction itself repeats in all lanes. */
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/lanes/avx512_fixed.h"

#define ISA avx512
#define LANES 16
#define PARTS 1
#define VECTORS_MOST 8
#define VECTORS_MOST_OF_PLANES 8
typedef __m512i ints;
typedef __m512 floats;
#define MM(operation) _mm512_##operation
#define REGISTER(x) "+v"(x)
INLINE ints ints_and(ints a, ints b) { return _mm512_and_si512(a, b); }
INLINE ints ints_or(ints a, ints b) { return _mm512_or_si512(a, b); }
INLINE ints ints_andnot(ints a, ints b) { return _mm512_andnot_si512(a, b); }
INLINE ints repeat(__m128i x) { return _mm512_broadcast_i32x4(x); }
INLINE floats halves_of_dwords(ints x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }

INLINE void load_pieces(const uint8_t *at, size_t apart, ints to[4]) {
    __m512i pieces[4];
    UNROLL for (size_t i = 0; i < 4; i++) pieces[i] = four_pieces(at + i * apart, 4 * apart);
    transpose_fours(pieces, to);
}

#define ZERO_IN_WORDS false
#include "backend/cpu/kernels/weights/tiles_fixed.h"

#include "backend/cpu/kernels/weights/vnni_sums.h"

INLINE ints add_bytes(ints sum, ints codes, const int32_t *number) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*number));
    return sum;
}

#include "backend/cpu/kernels/weights/tiles_template.h"

#include "backend/cpu/kernels/weights/avx512_fine.h"

void weights_init_avx512_tiles(struct weights_ops *ops) {
    FILL_TILES(ops);
    FILL_ONE(ops, Q6_K, q6_k);
    FILL_ONE(ops, Q8_0, q8_0);
}
