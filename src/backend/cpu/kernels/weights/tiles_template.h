/* This template implements matmul[] and fix[] of the formats with codes of four to six bits that have kernels of integers. One
 * file of each instruction set includes it; FILL_TILES(ops) sets the functions. Parameters:
 *
 *     ISA                             suffix of the functions
 *     LANES                           rows to a register: 8 or 16
 *     PARTS                           registers of rows to a tile
 *     VECTORS_MOST                    vectors that are multiplied together, a power of two up to 8
 *     VECTORS_MOST_OF_PLANES          the same of numbers in two planes, which have two sums
 *     ints, floats, MM(operation)     registers of LANES dwords and floats, and the intrinsics on them
 *     ints_and, ints_or, ints_andnot(a, b)      the last: b where a has no bits
 *     REGISTER(x)                     constraint of an operand of asm that is read and written in a register
 *     halves_of_dwords(x)             halves, the lower words of dwords whose upper ones are 0, as floats
 *     repeat(x)                       sixteen bytes, in each 128 bits
 *     load_pieces(at, apart, to[4])   sixteen bytes at at, at + apart, ...: dword d of them in to[d], a lane for each address
 *     ZERO_IN_WORDS                   whether the sums of add_bytes are words
 *     start_bytes(zero), add_bytes(sum, codes, number), end_bytes(sum)
 *                                     together, over a group's codes and numbers, as floats: in each dword the sum of the products of its four bytes
 *                                     and the number's, and `zero`
 *     start_signed, add_signed, end_signed      the same of codes of -127 to 127 to which SIGNED_ZERO is added
 *     start_planes, add_planes, end_planes      the same of numbers in two planes, which have a sum each
 *
 * The lanes of a register are rows of weights. So a product needs no sum across lanes, one load of a vector serves all of them, and
 * the scales of a group are one register. ROWS rows of 256 weights at a time are brought into that order: a tile, which stays in
 * the first-level cache and is multiplied by all vectors. A vector alone is computed in the same way, so a product is the same bits
 * whatever it is computed with: a batch changes no session's tokens. With Q4_K it is multiplied while the tile is unpacked, which then
 * need not be stored; registers of sixteen rows lose by this with long rows. ROWS streams of memory, of each a few lines at a time, are
 * more than the processor's own prefetching follows, so the tile below is fetched meanwhile.
 *
 * Measured on a Zen 4: eight vectors of Q4_0 take half the time that sums across lanes took; tiles of 64 columns instead of 256
 * take a sixth more. docs/reports/batches.md has figures. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_TILES_TEMPLATE_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_TILES_TEMPLATE_H

#include "backend/cpu/kernels/weights/tiles_fixed.h"
#include "format/weight_blocks.h"

#include <stdbool.h>

#define STRIP 256 /* weights of a row in a tile: a block of a K type */
#define GROUPS_MOST (STRIP / WORDS_OF_GROUP)
#define MATMUL_MOST 16 /* vectors, for which there are sums */
#define STRIP_BYTES_MOST (STRIP / WEIGHT_BLOCK * sizeof(struct weight_q8_0))

/* A part is LANES rows: groups of codes and their scales, and minima of formats that have some. A group is four registers or eight: codes
 * of bytes or words, one to a number, or two nibbles to a byte. */
struct part {
    ints codes[8 * GROUPS_MOST];
    floats scale[GROUPS_MOST];
    floats min[GROUPS_MOST];
};

#define ROWS (PARTS * LANES)
typedef float sums[MATMUL_MOST][ROWS];

/* A product prefetches these bytes meanwhile: the same part of the tile below. It prefetches some with each group, since bursts
 * would wait for each other. */
struct below {
    const uint8_t *at;
    size_t bytes_of_group; /* 0: nothing */
};
INLINE void prefetch_below(struct below below, size_t g) {
    for (size_t at = 0; at < below.bytes_of_group; at += 64)
        __builtin_prefetch((const void *)((uintptr_t)below.at + g * below.bytes_of_group + at), 0, 2);
}

