/* Scores all tokens of a prompt by their keys' signs (Self-Indexing KVCache, Yang et al. 2026, equations 6 to 8): products of the mean
 * query with the centroids, rounded to 8 bits as on the CPU (backend/cpu/codec/index_sign.c), are added by look-ups, for eight channels
 * at a time, whose sums a CTA has in shared memory.
 *
 * A lane looks up the same eight channels of all tokens, so that its sums can lie in a bank of its own: lanes with different channels in one
 * table of 256 sums each would meet in banks three or four at a time. The price is a sum over lanes, in which each goes on with half the
 * tokens after a step, two tokens to a word. */
#include "backend/cuda/kv/score_sign.h"

#include "backend/cuda/kv/score_common.cuh"
#include "format/index.h"

#define WARPS 16
#define THREADS (WARPS * 32)
#define RESIDENT 2 /* CTAs of a multiprocessor */
#define QUAD 16    /* tokens whose signs of eight channels a lane loads together */
#define QUADS 4    /* that a lane has asked for */
#define CODES INDEX_SIGN_CODES
#define WIDTH INDEX_SIGN_CHANNELS

/* Computes the product of a query's four channels with a centroid, in the CPU's order. */
ATTEND_INLINE float meet(const float *q, float scale, const float *centroid) {
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum = __fadd_rn(sum, __fmul_rn(__fmul_rn(q[i], scale), centroid[i]));
    return sum;
}

/* Writes entries u8 [HD / 4][16], of which 255 is the widest range of a group's products. */
template <int HD>
ATTEND_INLINE void make_entries(const float *q, float scale, const float *centroids, uint8_t *entries, uint32_t *widest) {
    constexpr int N = HD / WIDTH * CODES, EACH = (N + THREADS - 1) / THREADS;
    float product[EACH], least[EACH];
    if (threadIdx.x == 0) *widest = 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const unsigned i = threadIdx.x + k * THREADS, at = min(i, N - 1u); /* lanes of a group of 16 are all there, or none is */
        product[k] = meet(q + at / CODES * WIDTH, scale, centroids + at * WIDTH);
        float most = product[k];
        least[k] = product[k];
        for (int o = CODES / 2; o; o /= 2) {
            least[k] = fminf(least[k], __shfl_xor_sync(ALL_LANES, least[k], o));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, o));
        }
        if (i < N && i % CODES == 0) atomicMax(widest, __float_as_uint(most - least[k])); /* bits order as spans do */
    }
    __syncthreads();
    const float step = __uint_as_float(*widest) / 255, inverse = step > 0 && 1 / step < INFINITY ? 1 / step : 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const unsigned i = threadIdx.x + k * THREADS;
        const float entry = (product[k] - least[k]) * inverse + 0.5f;
        if (i < N) entries[i] = (uint8_t)(entry > 0 ? (entry < 255 ? entry : 255) : 0); /* NaN gives 0 */
    }
    __syncthreads();
}

/* LANES take a token together, each eight channels, of which the last lanes may have none. A warp takes PAGES at once; its lanes' quad k is of page
 * k / (QUADS / PAGES). */
template <int HD> struct lanes_of {
    static constexpr int LANES = HD <= 64 ? 8 : HD <= 128 ? 16 : 32, PAGES = 32 / LANES;

    static ATTEND_INLINE unsigned eight() { return min(lane_id() % LANES, HD / 8 - 1u); }
    static ATTEND_INLINE unsigned quad(int k) { return k * PAGES % QUADS + lane_id() / LANES; } /* of its page */
    static ATTEND_INLINE constexpr int page(int k) { return k * PAGES / QUADS; }
};

/* Makes the table: sums[code][lane], of a lane's eight channels. A warp makes rows that have the lower half of the code in common. */
template <int HD> ATTEND_INLINE void make_sums(const uint8_t *entries, uint32_t (*sums)[32]) {
    static_assert(WARPS == CODES, "a warp for each lower half");
    const bool there = lane_id() % lanes_of<HD>::LANES < HD / 8;
    const uint8_t *const own = entries + lanes_of<HD>::eight() * 2 * CODES;
    const unsigned warp = threadIdx.x / 32;
    const uint4 x = *reinterpret_cast<const uint4 *>(own + CODES);
    const uint32_t low = own[warp], high[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < CODES; i++) sums[i * CODES + warp][lane_id()] = there ? low + (high[i / 4] >> i % 4 * 8 & 255) : 0;
}

/* Returns the sums of two tokens, 16 bits each, over the lanes that take them together: those of tokens 2 i and 2 i + 1 of the quad, where the
 * lane stands in the i-th eighth of the LANES. */
template <int LANES> ATTEND_INLINE uint32_t sum_lanes(uint32_t (&pairs)[QUAD / 2]) {
    int apart = LANES / 2;
#pragma unroll
    for (int n = QUAD / 4; n; n /= 2, apart /= 2) {
        const bool upper = lane_id() & apart;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const uint32_t other = __shfl_xor_sync(ALL_LANES, upper ? pairs[i] : pairs[i + n], apart);
            pairs[i] = (upper ? pairs[i + n] : pairs[i]) + other;
        }
    }
#pragma unroll
    for (; apart; apart /= 2) pairs[0] += __shfl_xor_sync(ALL_LANES, pairs[0], apart);
    return pairs[0];
}

/* Adds up the look-ups of a quad; `sums` is the lane's column. */
template <int HD> ATTEND_INLINE uint32_t score_quad(const uint4 &codes, const uint8_t *sums) {
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w}, own = lane_id() * 4;
    uint32_t pairs[QUAD / 2];
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        const uint32_t word = words[i / 4], at = i % 4 ? word >> (i % 4 * 8 - 7) : word << 7; /* 128 bytes to a code */
        const uint32_t sum = *reinterpret_cast<const uint32_t *>(sums + ((at & 0x7f80) | own));
        pairs[i / 2] = i % 2 ? pairs[i / 2] + (sum << 16) : sum;
    }
    return sum_lanes<lanes_of<HD>::LANES>(pairs);
}

