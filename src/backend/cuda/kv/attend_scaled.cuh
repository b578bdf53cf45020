/* Implements decoding over pages of halves and of integers with scales: f16, q8_0, q4_0, kivi. format/page_layout.h says how the
 * bytes of a page lie.
 *
 * A side, keys or values of a codec, is read in pieces, of some channels of all tokens or of some tokens, that a warp copies to a
 * ring of slots of its own in shared memory well before it reads them. Matrices of 16-bit numbers come out of a slot transposed: of
 * halves as they are; of codes, a pair of bytes, of two rows at once, so that a mask makes of a word two codes that follow one
 * another in the index over which the product sums. Codes enter the products without conversion, as the bits of subnormal halves
 * (code times 2^-24). What is constant over a sum (zero points, the queries' scales, 2^24) is added or multiplied once.
 *
 * A side's functions take the codec's id, which all but the sides that stand for any codec ignore. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_SCALED_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_SCALED_CUH

#include "backend/cuda/kv/attend_common.cuh"

constexpr int SCALED_WARPS = 8;
constexpr float SUBNORMAL = 16777216.0f; /* 2^24: a half's bits 1 stand for 2^-24 */

/* Copies N bytes, in order. */
template <int N> ATTEND_INLINE void copy_bytes(uint32_t to, const uint8_t *from) {
#pragma unroll
    for (int i = 0; i < (N / 16 + 31) / 32; i++) {
        unsigned p = i * 32 + lane_id();
        if (N / 16 % 32 == 0 || p < N / 16) copy_once(to + 16 * p, from + 16 * p);
    }
}

/* Copies ROWS rows of BYTES bytes, `stride` apart. */
template <int ROWS, int BYTES> ATTEND_INLINE void copy_strided(uint32_t to, const uint8_t *from, unsigned stride) {
    constexpr int units = BYTES / 16, n = ROWS * units;
#pragma unroll
    for (int i = 0; i < (n + 31) / 32; i++) {
        unsigned p = i * 32 + lane_id();
        if (n % 32 == 0 || p < n) copy_once(to + 16 * p, from + p / units * stride + p % units * 16);
    }
}

/* Unpacks codes to halves' bits: `bits` of them from bit `bits * plane` of each byte, 8-bit codes with their sign flipped. x0 has
 * rows k = 2t, 2t + 1 of a matrix, x1 rows 2t + 8, 2t + 9; each is of two bytes, which become rows g and g + 8 of fragment a. */
template <int BITS> ATTEND_INLINE void unpack(uint32_t (&a)[4], uint32_t x0, uint32_t x1, int plane) {
    const uint32_t mask = 0x00010001u * (((1u << BITS) - 1) << BITS * plane), flip = BITS == 8 ? 0x00800080u : 0;
    a[0] = (x0 & mask) ^ flip;
    a[1] = (x0 >> 8 & mask) ^ flip;
    a[2] = (x1 & mask) ^ flip;
    a[3] = (x1 >> 8 & mask) ^ flip;
}

__host__ __device__ constexpr float plane_unit(int bits, int plane) { return SUBNORMAL / (float)(1 << bits * plane); }

/* Sums of the queries are kept besides fragments: sums of their channels in groups of 32, times 2^-24 and minus the number that
 * code 0 stands for. */
template <int HD, int NT> struct query_sums { float of[HD / SCALE_GROUP][NT * 8]; };

/* ---- f16 */

template <int HD, int NT> struct keys_f16 {
    using rows = shared_rows<32, 2 * PAGE_TOKENS>; /* 32 channels */
    static constexpr int slot = rows::bytes;
    static constexpr bool always_paired = false;
    static ATTEND_INLINE bool paired(codec_id) { return false; }
    static ATTEND_INLINE int pieces(codec_id) { return HD / 32; }
    static ATTEND_INLINE float zero_code(codec_id) { return 0; }

    static ATTEND_INLINE void copy(codec_id, uint32_t to, const uint8_t *page, int piece) {
        rows::copy(to, page + piece * (32 * 2 * PAGE_TOKENS));
    }

    template <class RING>
    static ATTEND_INLINE void score(codec_id, RING &ring, const query_fragments<HD, NT> &q, const query_sums<HD, NT> &,
                                    float (&x)[4][NT][4]) {
        const unsigned lane = lane_id();
#pragma unroll 1
        for (int piece = 0; piece < HD / 32; piece++) {
            const uint32_t from = ring.wait();
#pragma unroll
            for (int s = 0; s < 2; s++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t a[4];
                    load_matrices_transposed(a, from + rows::at(16 * s + lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2));
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        uint2 b = q.b[2 * piece + s][n][lane];
                        mma(x[i][n], a[0], a[1], a[2], a[3], b.x, b.y);
                    }
                }
            }
            ring.release();
        }
    }
};