struct format {
    size_t block, block_bytes; /* weights, bytes */
    size_t group;              /* weights */
    size_t rotated;            /* each so many numbers are rotated as the codes of their block are; 0: none */
    int zero;                  /* the code that means zero, of bytes */
    void (*fix)(const float *x, int zero, struct fixed_group *f);
    size_t together;                                                  /* vectors that are multiplied together at most */
    void (*pack)(const uint8_t *at, size_t apart, struct part *tile); /* the LANES rows at at, at + apart, ... */
    void (*multiply[4])(const struct part *tile, size_t groups, const struct fixed_group *const *x, size_t first,
                        float (*sum)[ROWS], struct below below);
    /* Adds to sum[] the products of the LANES rows at at, at + apart, ... with one vector; NULL: a tile is made for it, too. */
    void (*alone)(const uint8_t *at, size_t apart, const struct fixed_group *x, float sum[LANES], const uint8_t *below);
};

/* ---- Vectors -------------------------------------------------------------------------------------------------------------- */

/* Blocks of 32 begin with their scale, so codes are some bytes off the dwords: those after the first whole dwords come in front. A
 * vector's numbers are rotated likewise. */
static void fix(const struct format *format, const float *x, size_t n, struct fixed_group *f) {
    const size_t group = format->group, r = format->rotated;
    for (size_t i = 0; i < n; i += WEIGHT_BLOCK) {
        float block[WEIGHT_BLOCK];
        const float *own = x + i;
        const size_t off = r ? ((i / WEIGHT_BLOCK + 1) * format->block_bytes - r) % 4 : 0;
        if (off) {
            for (size_t j = 0; j < WEIGHT_BLOCK; j += r) {
                memcpy(block + j, own + j + r - off, off * sizeof *block);
                memcpy(block + j + off, own + j, (r - off) * sizeof *block);
            }
            own = block;
        }
        for (size_t j = 0; j < WEIGHT_BLOCK; j += group, f++) format->fix(own + j, format->zero, f);
    }
}

/* ---- Tiles ---------------------------------------------------------------------------------------------------------------- */

INLINE ints low_nibbles(ints x) { return ints_and(x, MM(set1_epi8)(15)); }
INLINE ints high_nibbles(ints x) { return low_nibbles(MM(srli_epi16)(x, 4)); }

/* Returns the first codes of a block that begins `off` bytes before the last of d[0], d[dwords] having its last: these come in front,
 * as a vector's numbers do. */
INLINE ints first_codes(const ints *d, int dwords, int off) {
    const ints first = MM(set1_epi32)((int)(0xffffffff << 8 * off));
    return ints_or(ints_and(d[0], first), ints_andnot(first, d[dwords]));
}
INLINE floats low_half(ints x) { return halves_of_dwords(ints_and(x, MM(set1_epi32)(0xffff))); }
INLINE floats high_half(ints x) { return halves_of_dwords(MM(srli_epi32)(x, 16)); }

/* Repeats a table of sixteen codes plus that which means zero. */
INLINE ints table_of(const int8_t values[16], int zero) {
    return values ? MM(add_epi8)(repeat(_mm_loadu_si128((const __m128i *)values)), MM(set1_epi8)((char)zero)) : MM(set1_epi8)(0);
}

INLINE void load_32(const uint8_t *at, size_t apart, ints to[8]) {
    UNROLL for (int i = 0; i < 2; i++) load_pieces(at + 16 * i, apart, to + 4 * i);
}

/* A vector that is multiplied alone needs no tile: a group's codes are multiplied as soon as they are unpacked, and not stored. */
struct single {
    const struct fixed_group *x;
    struct below below;
    floats total;
};

/* Loads of rows are spread among products then, so the first-level cache gets the next strip of the same rows beforehand. */
INLINE void prefetch_strip(const uint8_t *at, size_t apart, size_t bytes) {
    for (size_t j = 0; j < LANES; j++) {
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const void *)((uintptr_t)at + j * apart + i));
    }
}

/* Puts group g of a format with minima and codes of bytes into the tile, or multiplies it where there is a vector alone. Groups come
 * in order, and are added up as MULTIPLY does it, so that the vector gets the same bits as beside others. */
