/* Has the code that all kernels of attend_decode.h share: fragments of tensor cores, copies to shared memory, softmax of a page's
 * logits, the rows of halves (exact rows and window), and merging.
 *
 * A CTA reads a part of a query row's keys and values for one KV head. Its warps never wait for one another while they read: a warp
 * takes 64 tokens at a time for all G queries and keeps a running state of its own. Tokens are the rows of mma.m16n8k16's products,
 * queries its columns: logits are [tokens][queries] = keys [tokens][channels] times queries [channels][queries], sums
 * [channels][queries] = values [channels][tokens] times weights [tokens][queries]. Both products give a lane columns 2 t and 2 t +
 * 1 of rows g and g + 8 (g = lane / 4, t = lane % 4), so that a query's maximum, sum of weights and sums of values lie in the same
 * lanes.
 *
 * G up to 8 takes one tile of 8 columns, NT = 1; up to 16 two. Columns from G on are queries of zeros, whose results are not read.
 *
 * Logits are in units of log2(e): weights are exp2 of them, as are maxima in partial states. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_COMMON_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_COMMON_CUH

#include "backend/cuda/kv/attend_launch.h"
#include "backend/cuda/kv/attend_sizes.h"
#include "backend/cuda/kv/soft_cap.cuh"
#include "backend/cuda/ptx.cuh"

#define ATTEND_INLINE __device__ __forceinline__
#define ALL_LANES 0xffffffffu
#define LOG2_E 1.4426950408889634f

/* A maximum is raised only where a logit exceeds it by more than this: so rescaling is rare, weights stay at most 2^3, and a weight
 * times the largest scale that a group of halves can have (65504 / 8, of q4_0) is still a half. */
#define LAZY_MAXIMUM 3.0f

/* ---- Lanes, fragments */

ATTEND_INLINE unsigned lane_id() { return threadIdx.x % 32; }
/* Returns a number that is the same in all lanes in such a way that the compiler knows it: it then lies in one register for all of
 * them, and a branch by it does not split the warp. */
ATTEND_INLINE uint32_t uniform(uint32_t x) { return __shfl_sync(ALL_LANES, x, 0); }
/* Returns a number in a register of each lane. Where the compiler knows a part of an address of shared memory to be uniform, ptxas 13.0 makes
 * copies to it (copy_once) that the device refuses as an illegal instruction: so copies go to an address that has gone through this. */
ATTEND_INLINE uint32_t by_lane(uint32_t x) { return __shfl_sync(ALL_LANES, x, lane_id()); }
ATTEND_INLINE uint32_t half2_bits(__half2 h) { return *reinterpret_cast<uint32_t *>(&h); }
ATTEND_INLINE __half2 bits_half2(uint32_t u) { return *reinterpret_cast<__half2 *>(&u); }
ATTEND_INLINE uint32_t pack_halves(float low, float high) { return half2_bits(__floats2half2_rn(low, high)); }
ATTEND_INLINE float low_half(uint32_t u) { return __low2float(bits_half2(u)); }
ATTEND_INLINE float high_half(uint32_t u) { return __high2float(bits_half2(u)); }
ATTEND_INLINE uint32_t multiply_halves(uint32_t a, uint32_t b) { return half2_bits(__hmul2(bits_half2(a), bits_half2(b))); }

/* Copies a part of a page, which is read once in a step. */
template <int UNIT> ATTEND_INLINE void copy_page(uint32_t to, const uint8_t *from) {
    if constexpr (UNIT == 16)
        copy_once(to, from);
    else
        copy_async<UNIT>(to, from);
}

/* ROWS rows of BYTES bytes each lie in units of 16 bytes such that eight rows' units of one column are in eight different groups of
 * banks: rows of a power of two of units have them permuted, others are padded to an odd number. SPREAD: consecutive rows of a
 * matrix are 2^SPREAD apart. */
template <int ROWS, int BYTES, int SPREAD = 0> struct shared_rows {
    static constexpr int units_ = (BYTES + 15) / 16;
    static constexpr bool permuted = BYTES % 16 == 0 && (units_ & (units_ - 1)) == 0 && units_ > 1;
    static constexpr int units = permuted ? units_ : units_ | 1; /* of a row */
    static constexpr int bytes = ROWS * units * 16;
    static constexpr int log_units = units_ == 2 ? 1 : units_ == 4 ? 2 : units_ == 8 ? 3 : units_ == 16 ? 4 : 5;
    static constexpr int shift = log_units + SPREAD < 3 ? 3 : log_units + SPREAD;
    static constexpr int piece = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : 4; /* of a copy */

    static ATTEND_INLINE uint32_t place(uint32_t unit) { return permuted ? unit ^ (unit >> shift & 7) : unit; }
    /* Returns the address of column `unit` of a row. */
    static ATTEND_INLINE uint32_t at(uint32_t row, uint32_t unit) { return 16 * place(row * units + unit); }

    /* Copies, by a warp, rows that follow one another. */
    static ATTEND_INLINE void copy(uint32_t to, const uint8_t *from) {
        constexpr int pieces = BYTES / piece, n = ROWS * pieces;
        const unsigned lane = lane_id();
#pragma unroll
        for (int i = 0; i < (n + 31) / 32; i++) {
            unsigned p = i * 32 + lane;
            if (n % 32 == 0 || p < n) {
                if (permuted && shift <= 5) { /* what i and what the lane contribute to the permutation does not overlap */
                    unsigned own = lane ^ (lane >> shift & 7), step = i * 32;
                    copy_page<piece>(to + 16 * ((own ^ (step >> shift & 7)) + step), from + p * piece);
                } else {
                    unsigned row = p / pieces, column = p % pieces;
                    copy_page<piece>(to + (piece == 16 ? at(row, column) : row * units * 16 + column * piece), from + p * piece);
                }
            }
        }
    }
};