template <int HD, int NT> struct values_f16 {
    static constexpr int tokens = HD == 64 ? 32 : 16;
    using rows = shared_rows<tokens, 2 * HD>;
    static constexpr int slot = rows::bytes;
    static constexpr int tiles = HD / 16;
    static constexpr bool never_sums = true; /* of what is added for each group of channels: there is no tile for it */
    static ATTEND_INLINE int pieces(codec_id) { return PAGE_TOKENS / tokens; }
    static ATTEND_INLINE bool paired_rows(codec_id) { return false; }
    static ATTEND_INLINE float unit(codec_id, int) { return 1; }
    static ATTEND_INLINE float offset(codec_id) { return 0; }

    static ATTEND_INLINE void copy(codec_id, uint32_t to, const uint8_t *page, int piece) {
        rows::copy(to, page + piece * (tokens * 2 * HD));
    }

    template <class RING, int TILES>
    static ATTEND_INLINE void accumulate(codec_id, RING &ring, bool paired, const uint32_t (&w)[4][NT][2],
                                         float (&acc)[TILES][NT][4]) {
#pragma unroll
        for (int piece = 0; piece < PAGE_TOKENS / tokens; piece++) {
            const uint32_t from = ring.wait();
#pragma unroll
            for (int i = 0; i < tokens / 16; i++)
                accumulate_rows<HD, rows>(from, 16 * i, paired, w[piece * (tokens / 16) + i], acc);
            ring.release();
        }
    }
};

/* ---- q8_0 and q4_0: a scale is of 32 channels of a token. A row of codes of keys is 64 tokens of a channel, or of two; of values
 * it is a token. */

template <int HD, int NT, int BITS> struct keys_grouped {
    static constexpr int planes = 8 / BITS;                                            /* channels in a byte */
    static constexpr int groups = BITS == 4 ? (HD == 96 ? 3 : 2) : (HD == 96 ? 1 : 2); /* of 32 channels in a piece */
    static constexpr int group_rows = SCALE_GROUP / planes;                            /* of codes */
    static constexpr int scale_bytes = groups * PAGE_TOKENS * 2;
    using rows = shared_rows<groups * group_rows, PAGE_TOKENS>;
    static constexpr int slot = scale_bytes + rows::bytes;
    static constexpr bool always_paired = true;
    static ATTEND_INLINE bool paired(codec_id) { return true; }
    static ATTEND_INLINE int pieces(codec_id) { return HD / SCALE_GROUP / groups; }
    static ATTEND_INLINE float zero_code(codec_id) { return 1 << (BITS - 1); }

    static ATTEND_INLINE void copy(codec_id, uint32_t to, const uint8_t *page, int piece) {
        constexpr int scales = HD / SCALE_GROUP * PAGE_TOKENS * 2;
        copy_bytes<scale_bytes>(to, page + piece * scale_bytes);
        rows::copy(to + scale_bytes, page + scales + piece * (groups * group_rows * PAGE_TOKENS));
    }

    template <class RING>
    static ATTEND_INLINE void score(codec_id, RING &ring, const query_fragments<HD, NT> &q, const query_sums<HD, NT> &sums,
                                    float (&x)[4][NT][4]) {
        const unsigned lane = lane_id();
#pragma unroll 1
        for (int piece = 0; piece < HD / SCALE_GROUP / groups; piece++) {
            const uint32_t from = ring.wait();
#pragma unroll
            for (int i = 0; i < groups; i++) group(from, i, piece * groups + i, lane, q, sums, x);
            ring.release();
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) x[i][n][c] *= SUBNORMAL;
    }

    /* Adds the products of group `number`, the i-th of the piece. */
    static ATTEND_INLINE void group(uint32_t from, int i, int number, unsigned lane, const query_fragments<HD, NT> &q,
                                    const query_sums<HD, NT> &sums, float (&x)[4][NT][4]) {
        uint2 b[2][NT]; /* of 16 channels each; the upper ones' codes of 4 bits are 16 times as large */
        float2 start[NT];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            b[0][n] = q.b[2 * number][n][lane], b[1][n] = q.b[2 * number + 1][n][lane];
            if (planes == 2) {
                const uint32_t sixteenth = 0x2c002c00; /* two halves 1/16 */
                b[1][n] = make_uint2(multiply_halves(b[1][n].x, sixteenth), multiply_halves(b[1][n].y, sixteenth));
            }
            start[n] = *reinterpret_cast<const float2 *>(&sums.of[number][8 * n + lane % 4 * 2]);
        }
#pragma unroll
        for (int pair = 0; pair < 2; pair++) { /* of tiles */
            float d[2][NT][4];
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int n = 0; n < NT; n++) d[j][n][0] = d[j][n][2] = start[n].x, d[j][n][1] = d[j][n][3] = start[n].y;
#pragma unroll
            for (int r = 0; r < group_rows / 16; r++) {
                uint32_t m[4], a[4];
                load_matrices_transposed(m,
                                         from + scale_bytes + rows::at(i * group_rows + 16 * r + lane % 16, 2 * pair + lane / 16));
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                    for (int p = 0; p < planes; p++) {
                        unpack<BITS>(a, m[2 * j], m[2 * j + 1], p);
#pragma unroll
                        for (int n = 0; n < NT; n++) mma(d[j][n], a[0], a[1], a[2], a[3], b[r + p][n].x, b[r + p][n].y);
                    }
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t scale = load_shared(from + i * (PAGE_TOKENS * 2) + (2 * pair + j) * 32 + lane / 4 * 4);
                float s0 = low_half(scale), s1 = high_half(scale);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    float(&to)[4] = x[2 * pair + j][n];
                    to[0] += d[j][n][0] * s0, to[1] += d[j][n][1] * s0, to[2] += d[j][n][2] * s1, to[3] += d[j][n][3] * s1;
                }
            }
        }
    }
};