INLINE void take_bytes(struct part *tile, struct single *one, int g, const ints codes[8], floats scale, floats min) {
    if (!one) {
        UNROLL for (int d = 0; d < 8; d++) tile->codes[8 * g + d] = codes[d];
        tile->scale[g] = scale;
        tile->min[g] = min;
    } else {
        const struct fixed_group *f = one->x + g;
        ints products[1] = {start_bytes(f->zero[0])};
        prefetch_below(one->below, (size_t)g);
        UNROLL for (int d = 0; d < 8; d++) {
            products[0] = add_bytes(products[0], codes[d], &f->numbers[d]);
            __asm__("" : REGISTER(products[0])); /* clang 14 would load all numbers first, onto the stack */
        }
        one->total = MM(fmadd_ps)(end_bytes(products), MM(mul_ps)(scale, MM(set1_ps)(f->step)), one->total);
        one->total = MM(fnmadd_ps)(min, MM(set1_ps)(f->sum), one->total);
    }
}

/* Packs pairs of blocks of nine dwords: the first block is two bytes off the dwords, its scale in front; the second's is behind its last two
 * codes. */
static void pack_q4_0(const uint8_t *at, size_t apart, struct part *tile) {
    ints d[4 * 9]; /* four pairs of nine dwords */
    UNROLL for (int k = 0; k < 4; k++) {
        UNROLL for (int p = k ? 2 * k + 1 : 0; p <= 2 * k + 2; p++) load_pieces(at + 16 * p, apart, d + 4 * p);
        const ints *pair = d + 9 * k;
        ints *codes = tile->codes + 8 * k;
        tile->scale[2 * k] = low_half(pair[0]);
        tile->scale[2 * k + 1] = high_half(pair[4]);
        UNROLL for (int i = 0; i < 4; i++) {
            codes[i] = i ? pair[i] : first_codes(pair, 4, 2);
            codes[4 + i] = pair[5 + i];
        }
    }
}

/* Packs one block: two bits of a scale are in a word, four in a dword. */
static void pack_iq4_xs(const uint8_t *at, size_t apart, struct part *tile) {
    ints head[4];
    load_pieces(at, apart, head);
    const floats scale = low_half(head[0]);
    const ints high = MM(srli_epi32)(head[0], 16), low = head[1];
    UNROLL for (int g = 0; g < 8; g++) {
        const ints four = ints_and(MM(srli_epi32)(low, 4 * g), MM(set1_epi32)(15));
        const ints two = ints_and(g < 2 ? MM(slli_epi32)(high, 4 - 2 * g) : MM(srli_epi32)(high, 2 * g - 4), MM(set1_epi32)(48));
        tile->scale[g] = MM(mul_ps)(scale, MM(cvtepi32_ps)(MM(sub_epi32)(ints_or(four, two), MM(set1_epi32)(32))));
        load_pieces(at + offsetof(struct weight_iq4_xs, codes) + 16 * g, apart, tile->codes + 4 * g);
    }
}

/* Unpacks the lanes' own scales and minima as weight_group_scales does; returns them to be multiplied by *scale and *min. */
INLINE void load_group_scales(const uint8_t *at, size_t apart, floats *scale, floats *min, ints s[2], ints m[2]) {
    ints head[4];
    load_pieces(at, apart, head);
    *scale = low_half(head[0]);
    *min = high_half(head[0]);
    const ints six = MM(set1_epi32)(0x3f3f3f3f), four = MM(set1_epi32)(0x0f0f0f0f), two = MM(set1_epi32)(0x30303030);
    s[0] = ints_and(head[1], six);
    s[1] = ints_or(ints_and(head[3], four), ints_and(MM(srli_epi32)(head[1], 2), two));
    m[0] = ints_and(head[2], six);
    m[1] = ints_or(ints_and(MM(srli_epi32)(head[3], 4), four), ints_and(MM(srli_epi32)(head[2], 2), two));
}
INLINE floats times_byte(floats scale, const ints *bytes, int g) {
    const ints byte = ints_and(MM(srli_epi32)(bytes[g / 4], 8 * (g % 4)), MM(set1_epi32)(255));
    return MM(mul_ps)(scale, MM(cvtepi32_ps)(byte));
}