/* A power_of_two brings a number to [1, 2); it has its inverse too. */
struct power_of_two {
    float up, down;
};

ATTEND_INLINE power_of_two power_of(float number) {
    const unsigned exponent = min(max(__float_as_uint(number) >> 23, 64u), 253u);
    return {__uint_as_float((254 - exponent) << 23), __uint_as_float(exponent << 23)};
}

/* ---- Queries: as fragments b of their products with keys, in shared memory, channels in order */

template <int HD, int NT> struct query_fragments {
    uint2 b[HD / 16][NT][32]; /* [step of 16 channels][tile][lane] */
    float factor[NT * 8];     /* product times factor = logit */
};

/* Writes, by all warps of a CTA, the fragments of q[group][HD]; a __syncthreads makes them readable. Queries are scaled by powers
 * of two so that their largest channel lies in [1, 2): products with scales of a channel are still halves. `ups` gets the powers,
 * NT * 8 of them, unless it is NULL. */
template <int HD, int NT, int WARPS>
ATTEND_INLINE void prepare_queries(const float *q, uint32_t group, float scale, query_fragments<HD, NT> &to, float *ups = nullptr) {
    const unsigned lane = lane_id();
    for (unsigned n = threadIdx.x / 32; n < NT * 8; n += WARPS) {
        float2 x[(HD + 63) / 64];
        float largest = 0;
#pragma unroll
        for (int i = 0; i < (HD + 63) / 64; i++) {
            unsigned c = 2 * (lane + 32 * i);
            x[i] = n < group && c < HD ? __ldcg(reinterpret_cast<const float2 *>(q + n * HD + c)) : make_float2(0, 0);
            largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
        }
        for (int o = 16; o; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
        const power_of_two power = power_of(largest);
#pragma unroll
        for (int i = 0; i < (HD + 63) / 64; i++) {
            unsigned c = 2 * (lane + 32 * i);
            if (c >= HD) continue;
            uint32_t *word = reinterpret_cast<uint32_t *>(&to.b[c / 16][n / 8][n % 8 * 4 + c % 8 / 2]);
            word[c % 16 / 8] = pack_halves(x[i].x * power.up, x[i].y * power.up);
        }
        if (lane == 0) to.factor[n] = n < group ? power.down * scale * LOG2_E : 0;
        if (lane == 0 && ups) ups[n] = power.up;
    }
}

/* ---- Softmax */

/* A running state has a lane's maximum and sum of weights for the queries of its columns; sums are of its own rows until
 * finish_running. */
template <int NT> struct running { float max[NT][2], sum[NT][2]; };

template <int NT> ATTEND_INLINE void clear_running(running<NT> &r) {
#pragma unroll
    for (int n = 0; n < NT; n++) r.max[n][0] = r.max[n][1] = -INFINITY, r.sum[n][0] = r.sum[n][1] = 0;
}

/* Turns the logits of 16 TILES tokens into weights, as fragments b of the product with their values: row r of tile i of x is row r
 * of step i. Tokens that are not to be read have -INFINITY. Returns whether maxima rose (the same in all lanes); the caller then
 * multiplies earlier sums by `factor`, column by column (scale_sums). */
template <int TILES, int NT>
ATTEND_INLINE bool weigh(const float (&x)[TILES][NT][4], running<NT> &r, float (&factor)[NT][2], uint32_t (&w)[TILES][NT][2]) {
    float most[NT][2];
    bool rises = false;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            most[n][c] = fmaxf(x[0][n][c], x[0][n][c + 2]);
#pragma unroll
            for (int i = 1; i < TILES; i++) most[n][c] = fmaxf(most[n][c], fmaxf(x[i][n][c], x[i][n][c + 2]));
            rises = rises || most[n][c] > r.max[n][c] + LAZY_MAXIMUM;
        }
    }
    rises = __any_sync(ALL_LANES, rises);
    if (rises) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float m = most[n][c];
                for (int o = 4; o < 32; o *= 2) m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, o));
                m = fmaxf(m, r.max[n][c]);
                factor[n][c] = m == -INFINITY ? 1 : exp2_fast(r.max[n][c] - m);
                r.max[n][c] = m;
                r.sum[n][c] *= factor[n][c];
            }
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float m0 = r.max[n][0] == -INFINITY ? 0 : r.max[n][0], m1 = r.max[n][1] == -INFINITY ? 0 : r.max[n][1];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t pair = pack_halves(exp2_fast(x[i][n][2 * h] - m0), exp2_fast(x[i][n][2 * h + 1] - m1));
                r.sum[n][0] += low_half(pair); /* of what is summed up, so that rounding does not shift the mean */
                r.sum[n][1] += high_half(pair);
                w[i][n][h] = transpose_matrix(pair);
            }
        }
    }
    return rises;
}