/* Multiplies weights of 16 tokens by their scales, which lie one after another at `scales`. */
template <int NT>
ATTEND_INLINE void scale_weights(uint32_t scales, bool paired, const uint32_t (&w)[NT][2], uint32_t (&scaled)[NT][2]) {
    const unsigned t = lane_id() % 4;
    uint32_t s0, s1;
    if (paired) { /* tokens 4t, 4t + 2 and 4t + 1, 4t + 3 */
        uint2 s = load_shared_pair(scales + 8 * t);
        s0 = __byte_perm(s.x, s.y, 0x5410), s1 = __byte_perm(s.x, s.y, 0x7632);
    } else {
        s0 = load_shared(scales + 4 * t), s1 = load_shared(scales + 16 + 4 * t);
    }
#pragma unroll
    for (int n = 0; n < NT; n++) scaled[n][0] = multiply_halves(w[n][0], s0), scaled[n][1] = multiply_halves(w[n][1], s1);
}

template <int HD, int NT, int BITS> struct values_grouped {
    static constexpr int planes = 8 / BITS, groups = HD / SCALE_GROUP;
    static constexpr int tokens = BITS == 4 ? (HD <= 64 ? 64 : HD <= 128 ? 32 : 16) : (HD == 64 ? 64 : HD <= 128 ? 32 : 16);
    static constexpr int scale_bytes = groups * tokens * 2;
    using rows = shared_rows<tokens, HD / planes, 1>;
    static constexpr int slot = scale_bytes + rows::bytes;
    static constexpr int tiles = HD / 16 + 1; /* the last: for each group, sums of weights times scales */
    static constexpr bool never_sums = false;
    static ATTEND_INLINE int pieces(codec_id) { return PAGE_TOKENS / tokens; }
    static ATTEND_INLINE bool paired_rows(codec_id) { return true; }
    static ATTEND_INLINE float unit(codec_id, int tile) { return plane_unit(BITS, planes == 2 ? tile % 2 : 0); }
    static ATTEND_INLINE float offset(codec_id) { return -(float)(1 << (BITS - 1)); }

    static ATTEND_INLINE void copy(codec_id, uint32_t to, const uint8_t *page, int piece) {
        constexpr int scales = groups * PAGE_TOKENS * 2;
        copy_strided<groups, tokens * 2>(to, page + piece * (tokens * 2), PAGE_TOKENS * 2);
        rows::copy(to + scale_bytes, page + scales + piece * (tokens * HD / planes));
    }

    template <class RING, int TILES>
    static ATTEND_INLINE void accumulate(codec_id, RING &ring, bool paired, const uint32_t (&w)[4][NT][2],
                                         float (&acc)[TILES][NT][4]) {
        const unsigned lane = lane_id();
#pragma unroll
        for (int piece = 0; piece < PAGE_TOKENS / tokens; piece++) {
            const uint32_t from = ring.wait();
#pragma unroll
            for (int i = 0; i < tokens / 16; i++)
                step(from, i, 16 * i + (paired ? lane % 8 * 2 + lane / 8 % 2 : lane % 16), paired, lane,
                     w[piece * (tokens / 16) + i], acc);
            ring.release();
        }
    }

    /* Adds 16 tokens, the i-th of the piece. `row` is the lane's row of matrices. */
    template <int TILES>
    static ATTEND_INLINE void step(uint32_t from, int i, unsigned row, bool paired, unsigned lane, const uint32_t (&w)[NT][2],
                                   float (&acc)[TILES][NT][4]) {
        constexpr int units = HD / planes / 16; /* of a row; q4_0's have 32 channels each, q8_0's 16 */
        uint32_t m[4] = {};
#pragma unroll
        for (int b = 0; b < groups; b++) {
            uint32_t scaled[NT][2];
            scale_weights<NT>(from + b * (tokens * 2) + i * 32, paired, w, scaled);
            const uint32_t ones = lane / 4 == b ? 0x3c003c00 : 0;
#pragma unroll
            for (int n = 0; n < NT; n++) mma(acc[HD / 16][n], ones, 0, ones, 0, scaled[n][0], scaled[n][1]);
            if (planes == 1 || b % 2 == 0) {
                unsigned unit = (planes == 1 ? 2 * b : b) + lane / 16;
                load_matrices_transposed(m, from + scale_bytes + rows::at(row, units % 2 && unit >= units ? units - 1 : unit));
            }
#pragma unroll
            for (int j = 0; j < 2; j++) { /* tiles 2b and 2b + 1 */
                const int matrix = planes == 1 ? 2 * j : b % 2 * 2;
                uint32_t a[4];
                unpack<BITS>(a, m[matrix], m[matrix + 1], planes == 1 ? 0 : j);
#pragma unroll
                for (int n = 0; n < NT; n++) mma(acc[2 * b + j][n], a[0], a[1], a[2], a[3], scaled[n][0], scaled[n][1]);
            }
        }
    }
};