/* A warp's pages, of which the lanes know addresses and masks beforehand. */
template <int HD> struct sign_reader {
    using lanes = lanes_of<HD>;
    struct listed_pages listed;
    const struct place_view *place;
    uint32_t pages, index_bytes;
    unsigned long long planes_of_lane, live_of_lane; /* page 32 i + lane's */

    /* Asks for the quads of PAGES pages from `page` on, a multiple of PAGES; behind the last page for the last again. */
    ATTEND_INLINE void ask(uint32_t page, uint4 (&codes)[QUADS], uint64_t (&live)[lanes::PAGES]) {
        if (page % 32 == 0) {
            const uint32_t own = min(page + lane_id(), pages - 1);
            const struct page_set_view set = listed.set(own);
            planes_of_lane =
                (unsigned long long)(index_bytes ? index_address(&set, place, index_bytes) : page_address(&set, place, 0));
            live_of_lane = listed.live(own);
        }
        const uint8_t *planes[lanes::PAGES];
#pragma unroll
        for (int p = 0; p < lanes::PAGES; p++) {
            planes[p] = reinterpret_cast<const uint8_t *>(__shfl_sync(ALL_LANES, planes_of_lane, (page + p) % 32));
            live[p] = __shfl_sync(ALL_LANES, live_of_lane, (page + p) % 32);
        }
#pragma unroll
        for (int k = 0; k < QUADS; k++)
            codes[k] =
                __ldcs(reinterpret_cast<const uint4 *>(planes[lanes::page(k)] + lanes::eight() * PAGE_TOKENS) + lanes::quad(k));
    }
};

/* The kernel asks for pages before the kernel that makes the query has ended. It is launched behind mean_queries_kernel alone, which
 * begins once all before it have ended. */
template <int HD>
static __global__ void __launch_bounds__(THREADS, RESIDENT) score_sign_kernel(const __grid_constant__ struct select_tokens select) {
    using lanes = lanes_of<HD>;
    const struct attend_decode &a = select.attend;
    __shared__ __align__(16) uint8_t entries[HD / WIDTH * CODES];
    __shared__ __align__(128) uint32_t sums[256][32];
    __shared__ uint32_t widest;
    struct share s;
    share_of(a, 0, blockIdx.x, blockIdx.y, s);
    if (!s.sequence->own || !s.n_pages) {
        wait_for_kernels();
        return;
    }
    const size_t share = scored_share(a, s);
    const uint32_t rank = blockIdx.z * WARPS + uniform(threadIdx.x / 32), ranks = gridDim.z * WARPS;
    const uint32_t begin = uniform((uint32_t)((uint64_t)s.n_pages * rank / ranks)),
                   end = uniform((uint32_t)((uint64_t)s.n_pages * (rank + 1) / ranks));
    sign_reader<HD> reader;
    reader.listed = listed_from(s, begin, 1), reader.place = scored_place(a, s);
    reader.pages = end - begin, reader.index_bytes = select.index_bytes;
    uint4 codes[QUADS];
    uint64_t live[lanes::PAGES];
    if (reader.pages) reader.ask(0, codes, live);
    wait_for_kernels();
    let_next_kernel_begin();
    const float *const learned =
        s.sequence->own_learned + ((size_t)a.layer * a.heads.kv_heads + s.head) * s.sequence->learned_floats;
    make_entries<HD>(a.q + share * HD, a.heads.scale, learned + HD, entries, &widest);
    make_sums<HD>(entries, sums);
    __syncthreads();
    uint16_t *const scores = select.to.scores + (share * select.to.pages + begin) * PAGE_TOKENS;
    const unsigned pair = lane_id() % lanes::LANES / (lanes::LANES / 8);
    for (uint32_t page = 0; page < reader.pages; page += lanes::PAGES) {
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            const uint32_t sum = score_quad<HD>(codes[k], reinterpret_cast<const uint8_t *>(sums));
            const uint32_t slot = QUAD * lanes::quad(k) + 2 * pair, there = (uint32_t)(live[lanes::page(k)] >> slot);
            const uint32_t first = there & 1 ? (sum & 0xffff) + 1 : 1, second = there & 2 ? (sum >> 16) + 1 : 1;
            if (page + lanes::page(k) < reader.pages && lane_id() % (lanes::LANES / 8) == 0)
                *reinterpret_cast<uint32_t *>(scores + (size_t)(page + lanes::page(k)) * PAGE_TOKENS + slot) = first | second << 16;
        }
        if (page + lanes::PAGES < reader.pages) reader.ask(page + lanes::PAGES, codes, live);
    }
}

template <int HD> static cudaError_t launch_sign_scores(const struct select_tokens *select, cudaStream_t stream) {
    const dim3 grid = score_grid(select, WARPS * lanes_of<HD>::PAGES, RESIDENT);
    return launch_early(score_sign_kernel<HD>, grid, dim3(THREADS), 0, stream, *select);
}

cudaError_t score_sign(const struct select_tokens *select, cudaStream_t stream) {
    switch (select->attend.heads.head_dim) {
    case 64: return launch_sign_scores<64>(select, stream);
    case 96: return launch_sign_scores<96>(select, stream);
    case 128: return launch_sign_scores<128>(select, stream);
    case 256: return launch_sign_scores<256>(select, stream);
    default: return cudaErrorInvalidValue;
    }
}
