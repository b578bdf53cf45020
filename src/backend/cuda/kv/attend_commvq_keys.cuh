/* Has the scores of a page of CommVQ's keys.
 *
 * Codewords are summed once for all queries of a KV head: z[a] + i z[b] are bytes, four of which are added as one integer, and a
 * product of tensor cores with ones and zeros adds those of two rounds to sums of 32 bits, which are exact. Each lane gets the sums
 * of the 16 bytes that it reads. The sums, rotated by their tokens' offsets in the page as halves, meet queries that are rotated back
 * to the page's first position and multiplied by the pairs' steps; with the gain, that is the part of the shape. The part of the
 * mean m is the product of cosines and sines of the offsets with conj(q) m, for
 *
 *     <q, R(o) (m + gain shape)> = Re(conj(q) m e^(i o)) + gain <q, R(o) shape>
 *
 * Both are products of tensor cores, too. Rows of all products are tokens, two of a lane, and where a sub-vector has 64 pairs a token is
 * two rows, g even and odd, of 32 pairs each: so the eight lanes that are served together read one row of a table, or two of which
 * each is there twice, and no two of them read from one bank. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_COMMVQ_KEYS_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_COMMVQ_KEYS_CUH

#include "backend/cuda/kv/attend_ring.cuh"

template <int HD> struct commvq_shape {
    static constexpr int pairs = HD == 64 ? 32 : 64, subvectors = HD / 2 / pairs; /* of a sub-vector, of a head */
    static constexpr int units = pairs / 32;                                      /* rows of a token, 32 pairs each */
    static constexpr int steps = HD / 16;                                         /* of 16 numbers in products with queries */
};

template <int HD, int BITS> constexpr int commvq_rounds_of = COMMVQ_ROUNDS(2 * commvq_shape<HD>::pairs, BITS);

/* ---- Tables and the angles of the offsets in a page */

/* Tables in shared memory (TABLES) lie by pairs of rounds: entry e's row of the first round and then that of the second, so that a
 * row's offset is a byte of its address. Where their number is odd, the places of the round that is not there hold what they can of
 * angles.
 *
 * Angles lie by pairs of tokens, an even one and the next: cosines of two pairs of channels of the one and the other token, then
 * sines, 16 bytes that are an operand of the products. */
template <int HD, int ROUNDS, bool TABLES> struct commvq_places {
    using shape = commvq_shape<HD>;
    static constexpr int pair_bytes = 2 * COMMVQ_ENTRIES * COMMVQ_ROW;
    static constexpr int tables = TABLES ? (ROUNDS + 1) / 2 * pair_bytes : 0;
    static constexpr int within = TABLES && ROUNDS % 2 ? 2 : 0; /* rows of a pair of tokens that lie there */
    static constexpr int apart = HD / 32 - within;              /* the others */
    static constexpr int bytes = tables + PAGE_TOKENS / 2 * apart * COMMVQ_ROW;
    static_assert(!TABLES || shape::subvectors == 1, "pairs of rounds are those of one sub-vector");

    /* Returns where the row of a round and entry lies. */
    static ATTEND_INLINE uint32_t row(uint32_t round, uint32_t entry) {
        return round / 2 * pair_bytes + (2 * entry + round % 2) * COMMVQ_ROW;
    }
    /* Returns where the angles of tokens `token` (even) and the next lie, of word w of a unit. */
    static ATTEND_INLINE uint32_t angle(uint32_t token, uint32_t subvector, uint32_t w, uint32_t unit) {
        const uint32_t number = (4 * subvector + w) * 4 * shape::units + unit, i = number / 8,
                       place = 16 * (number % 8 ^ (shape::units == 1 ? token / 8 % 2 * 4 : 0));
        return place + ((int)i < within ? row(ROUNDS, token + i) : tables + (token / 2 * apart + i - within) * COMMVQ_ROW);
    }
};