template <int TILES, int NT> ATTEND_INLINE void scale_sums(float (&acc)[TILES][NT][4], const float (&factor)[NT][2]) {
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) acc[j][n][c] *= factor[n][c % 2];
}

/* Sums over all rows, for all lanes. */
template <int NT> ATTEND_INLINE void finish_running(running<NT> &r) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            for (int o = 4; o < 32; o *= 2) r.sum[n][c] += __shfl_xor_sync(ALL_LANES, r.sum[n][c], o);
}

/* ---- What a CTA reads */

struct share {
    uint32_t row, head, part, parts; /* of the launch; `parts` of the row */
    uint32_t first_page, n_pages;    /* entries of the list */
    uint32_t position;
    uint32_t first_head, group; /* query heads that the CTA serves: all of the KV head's, or some */
    uint32_t layer;
    uint32_t of_layer; /* number of the layer and KV head among all */
    const struct sequence_view *sequence;
    const struct read_list *list; /* of the layer and KV head */
};

/* Returns where the row's queries and outputs of the CTA's heads begin. */
template <int HD> ATTEND_INLINE size_t queries_at(const struct attend_decode &a, const struct share &s) {
    return ((size_t)s.row * a.heads.query_heads + s.first_head) * HD;
}

/* Finds what the CTA reads; returns false if it has nothing to do. */
ATTEND_INLINE bool share_of(const struct attend_decode &a, uint32_t part, uint32_t head, uint32_t row, struct share &s) {
    const struct query_row_view query = a.rows[row];
    s.row = row, s.head = head, s.part = part, s.parts = query.splits;
    s.position = query.position, s.group = a.heads.query_heads / a.heads.kv_heads, s.layer = a.layer;
    s.first_head = head * s.group, s.of_layer = s.layer * a.heads.kv_heads + head;
    s.sequence = a.sequences + query.sequence;
    s.list = a.shared_lists ? &s.sequence->list : read_list_at(s.sequence, head);
    s.first_page = 0, s.n_pages = s.list->n_pages;
    return part < query.splits;
}

/* Makes the CTA serve query heads first, first + 1, ... of the KV head alone, at most so many. */
ATTEND_INLINE void take_heads(struct share &s, uint32_t first, uint32_t most) {
    s.first_head += first, s.group = min(s.group - first, most);
}

/* Finds the CTA's pages [first, end) of the list. */
ATTEND_INLINE void share_pages(const struct share &s, uint32_t &first, uint32_t &end) {
    uint64_t n = s.n_pages;
    first = s.first_page + (uint32_t)(n * s.part / s.parts);
    end = s.first_page + (uint32_t)(n * (s.part + 1) / s.parts);
}

/* Finds a warp's pages [begin, end) of the CTA's. */
ATTEND_INLINE void warp_pages_of(const struct share &s, uint32_t warp, uint32_t warps, uint32_t &begin, uint32_t &end) {
    uint32_t first, last;
    share_pages(s, first, last);
    const uint32_t n = last - first;
    begin = first + n * warp / warps, end = first + n * (warp + 1) / warps;
}

constexpr uint32_t CTA_PARTS_MOST = 32; /* kernels may give each lane of a warp what is to be known of a part */

/* Returns how many parts of a row and KV head that follow one another a CTA reads, where a multiprocessor holds so many CTAs: as many as
 * take the least time, by the time of a part and of a CTA's beginning. Mostly these are as few as let all parts be read at once; but where
 * the rows' last CTAs then had so few that not all CTAs found room, more or fewer. */
inline uint32_t parts_of_ctas(const struct attend_decode *a, uint32_t resident, uint32_t part_time = 1,
                              uint32_t beginning_time = 1) {
    const uint64_t at_once = (uint64_t)a->splits * resident;
    uint64_t least = UINT64_MAX;
    uint32_t best = 1;
    for (uint32_t parts = 1; parts <= CTA_PARTS_MOST && parts <= a->splits; parts++) {
        const uint64_t ctas = (a->splits + parts - 1) / parts; /* of a row with all splits */
        const uint64_t time = (a->multiprocessor_parts * ctas + at_once - 1) / at_once * (parts * part_time + beginning_time);
        if (time < least) least = time, best = parts;
    }
    return best;
}

/* A warp's pages are entries first, first + step, ... of a list. Entry i of the list that heads share is page set i, whose address
 * is therefore asked for beside the entry and not after it; a list of a head's own waits once more for each 32 pages. */