/* ---- kivi: scales and zeros, of keys for each channel and 32 tokens, of values for each token and 32 channels. */

template <int HD, int NT, int BITS> struct keys_kivi {
    static constexpr int planes = 8 / BITS;                                               /* tokens in a byte: 64 / planes apart */
    static constexpr int channels = HD == 96 ? 96 : BITS == 4 ? 64 : HD < 128 ? HD : 128; /* of a piece */
    static constexpr int row_bytes = PAGE_TOKENS * BITS / 8, scale_bytes = 4 * 2 * channels;
    using rows = shared_rows<channels, row_bytes>;
    static constexpr int slot = scale_bytes + rows::bytes;
    static constexpr bool always_paired = true;
    static ATTEND_INLINE bool paired(codec_id) { return true; }
    static ATTEND_INLINE int pieces(codec_id) { return HD / channels; }
    static ATTEND_INLINE float zero_code(codec_id) { return 0; }

    static ATTEND_INLINE void copy(codec_id, uint32_t to, const uint8_t *page, int piece) {
        copy_strided<4, 2 * channels>(to, page + piece * (2 * channels), 2 * HD);
        rows::copy(to + scale_bytes, page + 4 * 2 * HD + piece * (channels * row_bytes));
    }

    template <class RING>
    static ATTEND_INLINE void score(codec_id, RING &ring, const query_fragments<HD, NT> &q, const query_sums<HD, NT> &,
                                    float (&x)[4][NT][4]) {
        const unsigned lane = lane_id();
        float zero[2][NT][4] = {}; /* queries times zeros of both halves of the page: all rows alike */
#pragma unroll 1
        for (int piece = 0; piece < HD / channels; piece++) {
            const uint32_t from = ring.wait();
#pragma unroll
            for (int s = 0; s < channels / 16; s += 2) {
                uint32_t m[8]; /* of each step: two matrices of each unit of a row */
                load_matrices_transposed(*reinterpret_cast<uint32_t(*)[4]>(m), from + scale_bytes + lane_row(s, lane));
                if (BITS == 4)
                    load_matrices_transposed(*reinterpret_cast<uint32_t(*)[4]>(m + 4), from + scale_bytes + lane_row(s + 1, lane));
#pragma unroll
                for (int j = 0; j < 2; j++)
                    step(from + (16 * (s + j) + lane % 4 * 2) * 2, m + (BITS == 4 ? 4 : 2) * j,
                         q.b[piece * (channels / 16) + s + j], lane, zero, x);
            }
            ring.release();
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) x[i][n][c] = x[i][n][c] * plane_unit(BITS, i * planes / 4) + zero[i / 2][n][c];
    }

    /* Returns the lane's row of the matrices of step s: 16 rows of two units, or 32 of one, which serve the next step too. */
    static ATTEND_INLINE uint32_t lane_row(int s, unsigned lane) {
        return BITS == 4 ? rows::at(16 * s + lane % 16, lane / 16) : rows::at(16 * s + lane, 0);
    }

    /* Multiplies 16 channels. `scales` are the lane's. */
    static ATTEND_INLINE void step(uint32_t scales, const uint32_t *m, const uint2 (&b)[NT][32], unsigned lane,
                                   float (&zero)[2][NT][4], float (&x)[4][NT][4]) {
        uint32_t q[2][NT][2]; /* queries times the scales of each half of the page */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t s0 = load_shared(scales + 2 * channels * h), s1 = load_shared(scales + 2 * channels * h + 16);
            uint32_t z0 = load_shared(scales + 2 * channels * (h + 2)), z1 = load_shared(scales + 2 * channels * (h + 2) + 16);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                uint2 own = b[n][lane];
                q[h][n][0] = multiply_halves(own.x, s0), q[h][n][1] = multiply_halves(own.y, s1);
                mma(zero[h][n], z0, z0, z1, z1, own.x, own.y);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) { /* tile: plane by plane, in each its units of 16 tokens */
            const int unit = i % (4 / planes), plane = i / (4 / planes);
            uint32_t a[4];
            unpack<BITS>(a, m[2 * unit], m[2 * unit + 1], plane);
#pragma unroll
            for (int n = 0; n < NT; n++) mma(x[i][n], a[0], a[1], a[2], a[3], q[i / 2][n][0], q[i / 2][n][1]);
        }
    }
};