/* Writes, by all threads of a CTA, the angles; channels that are not rotated have none. */
template <int HD, int THREADS, class PLACES> ATTEND_INLINE void prepare_angles(const struct attend_decode &a, uint8_t *to) {
    using shape = commvq_shape<HD>;
    const uint32_t rotated_pairs = a.heads.n_rot / 2;
#pragma unroll 4
    for (uint32_t k = 0; k < PAGE_TOKENS / 2 * HD / 4 / THREADS; k++) { /* the angles of several passes are asked for at once */
        const uint32_t i = k * THREADS + threadIdx.x, token = i / (HD / 4) * 2, w = i % 4, unit = i / 4 % (4 * shape::units),
                       subvector = i % (HD / 4) / (16 * shape::units), pair = subvector * shape::pairs + 8 * unit + 2 * w;
        float2 angle[2][2]; /* [token][pair] */
#pragma unroll
        for (int e = 0; e < 4; e++)
            angle[e / 2][e % 2] =
                pair + e % 2 < rotated_pairs
                    ? reinterpret_cast<const float2 *>(a.pre_rope.offsets)[(token + e / 2) * rotated_pairs + pair + e % 2]
                    : make_float2(1, 0);
        *reinterpret_cast<uint4 *>(to + PLACES::angle(token, subvector, w, unit)) =
            make_uint4(pack_halves(angle[0][0].x, angle[0][1].x), pack_halves(angle[1][0].x, angle[1][1].x),
                       pack_halves(angle[0][0].y, angle[0][1].y), pack_halves(angle[1][0].y, angle[1][1].y));
    }
}

/* Asks, by all threads of a CTA, for copies of the tables. */
template <class PLACES> ATTEND_INLINE void copy_tables(const uint8_t *from, uint32_t rounds, uint32_t to) {
    for (uint32_t i = 16 * threadIdx.x; i < rounds * COMMVQ_ENTRIES * COMMVQ_ROW; i += 16 * blockDim.x) {
        const uint32_t row = i / COMMVQ_ROW;
        copy_async<16>(to + PLACES::row(row / COMMVQ_ENTRIES, row % COMMVQ_ENTRIES) + i % COMMVQ_ROW, from + i);
    }
}

/* ---- Queries */

/* A query_powers brings a query's products with steps, and with the mean, to [1, 2); there are eight. */
struct query_powers {
    float up[8], mean_up[8], factor[8], mean_factor[8]; /* a product times factor is a part of a logit */
};

/* Returns a pair of a query, by the numbering of struct commvq_view, times rope's magnitude. */
ATTEND_INLINE float2 query_pair(const float *q, const struct head_view &heads, uint32_t pair) {
    const uint32_t rotated_pairs = heads.n_rot / 2;
    const bool split = heads.pairing != ROPE_ADJACENT && pair < rotated_pairs;
    const uint32_t first = split ? pair : 2 * pair, second = first + (split ? rotated_pairs : 1);
    const float magnitude = pair < rotated_pairs ? heads.magnitude : 1;
    return make_float2(q[first] * magnitude, q[second] * magnitude);
}

ATTEND_INLINE float2 mean_pair(const float *mean, const struct head_view &heads, uint32_t pair) {
    const uint32_t rotated_pairs = heads.n_rot / 2;
    const bool split = heads.pairing != ROPE_ADJACENT && pair < rotated_pairs;
    const uint32_t first = split ? pair : 2 * pair;
    return make_float2(mean[first], mean[first + (split ? rotated_pairs : 1)]);
}