struct listed_pages {
    const struct read_page *pages;    /* of the whole list */
    const struct page_set_view *sets; /* the block table */
    uint32_t first, step;
    const uint64_t *anchored; /* [n_anchored] of the layer and KV head; NULL: no token of a page has a row of halves */
    uint32_t n_anchored;

    ATTEND_INLINE struct page_set_view set(uint32_t i) const {
        const uint32_t at = first + i * step, page = pages[at].page;
        struct page_set_view set = sets[at];
        if (page != at) set = sets[page];
        return set;
    }
    ATTEND_INLINE uint64_t live(uint32_t i) const {
        const struct read_page entry = pages[first + i * step];
        return anchored && entry.page < n_anchored ? entry.live & ~anchored[entry.page] : entry.live;
    }
};

ATTEND_INLINE struct listed_pages listed_from(const struct share &s, uint32_t first, uint32_t step) {
    const struct sequence_view &q = *s.sequence;
    const uint64_t *const anchored = q.anchored ? q.anchored + (size_t)s.of_layer * q.anchored_pages : nullptr;
    return {s.list->pages, q.page_sets, first, step, anchored, q.anchored_pages};
}

/* Return the first token of the first page that the CTA's row reads here, and of the last; there must be one. */
ATTEND_INLINE uint32_t first_listed(const struct share &s) { return listed_from(s, s.first_page, 1).set(0).first; }
ATTEND_INLINE uint32_t last_listed(const struct share &s) { return listed_from(s, s.first_page + s.n_pages - 1, 1).set(0).first; }

/* Each lane holds the mask and the first token of page 32 i + lane; the functions hand those of one page to all lanes. */
struct page_of_lane {
    uint64_t live;
    uint32_t first;

    /* `seen` is the first token that the query sees. */
    ATTEND_INLINE void load(const struct listed_pages &listed, uint32_t page, uint32_t seen) {
        live = listed.live(page), first = listed.set(page).first;
        if (seen > first) live &= seen - first < PAGE_TOKENS ? READ_ALL << (seen - first) : 0;
    }
    ATTEND_INLINE uint32_t first_of(uint32_t page) const { return __shfl_sync(ALL_LANES, first, page % 32); }
    /* Returns which tokens a query at `position` reads of a page whose first token is `from`. */
    ATTEND_INLINE uint64_t read_of(uint32_t page, uint32_t from, uint32_t position) const {
        const uint64_t mask = __shfl_sync(ALL_LANES, (unsigned long long)live, page % 32);
        const uint32_t seen = from > position ? 0 : position + 1 - from;
        return seen < PAGE_TOKENS ? mask & (((uint64_t)1 << seen) - 1) : mask;
    }
};

/* A column_slopes has ALiBi's slopes of a lane's columns, and the cap of logits, in units of log2(e). */
template <int NT> struct column_slopes {
    bool any;
    float of[NT][2];
    float cap; /* 0: none */
};

template <int NT> ATTEND_INLINE column_slopes<NT> slopes_of(const struct attend_decode &a, const struct share &s) {
    column_slopes<NT> slopes;
    slopes.any = a.heads.slopes != nullptr, slopes.cap = LOG2_E * a.heads.cap;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            unsigned g = 8 * n + 2 * (lane_id() % 4) + c;
            slopes.of[n][c] = a.heads.slopes && g < s.group ? LOG2_E * a.heads.slopes[s.first_head + g] : 0;
        }
    }
    return slopes;
}

/* The order says which tokens are rows g and g + 8 of tile i: 16 i + g and 8 more; 16 i + 2 g and the next; or 8 g + 2 i and the
 * next. */
enum token_order { TOKENS_BY_ROW, TOKENS_BY_PAIR, TOKENS_BY_OCTET };

template <token_order ORDER> ATTEND_INLINE int32_t token_of_row(int i, int g, int upper) {
    return ORDER == TOKENS_BY_OCTET ? 8 * g + 2 * i + upper : 16 * i + (ORDER == TOKENS_BY_PAIR ? 2 * g + upper : g + 8 * upper);
}

/* Turns products of 16 TILES tokens into logits. Tokens whose bit is not set in `live` get -INFINITY. `from` is token 0's position
 * less the query's. */
template <token_order ORDER, int TILES, int NT>
ATTEND_INLINE void finish_logits(float (&x)[TILES][NT][4], const float (&factor)[NT][2], const column_slopes<NT> &slopes,
                                 int32_t from, uint64_t live) {
    const unsigned g = lane_id() / 4;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) x[i][n][c] *= factor[n][c % 2];
    if (slopes.cap > 0) {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) x[i][n][c] = soft_cap(x[i][n][c], slopes.cap);
    }
    if (slopes.any) {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    x[i][n][c] += slopes.of[n][c % 2] * (float)(from + token_of_row<ORDER>(i, g, c / 2));
                }
    }
    if (live != READ_ALL >> (PAGE_TOKENS - 16 * TILES)) {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    if (!(live >> token_of_row<ORDER>(i, g, c / 2) & 1)) x[i][n][c] = -INFINITY;
                }
    }
}