template <int HD, int NT, int BITS> struct values_kivi {
    static constexpr int planes = 8 / BITS, groups = HD / SCALE_GROUP; /* channels in a byte: HD / planes apart */
    static constexpr int code_bytes = HD / planes, row_bytes = code_bytes + 4 * groups;
    static constexpr int tokens = BITS == 4 ? (HD == 64 ? 64 : HD <= 128 ? 32 : 16) : (HD <= 128 ? 64 : 32);
    using rows = shared_rows<tokens, row_bytes>;
    static constexpr int slot = rows::bytes;
    static constexpr int tiles = HD / 16 + 1; /* the last: for each group, sums of weights times zeros */
    static constexpr bool never_sums = false;
    static ATTEND_INLINE int pieces(codec_id) { return PAGE_TOKENS / tokens; }
    static ATTEND_INLINE bool paired_rows(codec_id) { return true; }
    static ATTEND_INLINE float unit(codec_id, int tile) { return plane_unit(BITS, tile * 16 / code_bytes); }
    static ATTEND_INLINE float offset(codec_id) { return 1; }

    static ATTEND_INLINE void copy(codec_id, uint32_t to, const uint8_t *page, int piece) {
        rows::copy(to, page + piece * (tokens * row_bytes));
    }

    template <class RING, int TILES>
    static ATTEND_INLINE void accumulate(codec_id, RING &ring, bool paired, const uint32_t (&w)[4][NT][2],
                                         float (&acc)[TILES][NT][4]) {
#pragma unroll
        for (int piece = 0; piece < PAGE_TOKENS / tokens; piece++) {
            const uint32_t from = ring.wait();
#pragma unroll
            for (int i = 0; i < tokens / 16; i++) step(from, i, paired, lane_id(), w[piece * (tokens / 16) + i], acc);
            ring.release();
        }
    }

    /* Adds 16 tokens, the i-th of the piece. */
    template <int TILES>
    static ATTEND_INLINE void step(uint32_t from, int i, bool paired, unsigned lane, const uint32_t (&w)[NT][2],
                                   float (&acc)[TILES][NT][4]) {
        const unsigned t = lane % 4;
        uint32_t scaled[groups][NT][2], zeros[2] = {};
#pragma unroll
        for (int b = 0; b < groups; b++) {
            uint32_t pair[2][2]; /* {scale, zero} of rows k = 2t, 2t + 1, and of 2t + 8, 2t + 9 */
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    unsigned token = paired ? 4 * t + 2 * k + h : 2 * t + k + 8 * h;
                    pair[h][k] = load_shared(from + (16 * i + token) * (rows::units * 16) + code_bytes + 4 * b);
                }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t scale = __byte_perm(pair[h][0], pair[h][1], 0x5410), zero = __byte_perm(pair[h][0], pair[h][1], 0x7632);
                if (lane / 4 == b) zeros[h] = zero;
#pragma unroll
                for (int n = 0; n < NT; n++) scaled[b][n][h] = multiply_halves(w[n][h], scale);
            }
        }