/* Writes, by eight warps, the powers of q[group][HD]. */
template <int HD>
ATTEND_INLINE void prepare_powers(const struct attend_decode &a, const struct share &s, const struct commvq_view &view,
                                  query_powers &to) {
    const unsigned query = threadIdx.x / 32, lane = lane_id();
    const float *const q = a.q + queries_at<HD>(a, s) + query * HD;
    float most = 0, mean_most = 0;
    for (uint32_t pair = lane; pair < HD / 2 && query < s.group; pair += 32) {
        const float2 x = query_pair(q, a.heads, pair), m = mean_pair(view.mean, a.heads, pair);
        const float size = sqrtf(x.x * x.x + x.y * x.y);
        most = fmaxf(most, size * view.steps[pair]), mean_most = fmaxf(mean_most, size * sqrtf(m.x * m.x + m.y * m.y));
    }
    for (int o = 16; o; o /= 2) {
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, o));
        mean_most = fmaxf(mean_most, __shfl_xor_sync(ALL_LANES, mean_most, o));
    }
    if (lane) return;
    const power_of_two power = power_of(most), mean = power_of(mean_most);
    const float scale = query < s.group ? a.heads.scale * LOG2_E : 0;
    to.up[query] = power.up, to.mean_up[query] = mean.up;
    to.factor[query] = power.down * scale * view.gain_scale, to.mean_factor[query] = mean.down * scale;
}

/* A step of 16 numbers of both products' queries, as fragments b: of shapes and of the mean, real parts of two pairs and imaginary parts. */
struct query_step {
    uint32_t re, im, mean_re, mean_im;
};

/* These are the queries of all pages, in shared memory: at their own positions, but for what query_powers say. */
template <int HD> struct own_queries { query_step of[commvq_shape<HD>::steps][32]; };

/* Writes them, by all threads of a CTA. */
template <int HD>
ATTEND_INLINE void prepare_own(const struct attend_decode &a, const struct share &s, const struct commvq_view &view,
                               const query_powers &powers, own_queries<HD> &to) {
    using shape = commvq_shape<HD>;
    for (uint32_t i = threadIdx.x; i < shape::steps * 32; i += blockDim.x) {
        const uint32_t step = i / 32, g = i % 32 / 4, t = i % 4, subvector = step / (4 * shape::units);
        const uint32_t first = subvector * shape::pairs + 8 * (t + step / 4 % shape::units * 4) + 2 * (step % 4);
        float re[2], im[2], mean_re[2], mean_im[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t pair = first + e;
            const bool there = g < s.group;
            const float2 x = query_pair(a.q + queries_at<HD>(a, s) + (there ? g : 0) * HD, a.heads, pair),
                         m = mean_pair(view.mean, a.heads, pair);
            const float up = there ? powers.up[g] * view.steps[pair] : 0, mean_up = there ? powers.mean_up[g] : 0;
            re[e] = x.x * up, im[e] = x.y * up;
            mean_re[e] = (x.x * m.x + x.y * m.y) * mean_up, mean_im[e] = (x.y * m.x - x.x * m.y) * mean_up;
        }
        to.of[step][i % 32] = {pack_halves(re[0], re[1]), pack_halves(im[0], im[1]), pack_halves(mean_re[0], mean_re[1]),
                               pack_halves(mean_im[0], mean_im[1])};
    }
}

struct rotated_word {
    uint32_t re, im;
};

ATTEND_INLINE rotated_word rotate_word(uint32_t re, uint32_t im, uint32_t cosine, uint32_t sine) {
    const __half2 x = bits_half2(re), y = bits_half2(im), c = bits_half2(cosine), s = bits_half2(sine);
    return {half2_bits(__hfma2(x, c, __hneg2(__hmul2(y, s)))), half2_bits(__hfma2(x, s, __hmul2(y, c)))};
}