template <int HD, int NT> ATTEND_INLINE void load_factors(const query_fragments<HD, NT> &q, float (&factor)[NT][2]) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) factor[n][c] = q.factor[8 * n + 2 * (lane_id() % 4) + c];
}

/* ---- Rows of halves: the exact rows, the window. Each row is [hd] channels; 16 rows at a time. */

template <int HD> using half_rows = shared_rows<16, 2 * HD>;

/* Computes x[16 tokens][queries] = keys times queries. */
template <int HD, int NT> ATTEND_INLINE void score_rows(uint32_t keys, const query_fragments<HD, NT> &q, float (&x)[1][NT][4]) {
    const unsigned lane = lane_id(), row = lane % 16;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) x[0][n][c] = 0;
#pragma unroll
    for (int s = 0; s < HD / 16; s++) {
        uint32_t a[4];
        load_matrices(a, keys + half_rows<HD>::at(row, 2 * s + lane / 16));
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint2 b = q.b[s][n][lane];
            mma(x[0][n], a[0], a[1], a[2], a[3], b.x, b.y);
        }
    }
}

/* Adds to acc[tile of 16 channels][..] the values of 16 tokens times weights. `values` has rows of HD halves, shared_rows ROWS; the
 * first token's row is `first`. Row g of acc's tile j is channel 16 j + g, row g + 8 channel 16 j + 8 + g. Where `paired`, rows r
 * and r + 8 of the weights are tokens 2 r and 2 r + 1. */
template <int HD, class ROWS, int TILES, int NT>
ATTEND_INLINE void accumulate_rows(uint32_t values, unsigned first, bool paired, const uint32_t (&w)[NT][2],
                                   float (&acc)[TILES][NT][4]) {
    const unsigned lane = lane_id(), k = lane % 8 + lane / 16 * 8, row = first + (paired ? lane % 8 * 2 + lane / 16 : k);
#pragma unroll
    for (int j = 0; j < HD / 16; j++) {
        uint32_t a[4];
        load_matrices_transposed(a, values + ROWS::at(row, 2 * j + lane / 8 % 2));
#pragma unroll
        for (int n = 0; n < NT; n++) mma(acc[j][n], a[0], a[1], a[2], a[3], w[n][0], w[n][1]);
    }
}

/* Adds sums of attend_rows in the layout of accumulate_rows. */
template <int HD> struct sums_by_row {
    template <int TILES, int NT>
    static ATTEND_INLINE void add(uint32_t values, const uint32_t (&w)[NT][2], float (&acc)[TILES][NT][4]) {
        accumulate_rows<HD, half_rows<HD>>(values, 0, false, w, acc);
    }
};

/* Adds to the logits of `count` exact rows from `row` on what ALiBi makes of the distance between the rows of anchors and the places
 * of their tokens. */
template <int NT>
ATTEND_INLINE void move_anchors(const struct share &s, uint32_t row, uint32_t count, const column_slopes<NT> &slopes,
                                float (&x)[1][NT][4]) {
    const struct sequence_view &q = *s.sequence;
    const uint32_t *const tokens = q.anchor_tokens + (size_t)s.of_layer * (q.exact_capacity - q.first_exact);
    for (int h = 0; h < 2; h++) {
        const uint32_t i = lane_id() / 4 + 8 * h;
        if (i >= count || row + i < q.first_exact) continue;
        const float apart = (float)(tokens[row + i - q.first_exact] - (row + i));
#pragma unroll
        for (int n = 0; n < NT; n++)
            for (int c = 0; c < 2; c++) x[0][n][2 * h + c] += slopes.of[n][c] * apart;
    }
}

/* A row_ranges says which rows of halves a query row reads: exact rows from `exact` on, the window from token `window` on. */
struct row_ranges {
    uint32_t exact, n_exact, window, n_window;

    /* Return how many units of 16 rows they are. */
    ATTEND_INLINE uint32_t exact_units() const { return (n_exact + 15) / 16; }
    ATTEND_INLINE uint32_t units() const { return exact_units() + (n_window + 15) / 16; }
};

ATTEND_INLINE row_ranges row_ranges_of(const struct attend_decode &a, const struct share &s) {
    const struct sequence_view &seq = *s.sequence;
    const uint32_t seen = a.rows[s.row].first, n_kept = seq.anchor_rows ? seq.anchor_rows[s.of_layer] : s.list->n_kept,
                   end = min(s.list->rows_end + n_kept, s.position + 1), exact = min(max(s.list->rows_begin, seen), end),
                   window = max((uint32_t)s.list->window_first, seen);
    return {exact, end - exact, window, s.position >= window ? s.position + 1 - window : 0};
}

/* Attends to the exact rows and the window that the row reads: in units of 16 rows, those of number `rank`, `rank` + `ranks`, ...
 * `scratch` is shared memory of this warp's own, 2 half_rows<HD>::bytes. Adds to r and, as SUMS does, to acc; returns whether there
 * was any row. `exact` is for exact rows, `window` for the window. */