#pragma unroll
        for (int n = 0; n < NT; n++) mma(acc[HD / 16][n], zeros[0], 0, zeros[1], 0, w[n][0], w[n][1]);
        constexpr int units = code_bytes / 16;
        const unsigned row = 16 * i + (paired ? lane % 8 * 2 + lane / 8 % 2 : lane % 16);
#pragma unroll
        for (int u = 0; u < units; u += 2) {
            uint32_t m[4];
            unsigned unit = u + lane / 16;
            load_matrices_transposed(m, from + rows::at(row, units % 2 && unit >= units ? units - 1 : unit));
#pragma unroll
            for (int j = 0; j < 2 && u + j < units; j++)
#pragma unroll
                for (int p = 0; p < planes; p++) {
                    const int tile = p * (code_bytes / 16) + u + j;
                    uint32_t a[4];
                    unpack<BITS>(a, m[2 * j], m[2 * j + 1], p);
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        mma(acc[tile][n], a[0], a[1], a[2], a[3], scaled[tile / 2][n][0], scaled[tile / 2][n][1]);
                }
        }
    }
};

/* ---- The ring */

constexpr int larger_of(int a, int b) { return a > b ? a : b; }
constexpr int smaller_of(int a, int b) { return a < b ? a : b; }

/* A page_ring has the pieces of a warp's pages, keys before values, in slots of its own. */
template <class K, class V, int SLOTS> struct page_ring {
    static constexpr int slot_bytes = larger_of(K::slot, V::slot), bytes = SLOTS * slot_bytes;

    codec_id codec[2];
    struct listed_pages listed; /* the warp's n pages */
    const struct place_view *place;
    uint32_t n;
    uint32_t base; /* of the slots */
    uint32_t read; /* slot whose piece is read next */
    uint32_t page; /* of the piece that is copied next */
    int piece;
    const uint8_t *of_lane[2]; /* page 32 i + lane's */
    const uint8_t *of_page[2];

    ATTEND_INLINE void start(const struct attend_decode &a, const struct listed_pages &pages, uint32_t count,
                             const struct place_view *at, uint32_t memory) {
        codec[0] = a.codec[0], codec[1] = a.codec[1];
        listed = pages, n = count, place = at, base = memory;
        read = page = piece = 0;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) issue(i);
    }

    /* Asks for the next piece, into a slot that is no longer read. */
    ATTEND_INLINE void issue(uint32_t slot) {
        if (page < n) {
            if (piece == 0) {
                if (page % 32 == 0) {
                    const struct page_set_view set = listed.set(min(page + lane_id(), n - 1));
                    of_lane[0] = page_address(&set, place, 0), of_lane[1] = page_address(&set, place, 1);
                }
                of_page[0] = reinterpret_cast<const uint8_t *>(__shfl_sync(ALL_LANES, (unsigned long long)of_lane[0], page % 32));
                of_page[1] = reinterpret_cast<const uint8_t *>(__shfl_sync(ALL_LANES, (unsigned long long)of_lane[1], page % 32));
            }
            const int keys = K::pieces(codec[0]);
            if (piece < keys)
                K::copy(codec[0], base + slot * slot_bytes, of_page[0], piece);
            else
                V::copy(codec[1], base + slot * slot_bytes, of_page[1], piece - keys);
            if (++piece == keys + V::pieces(codec[1])) piece = 0, page++;
        }
        commit_copies();
    }

    /* Waits for the next piece and returns its slot. */
    ATTEND_INLINE uint32_t wait() {
        wait_copies<SLOTS - 1>();
        __syncwarp();
        return base + read * slot_bytes;
    }

    /* Releases the slot of a piece that has been read. */
    ATTEND_INLINE void release() {
        __syncwarp();
        issue(read);
        read = read + 1 == SLOTS ? 0 : read + 1;
    }
};

/* ---- The kernel */