ATTEND_INLINE uint32_t word_of(const uint4 &x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

/* These are the angles of a page's first position, of a warp's own: of two pairs in a word. */
template <int HD> struct page_angles { uint32_t cosine[HD / 4], sine[HD / 4]; };

/* Rotates the queries back to position `from`. */
template <int HD>
ATTEND_INLINE void rotate_to_page(const struct attend_decode &a, const own_queries<HD> &own, uint32_t from, page_angles<HD> &angles,
                                  query_step (&to)[commvq_shape<HD>::steps]) {
    using shape = commvq_shape<HD>;
    const unsigned lane = lane_id(), rotated_pairs = a.heads.n_rot / 2;
    const float2 *const run = reinterpret_cast<const float2 *>(a.run_angles) + (size_t)(from / ROPE_RUN_TOKENS) * rotated_pairs,
                        *const offset =
                            reinterpret_cast<const float2 *>(a.pre_rope.offsets) + (size_t)(from % ROPE_RUN_TOKENS) * rotated_pairs;
    for (uint32_t w = lane; w < HD / 4; w += 32) {
        float cosine[2], sine[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const bool rotated = 2 * w + e < rotated_pairs;
            const float2 r = rotated ? run[2 * w + e] : make_float2(1, 0), o = rotated ? offset[2 * w + e] : make_float2(1, 0);
            cosine[e] = r.x * o.x - r.y * o.y, sine[e] = r.x * o.y + r.y * o.x;
        }
        angles.cosine[w] = pack_halves(cosine[0], cosine[1]), angles.sine[w] = pack_halves(-sine[0], -sine[1]);
    }
    __syncwarp();
#pragma unroll
    for (int four = 0; four < shape::steps / 4; four++) {
        const uint32_t at = 4 * (lane % 4 + four * 4);
        const uint4 cosine = *reinterpret_cast<const uint4 *>(&angles.cosine[at]),
                    sine = *reinterpret_cast<const uint4 *>(&angles.sine[at]);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const query_step x = own.of[4 * four + w][lane];
            const rotated_word word = rotate_word(x.re, x.im, word_of(cosine, w), word_of(sine, w)),
                               mean = rotate_word(x.mean_re, x.mean_im, word_of(cosine, w), word_of(sine, w));
            to[4 * four + w] = {word.re, word.im, mean.re, mean.im};
        }
    }
    __syncwarp();
}

/* ---- Sums of codewords */

/* A table_rows is where the tables lie: in shared memory at a multiple of 256 below 2^15, where TABLES, else in global memory, read
 * through its caches. */
struct table_rows {
    uint32_t shared;
    const uint8_t *global;
};

/* These are numbers of a codeword, of 8 pairs, each with 128 more than it: real parts, then imaginary parts. */
struct codeword_bytes {
    uint32_t of[4];
};

/* Returns z[a] + i z[b]: real parts are a - b's imaginary ones. Numbers of rows are COMMVQ_MIDDLE too large. */
ATTEND_INLINE codeword_bytes codeword_of(const uint4 &a, const uint4 &b) {
    constexpr uint32_t middle = 2 * COMMVQ_MIDDLE * 0x01010101u;
    return {{a.x - b.z + middle, a.y - b.w + middle, a.z + b.x, a.w + b.y}};
}

/* A lane's sums of two tokens, 8 pairs of each: of[w] those of real parts of pairs 2 w and 2 w + 1 of the first token and then the
 * second, of[4 + w] those of imaginary parts. */
struct codeword_sums {
    int of[8][4];
};
constexpr int SUM_ZERO = 0x4b400000; /* a float's bits: with n added as an integer, the float 12582912 + n */

/* Returns the sums of real or imaginary parts (from = 0, 4) of pairs 2 w and 2 w + 1 of a token, as halves. */
ATTEND_INLINE uint32_t sum_halves(const codeword_sums &sums, int from, int w, int token) {
    const int *const of = sums.of[from + w] + 2 * token;
    return pack_halves(__int_as_float(of[0]) - __int_as_float(SUM_ZERO), __int_as_float(of[1]) - __int_as_float(SUM_ZERO));
}

/* These are fragments b that take, of each of both rounds' four bytes of a lane t, bytes 2 i and the next to columns 2 t and 2 t + 1. */
struct own_bytes {
    uint32_t of[2][2]; /* [i][round] */
};

/* Returns them. Both rounds' are equal, but lie in registers of their own: the compiler, if it knew, would copy one of them for each
 * product, whose operands are two registers that follow one another. */