template <int HD, class SUMS = sums_by_row<HD>, int TILES, int NT>
ATTEND_INLINE bool attend_rows(const struct attend_decode &a, const struct share &s, unsigned rank, unsigned ranks,
                               const query_fragments<HD, NT> &exact, const query_fragments<HD, NT> &window,
                               const column_slopes<NT> &slopes, uint32_t scratch, running<NT> &r, float (&acc)[TILES][NT][4]) {
    using rows = half_rows<HD>;
    const struct sequence_view &seq = *s.sequence;
    const unsigned lane = lane_id();
    const row_ranges read = row_ranges_of(a, s);
    scratch = by_lane(scratch);
    const uint32_t exact_units = read.exact_units(), units = read.units();
    for (uint32_t unit = rank; unit < units; unit += ranks) {
        const bool of_exact = unit < exact_units;
        const uint32_t number = 16 * (of_exact ? unit : unit - exact_units),
                       count = min((of_exact ? read.n_exact : read.n_window) - number, 16u),
                       token = (of_exact ? read.exact : read.window) + number;
        const uint32_t begin = of_exact ? token : window_row(&seq, token);
        const uint32_t capacity = of_exact ? seq.exact_capacity : seq.window_capacity;
        const device_half *keys, *values;
        if (of_exact) {
            keys = exact_rows_at(&seq, &a.heads, s.layer, s.head, 0);
            values = exact_rows_at(&seq, &a.heads, s.layer, s.head, 1);
        } else {
            keys = window_rows_at(&seq, &a.heads, s.layer, s.head, 0);
            values = window_rows_at(&seq, &a.heads, s.layer, s.head, 1);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16 * HD / 8 / 32; i++) {
            unsigned p = i * 32 + lane, row = p / (HD / 8), column = p % (HD / 8);
            uint32_t from = begin + row;
            if (from >= capacity) from -= capacity;
            if (row >= count) from = begin;
            copy_async<16>(scratch + rows::at(row, column), keys + (size_t)from * HD + column * 8, row < count);
            copy_async<16>(scratch + rows::bytes + rows::at(row, column), values + (size_t)from * HD + column * 8, row < count);
        }
        commit_copies();
        wait_copies<0>();
        __syncwarp();
        float x[1][NT][4], factor[NT][2], rise[NT][2];
        uint32_t w[1][NT][2];
        const query_fragments<HD, NT> &q = of_exact ? exact : window;
        score_rows<HD, NT>(scratch, q, x);
        load_factors(q, factor);
        int32_t from = (int32_t)(token + (of_exact ? (uint32_t)s.list->moved : 0) - s.position);
        finish_logits<TOKENS_BY_ROW>(x, factor, slopes, from, read_slots(0, count));
        if (slopes.any && of_exact && seq.anchor_tokens) move_anchors(s, token, count, slopes, x);
        if (weigh(x, r, rise, w)) scale_sums(acc, rise);
        SUMS::add(scratch + rows::bytes, w[0], acc);
    }
    return rank < units;
}

/* ---- Partial states: of a warp or a CTA, for G queries, in shared memory */

/* A partials holds n states; sums are of the channels of rows, [n][G][HD], 16-byte aligned. */
template <int HD> struct partials {
    float *sums;
    float2 *max_sum; /* [n][G] */
};

template <int HD> ATTEND_INLINE partials<HD> partials_at(void *memory, uint32_t n, uint32_t group) {
    float *floats = (float *)memory;
    return {floats, reinterpret_cast<float2 *>(floats + (size_t)n * group * HD)};
}

/* Returns the states from state i on. */
template <int HD> ATTEND_INLINE partials<HD> states_from(const partials<HD> &of, uint32_t i, uint32_t group) {
    return {of.sums + (size_t)i * group * HD, of.max_sum + i * group};
}

template <int HD> constexpr size_t partials_bytes(uint32_t n, uint32_t group) {
    return (size_t)n * group * (HD + 2) * sizeof(float);
}

/* Stores, after finish_running, the maxima and sums of state i. */
template <int HD, int NT>
ATTEND_INLINE void store_running(const partials<HD> &to, unsigned i, uint32_t group, const running<NT> &r) {
    if (lane_id() >= 4) return;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            unsigned g = 8 * n + 2 * lane_id() + c;
            if (g < group) to.max_sum[i * group + g] = make_float2(r.max[n][c], r.sum[n][c]);
        }
    }
}

/* Stores sums in the layout of accumulate_rows as those of state i. */
template <int HD, int TILES, int NT>
ATTEND_INLINE void store_sums(const partials<HD> &to, unsigned i, uint32_t group, const float (&acc)[TILES][NT][4]) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int j = 0; j < HD / 16; j++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                unsigned query = 8 * n + 2 * t + c % 2;
                if (query < group) to.sums[(i * group + query) * HD + 16 * j + c / 2 * 8 + g] = acc[j][n][c];
            }
}