/* A CTA's shared memory holds rings, later partial states and the memory of merging; and queries. */
template <class K, class V, int HD, int NT> struct scaled_memory {
    /* Two CTAs share a multiprocessor with 227 KiB where its registers suffice for both. */
    static constexpr bool two = HD <= 128 && NT == 1;
    static constexpr int queries = 2 * sizeof(query_fragments<HD, NT>) + sizeof(query_sums<HD, NT>);
    static constexpr int most = ((two ? 115200 : 163840) - queries) / SCALED_WARPS;
    static constexpr int slot = larger_of(K::slot, V::slot);
    static constexpr int slots = smaller_of(larger_of(most / slot, 2), 8);
    static constexpr int ring = larger_of(slots * slot, 2 * half_rows<HD>::bytes); /* of a warp */
    static constexpr int merging = (int)partials_bytes<HD>(SCALED_WARPS, NT * 8) + SCALED_WARPS * 32 * 24;
    static constexpr int rings = (larger_of(SCALED_WARPS * ring, merging) + 15) / 16 * 16;
    static constexpr int bytes = rings + queries;
};

/* Reorders sums from accumulate_rows' layout to V's, whose rows have another order, and to V's units. */
template <class V, int HD, int NT, int TILES> ATTEND_INLINE void to_layout(codec_id codec, float (&acc)[TILES][NT][4]) {
    if (!V::paired_rows(codec)) return;
    const unsigned g = lane_id() / 4, from = 2 * g % 8 * 4 + lane_id() % 4; /* channel 2 g is row 2 g, or row 2 g - 8 + 8 */
#pragma unroll
    for (int j = 0; j < HD / 16; j++) {
        const float down = 1 / V::unit(codec, j);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float even[4], odd[4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                even[c] = __shfl_sync(ALL_LANES, acc[j][n][c], from);
                odd[c] = __shfl_sync(ALL_LANES, acc[j][n][c], from + 4);
            }
            const bool upper = g >= 4;
            acc[j][n][0] = (upper ? even[2] : even[0]) * down, acc[j][n][1] = (upper ? even[3] : even[1]) * down;
            acc[j][n][2] = (upper ? odd[2] : odd[0]) * down, acc[j][n][3] = (upper ? odd[3] : odd[1]) * down;
        }
    }
}

/* Stores sums in V's layout as those of state i. */
template <class V, int HD, int NT, int TILES>
ATTEND_INLINE void store_scaled(codec_id codec, const partials<HD> &to, unsigned i, uint32_t group,
                                const float (&acc)[TILES][NT][4]) {
    if (!V::paired_rows(codec)) {
        store_sums<HD>(to, i, group, acc);
        return;
    }
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
    const float offset = V::offset(codec);
#pragma unroll
    for (int j = 0; j < HD / 16; j++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float extra = offset * __shfl_sync(ALL_LANES, acc[TILES - 1][n][c], j / 2 * 4 + t), unit = V::unit(codec, j);
                const unsigned query = 8 * n + 2 * t + c;
                if (query < group)
                    *reinterpret_cast<float2 *>(to.sums + (i * group + query) * HD + 16 * j + 2 * g) =
                        make_float2(acc[j][n][c] * unit + extra, acc[j][n][c + 2] * unit + extra);
            }
}