/* Unpacks one block: of 32 bytes the low four bits are a group, the high ones the next. */
INLINE void unpack_q4_k(const uint8_t *at, size_t apart, struct part *tile, struct single *one) {
    floats scale, min;
    ints s[2], m[2];
    load_group_scales(at, apart, &scale, &min, s, m);
    UNROLL for (int i = 0; i < 4; i++) {
        ints both[8];
        load_32(at + offsetof(struct weight_q4_k, codes) + 32 * i, apart, both);
        UNROLL for (int g = 2 * i; g < 2 * i + 2; g++) {
            ints codes[8];
            UNROLL for (int d = 0; d < 8; d++) codes[d] = g % 2 ? high_nibbles(both[d]) : low_nibbles(both[d]);
            take_bytes(tile, one, g, codes, times_byte(scale, s, g), times_byte(min, m, g));
        }
    }
}
static void pack_q4_k(const uint8_t *at, size_t apart, struct part *tile) { unpack_q4_k(at, apart, tile, NULL); }
static void alone_q4_k(const uint8_t *at, size_t apart, const struct fixed_group *x, float sum[LANES], const uint8_t *below) {
    const size_t bytes = sizeof(struct weight_q4_k);
    struct single one = {x, {below, LANES * bytes / 8}, MM(load_ps)(sum)};
    prefetch_strip(at + bytes, apart, bytes);
    unpack_q4_k(at, apart, NULL, &one);
    MM(store_ps)(sum, one.total);
}

/* Packs one block: the same, with fifth bits. */
static void pack_q5_k(const uint8_t *at, size_t apart, struct part *tile) {
    const ints fifth = MM(set1_epi8)(16);
    floats scale, min;
    ints s[2], m[2];
    load_group_scales(at, apart, &scale, &min, s, m);
    UNROLL_16 for (int g = 0; g < 16; g++) {
        tile->scale[g] = times_byte(scale, s, g / 2);
        tile->min[g] = times_byte(min, m, g / 2);
    }
    UNROLL for (int piece = 0; piece < 2; piece++) {
        ints top[4];
        load_pieces(at + offsetof(struct weight_q5_k, high) + 16 * piece, apart, top);
        UNROLL for (int k = 0; k < 4; k++) {
            ints both[4], *low = tile->codes + 16 * k + 4 * piece;
            load_pieces(at + offsetof(struct weight_q5_k, codes) + 32 * k + 16 * piece, apart, both);
            UNROLL for (int d = 0; d < 4; d++) {
                const ints first = k < 2 ? MM(slli_epi16)(top[d], 4 - 2 * k) : MM(srli_epi16)(top[d], 2 * k - 4);
                const ints second = k < 2 ? MM(slli_epi16)(top[d], 3 - 2 * k) : MM(srli_epi16)(top[d], 2 * k - 3);
                low[d] = ints_or(low_nibbles(both[d]), ints_and(first, fifth));
                low[8 + d] = ints_or(high_nibbles(both[d]), ints_and(second, fifth));
            }
        }
    }
}

/* ---- Products ------------------------------------------------------------------------------------------------------------- */

INLINE bool is_table(const int8_t *values) { return values; } /* gcc would warn of the comparison of an array's address */

/* Adds to sum[X] the first `groups` groups of a tile times those of X vectors from `first` on. REGISTERS of a group are in the tile; four
 * have nibbles, which are indices of TABLE where there is one, or are multiplied by two PLANES. */