/* Merges two states of 4 channels into one. */
ATTEND_INLINE void merge_state(float4 &sums, float2 &into, const float4 &more, float2 from) {
    float m = fmaxf(into.x, from.x);
    if (m == -INFINITY) return;
    float a = exp2_fast(into.x - m), b = exp2_fast(from.x - m);
    sums = make_float4(sums.x * a + more.x * b, sums.y * a + more.y * b, sums.z * a + more.z * b, sums.w * a + more.w * b);
    into = make_float2(m, into.y * a + from.y * b);
}

ATTEND_INLINE float4 divide(const float4 &sums, float sum) {
    float one = sum > 0 ? 1 / sum : 0; /* nothing was read: zeros, as partial_finish says */
    return make_float4(sums.x * one, sums.y * one, sums.z * one, sums.w * one);
}

/* Returns the logit of the learned sink of a query head that the CTA serves, -INFINITY where there is none. */
ATTEND_INLINE float sink_of(const struct attend_decode &a, const struct share &s, unsigned query) {
    return a.heads.sinks ? LOG2_E * a.heads.sinks[(size_t)s.layer * a.heads.query_heads + s.first_head + query] : -INFINITY;
}

/* Leaves the logarithm of a query's sum of weights, if it is wanted. */
ATTEND_INLINE void leave_log_sum(const struct attend_decode &a, const struct share &s, unsigned query, float max, float sum) {
    if (a.log_sums) a.log_sums[(size_t)s.row * a.heads.query_heads + s.first_head + query] = sum > 0 ? max + log2f(sum) : INFINITY;
}

/* Writes channels 4 i .. 4 i + 3 of the outputs of the CTA's queries, whose states are all merged but for their sinks'. */
template <int HD>
ATTEND_INLINE void put_output(const struct attend_decode &a, const struct share &s, unsigned i, float4 sums, float2 state) {
    const unsigned query = i / (HD / 4);
    if (a.heads.sinks) merge_state(sums, state, make_float4(0, 0, 0, 0), make_float2(sink_of(a, s, query), 1));
    reinterpret_cast<float4 *>(a.out + queries_at<HD>(a, s))[i] = divide(sums, state.y);
    if (i % (HD / 4) == 0) leave_log_sum(a, s, query, state.x, state.y);
}

/* A part_memory says where the launch's partial states lie: sums [row][Hk][splits][G][HD], then maxima and sums of weights
 * [row][Hk][splits][G]. */
template <int HD> struct part_memory {
    float4 *sums;
    float2 *max_sum;
};

template <int HD> ATTEND_INLINE part_memory<HD> part_memory_of(const struct attend_decode &a, const struct share &s) {
    size_t parts = (size_t)a.n_rows * a.heads.kv_heads * a.splits, first = ((size_t)s.row * a.heads.kv_heads + s.head) * a.splits;
    return {reinterpret_cast<float4 *>(a.parts + first * s.group * HD),
            reinterpret_cast<float2 *>(a.parts + parts * s.group * HD) + first * s.group};
}

/* Merges all parts of a query row and KV head; the last CTA to arrive does so. `memory` is shared, THREADS * 24 bytes. */
template <int HD, int THREADS>
ATTEND_INLINE void merge_parts(const struct attend_decode &a, const struct share &s, const part_memory<HD> &parts,
                               uint8_t *memory) {
    constexpr unsigned AT_ONCE = 8; /* parts that a thread asks for before it waits */
    const unsigned groups = s.group * (HD / 4), width = min(groups, (unsigned)THREADS), ranks = THREADS / width;
    const unsigned rank = threadIdx.x / width;
    float4 *const their_sums = reinterpret_cast<float4 *>(memory);
    float2 *const their_states = reinterpret_cast<float2 *>(memory + THREADS * sizeof(float4));
    for (unsigned base = 0; base < groups; base += width) {
        const unsigned i = base + threadIdx.x % width;
        float4 sums = make_float4(0, 0, 0, 0);
        float2 state = make_float2(-INFINITY, 0);
        if (rank < ranks && i < groups) {
            const unsigned query = i / (HD / 4);
            for (unsigned first = rank; first < s.parts; first += ranks * AT_ONCE) {
                float4 more[AT_ONCE];
                float2 from[AT_ONCE];
#pragma unroll
                for (unsigned j = 0; j < AT_ONCE; j++) {
                    unsigned part = first + j * ranks;
                    bool there = part < s.parts;
                    more[j] = there ? __ldcg(parts.sums + (size_t)part * groups + i) : make_float4(0, 0, 0, 0);
                    from[j] = there ? __ldcg(parts.max_sum + (size_t)part * s.group + query) : make_float2(-INFINITY, 0);
                }
#pragma unroll
                for (unsigned j = 0; j < AT_ONCE; j++) merge_state(sums, state, more[j], from[j]);
            }
        }
        if (ranks > 1) {
            __syncthreads();
            their_sums[threadIdx.x] = sums, their_states[threadIdx.x] = state;
            __syncthreads();
            if (rank == 0)
                for (unsigned j = 1; j < ranks; j++)
                    merge_state(sums, state, their_sums[threadIdx.x + j * width], their_states[threadIdx.x + j * width]);
        }
        if (rank == 0 && i < groups) put_output<HD>(a, s, i, sums, state);
    }
}