template <class K, class V, int HD, int NT>
__global__ void __launch_bounds__(SCALED_WARPS * 32, scaled_memory<K, V, HD, NT>::two ? 2 : 1)
    attend_scaled_kernel(const __grid_constant__ struct attend_decode a) {
    using memory = scaled_memory<K, V, HD, NT>;
    extern __shared__ __align__(128) uint8_t shared[];
    auto &window = *reinterpret_cast<query_fragments<HD, NT> *>(shared + memory::rings);
    auto &exact = *(&window + 1);
    auto &sums = *reinterpret_cast<query_sums<HD, NT> *>(&exact + 1);
    const unsigned warp = threadIdx.x / 32, lane = lane_id();
    const uint32_t own = shared_address(shared) + warp * memory::ring;
    struct share s;
    if (!share_of(a, blockIdx.x, blockIdx.y, blockIdx.z, s)) return;

    uint32_t first, end;
    share_pages(s, first, end);
    first += warp;
    page_ring<K, V, memory::slots> ring;
    const uint32_t pages = first < end ? (end - first + SCALED_WARPS - 1) / SCALED_WARPS : 0;
    const struct listed_pages listed = listed_from(s, first, SCALED_WARPS);
    const struct place_view *place = a.places + (size_t)a.layer * a.heads.kv_heads + s.head;

    const size_t queries = queries_at<HD>(a, s);
    prepare_queries<HD, NT, SCALED_WARPS>(a.q + queries, s.group, a.heads.scale, window);
    prepare_queries<HD, NT, SCALED_WARPS>(a.q_exact + queries, s.group, a.heads.scale, exact);
    __syncthreads();
    if (!V::never_sums || K::always_paired) {
        for (unsigned i = threadIdx.x; i < HD / SCALE_GROUP * NT * 8; i += SCALED_WARPS * 32) {
            const unsigned group = i / (NT * 8), n = i % (NT * 8);
            float sum = 0;
            for (unsigned j = 0; j < SCALE_GROUP / 2; j++) { /* pairs of channels */
                uint2 pairs = window.b[2 * group + j / 8][n / 8][n % 8 * 4 + j % 4];
                uint32_t pair = j % 8 < 4 ? pairs.x : pairs.y;
                sum += low_half(pair) + high_half(pair);
            }
            sums.of[group][n] = -K::zero_code(a.codec[0]) * sum / SUBNORMAL;
        }
        __syncthreads();
    }

    running<NT> running;
    float acc[V::tiles][NT][4] = {};
    clear_running(running);
    const column_slopes<NT> slopes = slopes_of<NT>(a, s);
    if (attend_rows<HD>(a, s, warp * s.parts + s.part, SCALED_WARPS * s.parts, exact, window, slopes, own, running, acc))
        to_layout<V, HD>(a.codec[1], acc);
    __syncwarp();
    ring.start(a, listed, pages, place, own);

    float factor[NT][2];
    load_factors(window, factor);
    const bool paired = K::paired(a.codec[0]);
    struct page_of_lane of_lane;
#pragma unroll 1
    for (uint32_t page = 0; page < pages; page++) {
        float x[4][NT][4] = {}, rise[NT][2];
        uint32_t w[4][NT][2];
        if (page % 32 == 0) of_lane.load(listed, min(page + lane, pages - 1), a.rows[s.row].first);
        K::score(a.codec[0], ring, window, sums, x);
        const uint32_t from = of_lane.first_of(page); /* not before: registers are short while keys are scored */
        const uint64_t live = of_lane.read_of(page, from, s.position);
        if (paired)
            finish_logits<TOKENS_BY_PAIR>(x, factor, slopes, (int32_t)(from - s.position), live);
        else
            finish_logits<TOKENS_BY_ROW>(x, factor, slopes, (int32_t)(from - s.position), live);
        if (weigh(x, running, rise, w)) scale_sums(acc, rise);
        V::accumulate(a.codec[1], ring, paired, w, acc);
    }
    wait_copies<0>();
    finish_running(running);
    __syncthreads(); /* the rings are no longer read */
    partials<HD> states = partials_at<HD>(shared, SCALED_WARPS, s.group);
    store_running(states, warp, s.group, running);
    store_scaled<V, HD>(a.codec[1], states, warp, s.group, acc);
    __syncthreads();
    finish_share<HD, SCALED_WARPS * 32>(a, s, states, SCALED_WARPS, shared + memory::merging - SCALED_WARPS * 32 * 24);
}

template <class K, class V, int HD, int NT> static cudaError_t launch_scaled(const struct attend_decode *a, cudaStream_t stream) {
    constexpr int bytes = scaled_memory<K, V, HD, NT>::bytes;
    static_assert(bytes <= 227 * 1024, "more shared memory than a CTA can have");
    const auto kernel = attend_scaled_kernel<K, V, HD, NT>;
    const cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (result != cudaSuccess) return result;
    kernel<<<dim3(a->splits, a->heads.kv_heads, a->n_rows), SCALED_WARPS * 32, bytes, stream>>>(*a);
    return cudaGetLastError();
}

/* Launches the kernel for the head_dim and number of query heads; returns cudaErrorInvalidValue for others. */
template <template <int, int> class K, template <int, int> class V>
static cudaError_t launch_scaled_any(const struct attend_decode *a, cudaStream_t stream) {
    const bool many = a->heads.query_heads / a->heads.kv_heads > 8;
    switch (a->heads.head_dim) {
    case 64:
        return many ? launch_scaled<K<64, 2>, V<64, 2>, 64, 2>(a, stream) : launch_scaled<K<64, 1>, V<64, 1>, 64, 1>(a, stream);
    case 96:
        return many ? launch_scaled<K<96, 2>, V<96, 2>, 96, 2>(a, stream) : launch_scaled<K<96, 1>, V<96, 1>, 96, 1>(a, stream);
    case 128:
        return many ? launch_scaled<K<128, 2>, V<128, 2>, 128, 2>(a, stream)
                    : launch_scaled<K<128, 1>, V<128, 1>, 128, 1>(a, stream);
    case 256:
        return many ? launch_scaled<K<256, 2>, V<256, 2>, 256, 2>(a, stream)
                    : launch_scaled<K<256, 1>, V<256, 1>, 256, 1>(a, stream);
    default: return cudaErrorInvalidValue;
    }
}

#endif