#define MULTIPLY(name, of, REGISTERS, PLANES, TABLE, TABLE_ZERO, MINS, X) \
    static void name(const struct part *tile, size_t groups, const struct fixed_group *const *x, size_t first, float(*sum)[ROWS], \
                     struct below below) { \
        const struct fixed_group *own[X]; \
        floats total[X][PARTS]; \
        const ints table = table_of(TABLE, TABLE_ZERO); \
        UNROLL for (size_t t = 0; t < X; t++) { \
            own[t] = x[t] + first; \
            UNROLL for (size_t p = 0; p < PARTS; p++) total[t][p] = MM(load_ps)(sum[t] + LANES * p); \
        } \
        for (size_t g = 0; g < groups; g++) { \
            ints products[X][PARTS][PLANES]; \
            prefetch_below(below, g); \
            UNROLL for (size_t t = 0; t < X; t++) { \
                UNROLL for (size_t p = 0; p < PARTS; p++) { \
                    UNROLL for (int plane = 0; plane < PLANES; plane++) products[t][p][plane] = start_##of(own[t][g].zero[plane]); \
                } \
            } \
            UNROLL for (int d = 0; d < REGISTERS; d++) { \
                ints codes[PARTS], second[PARTS]; \
                UNROLL for (size_t p = 0; p < PARTS; p++) { \
                    codes[p] = tile[p].codes[g * REGISTERS + d]; \
                    __asm__("" : REGISTER(codes[p])); /* gcc 12 would load it again for each vector */ \
                    second[p] = codes[p]; \
                    if (REGISTERS == 4 && PLANES == 1) { \
                        second[p] = high_nibbles(codes[p]); \
                        codes[p] = low_nibbles(codes[p]); \
                    } \
                    if (is_table(TABLE)) { \
                        second[p] = MM(shuffle_epi8)(table, second[p]); \
                        codes[p] = MM(shuffle_epi8)(table, codes[p]); \
                    } \
                } \
                UNROLL for (size_t t = 0; t < X; t++) { \
                    UNROLL for (size_t p = 0; p < PARTS; p++) products[t][p][0] = \
                        add_##of(products[t][p][0], codes[p], &own[t][g].numbers[d]); \
                } \
                UNROLL for (size_t t = 0; t < X && REGISTERS == 4; t++) { \
                    UNROLL for (size_t p = 0; p < PARTS; p++) products[t][p][PLANES - 1] = \
                        add_##of(products[t][p][PLANES - 1], second[p], &own[t][g].numbers[4 + d]); \
                } \
            } \
            UNROLL for (size_t t = 0; t < X; t++) { \
                const struct fixed_group *f = own[t] + g; \
                UNROLL for (size_t p = 0; p < PARTS; p++) { \
                    const floats whole = end_##of(products[t][p]); \
                    total[t][p] = MM(fmadd_ps)(whole, MM(mul_ps)(tile[p].scale[g], MM(set1_ps)(f->step)), total[t][p]); \
                    if (MINS) total[t][p] = MM(fnmadd_ps)(tile[p].min[g], MM(set1_ps)(f->sum), total[t][p]); \
                } \
            } \
        } \
        UNROLL for (size_t t = 0; t < X; t++) { \
            UNROLL for (size_t p = 0; p < PARTS; p++) MM(store_ps)(sum[t] + LANES * p, total[t][p]); \
        } \
    }