ATTEND_INLINE own_bytes own_bytes_of() {
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
    own_bytes own;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        own.of[i][0] = t == g / 2 ? 1u << 8 * (2 * i + g % 2) : 0;
        own.of[i][1] = __shfl_sync(ALL_LANES, own.of[i][0], lane_id());
    }
    return own;
}

/* Adds the codewords of two rounds [round][token]. */
ATTEND_INLINE void add_codewords(codeword_sums &sums, const codeword_bytes (&x)[2][2], const own_bytes &own) {
#pragma unroll
    for (int j = 0; j < 8; j++)
        mma_u8(sums.of[j], x[0][0].of[j / 2], x[0][1].of[j / 2], x[1][0].of[j / 2], x[1][1].of[j / 2], own.of[j % 2][0],
               own.of[j % 2][1]);
}

/* Returns the codes of tokens `token` (even) and the next of a round, which begin at `codes`: a, b, a and b in bytes. */
ATTEND_INLINE uint32_t load_codes(uint32_t codes, uint32_t token) {
    const uint32_t low = load_shared_half(codes + token),
                   high = load_shared(codes + PAGE_TOKENS + token / 8 * 4) >> 4 * (token % 8);
    return (low & 0x3f) | (low << 2 & 0x300) | (high << 10 & 0x3c00) | (low << 8 & 0x3f0000) | (low << 10 & 0x3000000) |
           (high << 22 & 0x3c000000);
}

/* Returns what the lane reads, `own` bytes on, of the row of a sub-vector's round that byte `i` of the codes says. In shared memory
 * the byte is one of the row's address, but for `table`. */
template <bool TABLES> ATTEND_INLINE uint4 load_row(const table_rows &rows, uint32_t codes, int i, uint32_t table, uint32_t own) {
    if (TABLES) return load_shared_quad(permute(codes, own, 0x7604 | i << 4) + table);
    return __ldg(reinterpret_cast<const uint4 *>(rows.global + (table + permute(codes, 0, 0x4440 | i) * COMMVQ_ROW + own)));
}

/* Computes the sums of tokens `token` (even) and the next. `codes` is the address of sub-vector k's codes. Each of the lanes that
 * have a token in common finds another round's codes, for all of them. */
template <int HD, int ROUNDS, bool TABLES>
ATTEND_INLINE void sum_codewords(const table_rows &rows, const own_bytes &bytes, uint32_t codes, int k, uint32_t token,
                                 codeword_sums &sums) {
    constexpr int lanes = 4 * commvq_shape<HD>::units, times = (ROUNDS + lanes - 1) / lanes;
    using places = commvq_places<HD, ROUNDS, TABLES>;
    const uint32_t rank = lane_id() % lanes, own = 16 * (lane_id() % 8), base = TABLES ? (rows.shared >> 8) * 0x01010101u : 0;
    uint32_t found[times];
#pragma unroll
    for (int i = 0; i < times; i++) found[i] = load_codes(codes + min(i * lanes + rank, ROUNDS - 1u) * COMMVQ_PART, token) + base;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) sums.of[j][c] = SUM_ZERO - 2 * COMMVQ_MIDDLE * ROUNDS;
#pragma unroll
    for (int round = 0; round < ROUNDS; round += 2) {
        codeword_bytes x[2][2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = round + r;
            x[r][0] = x[r][1] = {{0, 0, 0, 0}};
            if (i >= ROUNDS) continue;
            const uint32_t of_round = __shfl_sync(ALL_LANES, found[i / lanes], i % lanes, lanes),
                           table = TABLES ? places::row(i, 0) : (k * ROUNDS + i) * COMMVQ_ENTRIES * COMMVQ_ROW;
#pragma unroll
            for (int t = 0; t < 2; t++)
                x[r][t] = codeword_of(load_row<TABLES>(rows, of_round, 2 * t, table, own),
                                      load_row<TABLES>(rows, of_round, 2 * t + 1, table, own));
        }
        add_codewords(sums, x, bytes);
    }
}