/* Merges n partial states of channels 4 i .. 4 i + 3 of all queries' one after another. */
template <int HD>
ATTEND_INLINE float4 merged_states(const partials<HD> &states, unsigned n, uint32_t group, unsigned i, float2 &state) {
    const unsigned query = i / (HD / 4), groups = group * (HD / 4);
    float4 sums = make_float4(0, 0, 0, 0);
    state = make_float2(-INFINITY, 0);
    for (unsigned j = 0; j < n; j++) state.x = fmaxf(state.x, states.max_sum[j * group + query].x);
#pragma unroll 4
    for (unsigned j = 0; j < n && state.x > -INFINITY; j++) { /* with the maximum known, no state waits for another */
        const float4 more = reinterpret_cast<const float4 *>(states.sums)[j * groups + i];
        const float2 from = states.max_sum[j * group + query];
        const float b = exp2_fast(from.x - state.x);
        sums.x += more.x * b, sums.y += more.y * b, sums.z += more.z * b, sums.w += more.w * b, state.y += from.y * b;
    }
    return sums;
}

/* Writes the state of the CTA's part, of channels 4 i .. 4 i + 3 of all queries', to memory, or the output, if it is the row's only part. */
template <int HD>
ATTEND_INLINE void leave_state(const struct attend_decode &a, const struct share &s, unsigned i, const float4 &sums, float2 state) {
    const part_memory<HD> parts = part_memory_of<HD>(a, s);
    const unsigned query = i / (HD / 4), groups = s.group * (HD / 4);
    if (s.parts == 1) {
        put_output<HD>(a, s, i, sums, state);
    } else {
        __stcg(parts.sums + (size_t)s.part * groups + i, sums);
        if (i % (HD / 4) == 0) __stcg(parts.max_sum + (size_t)s.part * s.group + query, state);
    }
}

/* Merges, by all threads of a CTA after a __syncthreads, n partial states of a part into one and leaves it. */
template <int HD, int THREADS>
ATTEND_INLINE void leave_part(const struct attend_decode &a, const struct share &s, const partials<HD> &states, unsigned n) {
    for (unsigned i = threadIdx.x; i < s.group * (HD / 4); i += THREADS) {
        float2 state;
        const float4 sums = merged_states<HD>(states, n, s.group, i, state);
        leave_state<HD>(a, s, i, sums, state);
    }
}

/* Says, by all threads of a CTA, that so many parts have been left; the last CTA of the query row and KV head writes the output. `memory`
 * is shared, THREADS * 24 bytes, which no thread reads until it is here. */
template <int HD, int THREADS>
ATTEND_INLINE void arrive(const struct attend_decode &a, const struct share &s, uint32_t count, uint8_t *memory) {
    if (s.parts == 1) return;
    __threadfence();
    __syncthreads();
    unsigned *last = reinterpret_cast<unsigned *>(memory);
    if (threadIdx.x == 0) {
        uint32_t *arrived = a.arrived + s.row * a.heads.kv_heads + s.head;
        *last = atomicAdd(arrived, count) == s.parts - count;
        if (*last) *arrived = 0;
    }
    __syncthreads();
    if (!*last) return;
    __threadfence();
    __syncthreads(); /* `last` is read */
    merge_parts<HD, THREADS>(a, s, part_memory_of<HD>(a, s), memory);
}

/* Leaves the CTA's only part, of which there are n partial states, and arrives. `memory` is not the partials'. */
template <int HD, int THREADS>
ATTEND_INLINE void finish_share(const struct attend_decode &a, const struct share &s, const partials<HD> &states, unsigned n,
                                uint8_t *memory) {
    leave_part<HD, THREADS>(a, s, states, n);
    arrive<HD, THREADS>(a, s, 1, memory);
}

/* Multiplies weights, as weigh leaves them for TOKENS_BY_OCTET, by their tokens' gains, whose codes begin at `slot`: of tokens 16 t + i and
 * 8 more. gain(code, i) is a token's; a lane makes those of i = g for all lanes with its t. */
template <int NT, class Gain> ATTEND_INLINE void weigh_gains(uint32_t slot, uint32_t (&w)[4][NT][2], Gain gain) {
    const unsigned g = lane_id() / 4, t = lane_id() % 4, shift = 8 * (g % 4);
    const uint32_t codes = slot + 16 * t + g / 4 * 4;
    const uint32_t own = pack_halves(gain(load_shared(codes) >> shift & 0xff, g), gain(load_shared(codes + 8) >> shift & 0xff, g));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t gains = __shfl_sync(ALL_LANES, own, 4 * i + t);
#pragma unroll
        for (int n = 0; n < NT; n++) w[i / 2][n][i % 2] = multiply_halves(w[i / 2][n][i % 2], gains);
    }
}

#endif