#define MULTIPLY_ALL(kind, ...) \
    MULTIPLY(multiply_1_##kind, __VA_ARGS__, 1) \
    MULTIPLY(multiply_2_##kind, __VA_ARGS__, 2) \
    MULTIPLY(multiply_4_##kind, __VA_ARGS__, 4) \
    MULTIPLY(multiply_8_##kind, __VA_ARGS__, 8)
#define MULTIPLIERS(kind) \
    { multiply_1_##kind, multiply_2_##kind, multiply_4_##kind, multiply_8_##kind }

MULTIPLY_ALL(nibbles, bytes, 4, 1, NULL, 0, false)
MULTIPLY_ALL(iq4, signed, 4, 1, weight_iq4_values, SIGNED_ZERO, false)
MULTIPLY_ALL(bytes, bytes, 8, 1, NULL, 0, true)
MULTIPLY_ALL(planes, planes, 4, 2, NULL, 0, false)
MULTIPLY_ALL(planes_less_min, planes, 4, 2, NULL, 0, true)

static void multiply_tile(const struct format *format, const struct part *tile, size_t n, size_t first, const void *const *x,
                          size_t count, sums sum, struct below below) {
    const struct fixed_group *vector[MATMUL_MOST];
    for (size_t t = 0; t < count; t++) vector[t] = x[t];
    for (size_t t = 0, some = format->together; t < count; t += some) {
        while (some > count - t) some /= 2;
        format->multiply[some == 8 ? 3 : some / 2](tile, n / format->group, vector + t, first / format->group, sum + t, below);
        below.bytes_of_group = 0;
    }
}

/* ---- Matrices ------------------------------------------------------------------------------------------------------------- */

static void matmul(const struct format *format, const uint8_t *w, size_t row_bytes, size_t rows, size_t n, const void *const *x,
                   size_t count, float *y, size_t stride) {
    for (size_t r = 0; r < rows; r += ROWS, w += ROWS * row_bytes) {
        const size_t some_rows = SMALLER(rows - r, ROWS);
        _Alignas(64) sums sum;
        memset(sum, 0, count * sizeof sum[0]);
        for (size_t i = 0; i < n; i += STRIP) {
            const size_t some = SMALLER(n - i, STRIP);
            const size_t first = i / format->block * format->block_bytes, bytes = some / format->block * format->block_bytes;
            const uint8_t *at = w + first;
            size_t apart = row_bytes;
            uint8_t whole[ROWS][STRIP_BYTES_MOST];
            if (some < STRIP || some_rows < ROWS) {
                memset(whole, 0, sizeof whole);
                for (size_t j = 0; j < some_rows; j++) memcpy(whole[j], at + j * row_bytes, bytes);
                at = whole[0];
                apart = sizeof whole[0];
            }
            const uint8_t *below = (const uint8_t *)((uintptr_t)w + ROWS * (row_bytes + first));
            if (format->alone && count == 1 && some == STRIP) {
                const struct fixed_group *vector = x[0];
                for (size_t p = 0; p < PARTS; p++)
                    format->alone(at + p * LANES * apart, apart, vector + i / format->group, sum[0] + p * LANES,
                                  (const uint8_t *)((uintptr_t)below + p * LANES * bytes));
            } else {
                struct part tile[PARTS];
                for (size_t p = 0; p < PARTS; p++) format->pack(at + p * LANES * apart, apart, tile + p);
                multiply_tile(format, tile, some, i, x, count, sum, (struct below){below, ROWS * bytes / (some / format->group)});
            }
        }
        for (size_t t = 0; t < count; t++) memcpy(y + t * stride + r, sum[t], some_rows * sizeof *y);
    }
}

#define TILE_MATMUL(type, columns, of_group, fix_group, rotated, zero, together, pack, kind, alone) \
    static const struct format format_##type = { \
        columns, sizeof(struct weight_##type), of_group, rotated, zero, fix_group, together, pack, MULTIPLIERS(kind), alone}; \
    static void PASTE(matmul_##type, ISA)(const void *w, size_t row_bytes, size_t rows, size_t n, const void *const *x, \
                                          size_t count, float *y, size_t stride) { \
        for (size_t t = 0; t < count; t += MATMUL_MOST) \
            matmul(&format_##type, w, row_bytes, rows, n, x + t, SMALLER(count - t, MATMUL_MOST), y + t * stride, stride); \
    } \
    static void PASTE(fix_##type, ISA)(const float *x, size_t n, void *fixed) { fix(&format_##type, x, n, fixed); } \
    static size_t fixed_bytes_##type(size_t n) { return (n / of_group * sizeof(struct fixed_group) + 63) / 64 * 64; }
#define TILE_BYTES(type, columns, rotated, zero, pack, kind, alone) \
    TILE_MATMUL(type, columns, BYTES_OF_GROUP, group_of_bytes, rotated, zero, VECTORS_MOST, pack, kind, alone)
#define TILE_PLANES(type, columns, rotated, zero, pack, kind, alone) \
    TILE_MATMUL(type, columns, WORDS_OF_GROUP, group_of_planes, rotated, zero, VECTORS_MOST_OF_PLANES, pack, kind, alone)

TILE_BYTES(q4_0, WEIGHT_BLOCK, 16, 8, pack_q4_0, nibbles, NULL)
TILE_BYTES(iq4_nl, WEIGHT_BLOCK, 16, SIGNED_ZERO, pack_q4_0, iq4, NULL) /* blocks lie as those of Q4_0 */
TILE_BYTES(iq4_xs, WEIGHT_BLOCK_K, 0, SIGNED_ZERO, pack_iq4_xs, iq4, NULL)
TILE_BYTES(q4_k, WEIGHT_BLOCK_K, 0, 0, pack_q4_k, bytes, LANES == 8 ? alone_q4_k : NULL)
TILE_PLANES(q5_k, WEIGHT_BLOCK_K, 0, 0, pack_q5_k, planes_less_min, NULL)

#define FILL_TILES(ops) \
    FILL_ONE(ops, Q4_0, q4_0); \
    FILL_ONE(ops, IQ4_NL, iq4_nl); \
    FILL_ONE(ops, IQ4_XS, iq4_xs); \
    FILL_ONE(ops, Q4_K, q4_k); \
    FILL_ONE(ops, Q5_K, q5_k)
#define FILL_ONE(ops, TYPE, type) \
    (ops)->fixed_bytes[TENSOR_##TYPE] = fixed_bytes_##type; \
    (ops)->fix[TENSOR_##TYPE] = PASTE(fix_##type, ISA); \
    (ops)->matmul[TENSOR_##TYPE] = PASTE(matmul_##type, ISA); \
    (ops)->gemm_rows[TENSOR_##TYPE] = 48

#endif