/* ---- Scores */

/* The products of a lane's two rows with queries 2 t and 2 t + 1, as those of the pairs of each unit. */
template <int UNITS> struct row_products { float shape[UNITS][4], mean[UNITS][4]; };

/* Computes those of tokens `token` (even) and the next with the queries. Of unit u only those count whose row has its pairs. */
template <int HD, int ROUNDS, bool TABLES>
ATTEND_INLINE void score_tokens(const table_rows &rows, const own_bytes &bytes, uint32_t slot, uint32_t token,
                                const query_step (&queries)[commvq_shape<HD>::steps], row_products<commvq_shape<HD>::units> &to) {
    using shape = commvq_shape<HD>;
    const unsigned place = lane_id() % (4 * shape::units); /* of the lane's 8 pairs among a sub-vector's */
#pragma unroll
    for (int u = 0; u < shape::units; u++)
#pragma unroll
        for (int c = 0; c < 4; c++) to.shape[u][c] = to.mean[u][c] = 0;
#pragma unroll
    for (int k = 0; k < shape::subvectors; k++) {
        codeword_sums sums;
        sum_codewords<HD, ROUNDS, TABLES>(rows, bytes, slot + PAGE_TOKENS + k * ROUNDS * COMMVQ_PART, k, token, sums);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const uint4 angle = load_shared_quad(rows.shared + commvq_places<HD, ROUNDS, TABLES>::angle(token, k, w, place));
            const rotated_word one = rotate_word(sum_halves(sums, 0, w, 0), sum_halves(sums, 4, w, 0), angle.x, angle.z),
                               next = rotate_word(sum_halves(sums, 0, w, 1), sum_halves(sums, 4, w, 1), angle.y, angle.w);
#pragma unroll
            for (int u = 0; u < shape::units; u++) {
                const query_step &q = queries[(k * shape::units + u) * 4 + w];
                mma(to.shape[u], one.re, next.re, one.im, next.im, q.re, q.im);
                mma(to.mean[u], angle.x, angle.y, angle.z, angle.w, q.mean_re, q.mean_im);
            }
        }
    }
}

/* Computes the logits x[64 tokens][queries] of a page's keys, which lie at `slot` in shared memory, before slopes and masks. Where a
 * token is two rows, lanes of one g compute parts of two octets' tokens and keep the one of them that is theirs. */
template <int HD, int ROUNDS, bool TABLES>
ATTEND_INLINE void score_page(const table_rows &rows, const own_bytes &bytes, uint32_t slot, const query_powers &powers,
                              const query_step (&queries)[commvq_shape<HD>::steps], float (&x)[4][1][4]) {
    constexpr int units = commvq_shape<HD>::units;
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
    const bool odd = units > 1 && g % 2;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        float parts[units][4];
#pragma unroll
        for (int h = 0; h < units; h++) {
            const uint32_t token = 8 * (g / units * units + h) + 2 * i;
            row_products<units> products;
            score_tokens<HD, ROUNDS, TABLES>(rows, bytes, slot, token, queries, products);
            const uint32_t codes = load_shared_half(slot + token);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const uint32_t query = 2 * t + c % 2;
                const float gain = relative_gain(codes >> (c / 2 * 8) & 0xff);
                parts[h][c] = gain * powers.factor[query] * (odd ? products.shape[units - 1][c] : products.shape[0][c]) +
                              powers.mean_factor[query] * (odd ? products.mean[units - 1][c] : products.mean[0][c]);
            }
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float logit = odd ? parts[units - 1][c] : parts[0][c];
            if (units > 1) logit += __shfl_xor_sync(ALL_LANES, odd ? parts[0][c] : parts[units - 1][c], 4);
#pragma unroll
            for (int tile = 0; tile < 4; tile++) x[tile][0][c] = tile == i ? logit : x[tile][0][c];
        }
    }
}

#endif
