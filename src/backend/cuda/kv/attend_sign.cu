/* Attends to pages of the codec sign: gathers and decodes the tokens that lists name, 16 at a time, whichever pages they lie in. Few
 * tokens of a page are read as a rule, and nothing of the others is loaded but what shares a sector with them.
 *
 * A warp decodes keys and values to rows of halves in shared memory, two lanes to a token, and goes on as with exact rows
 * (attend_common.cuh). */
#include "backend/cuda/kv/attend_common.cuh"
#include "backend/cuda/kv/attend_sign.h"
#include "backend/cuda/launch.cuh"
#include "format/index.h"

#define SIGN_WARPS 8
#define UNIT 16 /* tokens that are decoded together */

/* A sign_numbers has, in shared memory, what turns a key's magnitudes into its channels: mean + alpha times them. */
template <int HD> struct sign_numbers { float mean[HD], alpha[HD]; };

/* The rows of all warps lie where their partial states lie later; merging has memory of its own. */
template <int HD, int NT> struct sign_memory {
    static constexpr int queries = 2 * ((int)sizeof(query_fragments<HD, NT>) + 127) / 128 * 128,
                         numbers = (int)sizeof(sign_numbers<HD>), rows = SIGN_WARPS * 2 * half_rows<HD>::bytes,
                         states = (int)partials_bytes<HD>(SIGN_WARPS, 8 * NT), merging = SIGN_WARPS * 32 * 24;
    static constexpr int bytes = queries + numbers + (rows > states ? rows : states) + merging;
};

/* A gathered_token is that of a lane's row. */
struct gathered_token {
    const uint8_t *keys, *values; /* pages */
    uint32_t slot;
};

ATTEND_INLINE uint32_t lowest_bit(uint64_t mask) { return (uint32_t)__ffsll((long long)mask) - 1; }

/* A gatherer walks over the live tokens of a warp's pages. */
struct gatherer {
    struct listed_pages listed;
    const struct place_view *place;
    uint32_t page, pages, position;
    uint64_t live; /* of the page before `page`: tokens that were not taken yet */
    const uint8_t *keys, *values;
    struct page_of_lane of_lane;
    unsigned long long keys_of_lane, values_of_lane;

    ATTEND_INLINE void next_page() {
        if (page % 32 == 0) {
            const uint32_t own = min(page + lane_id(), pages - 1);
            const struct page_set_view set = listed.set(own);
            of_lane.load(listed, own, 0);
            keys_of_lane = (unsigned long long)page_address(&set, place, 0);
            values_of_lane = (unsigned long long)page_address(&set, place, 1);
        }
        live = of_lane.read_of(page, of_lane.first_of(page), position);
        keys = reinterpret_cast<const uint8_t *>(__shfl_sync(ALL_LANES, keys_of_lane, page % 32));
        values = reinterpret_cast<const uint8_t *>(__shfl_sync(ALL_LANES, values_of_lane, page % 32));
        page++;
    }

    /* Takes up to 16 tokens, the i-th for lanes i and i + 16; returns how many there are. */
    ATTEND_INLINE uint32_t take(gathered_token &own) {
        const uint32_t row = lane_id() % UNIT;
        uint32_t n = 0;
        while (n < UNIT && (live || page < pages)) {
            if (!live) {
                next_page();
                continue;
            }
            const uint32_t some = min(UNIT - n, (uint32_t)__popcll(live));
            uint64_t left = live;
            for (uint32_t i = 0; i < some; i++, left &= left - 1)
                if (row == n + i) own = {keys, values, lowest_bit(left)};
            live = left, n += some;
        }
        return n;
    }
};

/* Decodes the lane's half of a token's magnitudes or values to a row: word w of the codes has channels 4 w to 4 w + 3, and those HD / 4
 * further up to three times. `number(c, x)` makes four channels from c on of what kivi's codes say. */
template <int HD, class Number> ATTEND_INLINE void decode_row(const uint8_t *token, uint32_t to, uint32_t row, Number number) {
    constexpr int WORDS = HD / 16; /* of the codes */
    const uint32_t *const words = reinterpret_cast<const uint32_t *>(token);
    uint32_t codes[WORDS / 2];
    const uint32_t first = lane_id() / UNIT * (WORDS / 2);
#pragma unroll
    for (int i = 0; i < WORDS / 2; i++) codes[i] = __ldg(words + first + i);
#pragma unroll
    for (int i = 0; i < WORDS / 2; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t c = 4 * (first + i) + k * (HD / 4), pair = __ldg(words + WORDS + c / SCALE_GROUP);
            const float scale = low_half(pair), zero = high_half(pair);
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = fmaf(scale, (float)(codes[i] >> (8 * j + 2 * k) & 3), zero);
            number(c, x);
            store_shared_pair(to + half_rows<HD>::at(row, c / 8) + c % 8 * 2,
                              make_uint2(pack_halves(x[0], x[1]), pack_halves(x[2], x[3])));
        }
}

/* Decodes the warp's tokens; rows from n on are zeros. */
template <int HD>
ATTEND_INLINE void decode_unit(const gathered_token &own, uint32_t n, const sign_numbers<HD> &numbers, uint32_t to) {
    constexpr uint32_t token_bytes = HD / 4 + HD / SCALE_GROUP * 4;
    const uint32_t row = lane_id() % UNIT;
    if (row >= n) {
        for (int i = lane_id() / UNIT; i < HD / 8; i += 2) {
            store_shared_quad(to + half_rows<HD>::at(row, i), make_uint4(0, 0, 0, 0));
            store_shared_quad(to + half_rows<HD>::bytes + half_rows<HD>::at(row, i), make_uint4(0, 0, 0, 0));
        }
        return;
    }
    decode_row<HD>(own.keys + PAGE_BYTES_SIGNS(HD) + own.slot * token_bytes, to, row, [&](uint32_t c, float(&x)[4]) {
        const uint32_t signs = __ldg(own.keys + c / 8 * PAGE_TOKENS + own.slot) >> c % 8;
        const float4 mean = *reinterpret_cast<const float4 *>(numbers.mean + c),
                     alpha = *reinterpret_cast<const float4 *>(numbers.alpha + c);
        x[0] = fmaf(signs & 1 ? alpha.x : -alpha.x, x[0], mean.x), x[1] = fmaf(signs & 2 ? alpha.y : -alpha.y, x[1], mean.y);
        x[2] = fmaf(signs & 4 ? alpha.z : -alpha.z, x[2], mean.z), x[3] = fmaf(signs & 8 ? alpha.w : -alpha.w, x[3], mean.w);
    });
    decode_row<HD>(own.values + own.slot * token_bytes, to + half_rows<HD>::bytes, row, [](uint32_t, float(&)[4]) {});
}

template <int HD, int NT>
__global__ void __launch_bounds__(SIGN_WARPS * 32) attend_sign_kernel(const __grid_constant__ struct attend_decode a) {
    using memory = sign_memory<HD, NT>;
    extern __shared__ __align__(128) uint8_t shared[];
    auto *const queries = reinterpret_cast<query_fragments<HD, NT> *>(shared); /* for the window, for exact rows */
    auto &numbers = *reinterpret_cast<sign_numbers<HD> *>(shared + memory::queries);
    uint8_t *const rows = shared + memory::queries + memory::numbers;
    const unsigned warp = uniform(threadIdx.x / 32);
    struct share s;
    wait_for_kernels(); /* which write the list */
    if (!share_of(a, blockIdx.x, blockIdx.y, blockIdx.z, s)) return;
    const float *const learned =
        s.sequence->own_learned + ((size_t)a.layer * a.heads.kv_heads + s.head) * s.sequence->learned_floats;
    for (unsigned c = threadIdx.x; c < HD; c += SIGN_WARPS * 32)
        numbers.mean[c] = learned[c], numbers.alpha[c] = learned[HD + HD * INDEX_SIGN_CODES + c];
    prepare_queries<HD, NT, SIGN_WARPS>(a.q + queries_at<HD>(a, s), s.group, a.heads.scale, queries[0]);
    prepare_queries<HD, NT, SIGN_WARPS>(a.q_exact + queries_at<HD>(a, s), s.group, a.heads.scale, queries[1]);
    __syncthreads();

    running<NT> r;
    float acc[HD / 16][NT][4] = {};
    clear_running(r);
    const column_slopes<NT> slopes = slopes_of<NT>(a, s);
    const uint32_t own_rows = shared_address(rows) + warp * 2 * half_rows<HD>::bytes;
    attend_rows<HD>(a, s, warp * s.parts + s.part, SIGN_WARPS * s.parts, queries[1], queries[0], slopes, own_rows, r, acc);
    uint32_t begin, end;
    warp_pages_of(s, warp, SIGN_WARPS, begin, end);
    gatherer tokens;
    tokens.listed = listed_from(s, begin, 1), tokens.page = 0, tokens.pages = end - begin;
    tokens.place = a.places + (size_t)a.layer * a.heads.kv_heads + s.head;
    tokens.live = 0, tokens.position = s.position;
    gathered_token own = {nullptr, nullptr, 0};
    float factor[NT][2];
    load_factors(queries[0], factor);
#pragma unroll 1
    while (const uint32_t count = tokens.take(own)) {
        float x[1][NT][4], rise[NT][2];
        uint32_t w[1][NT][2];
        __syncwarp();
        decode_unit<HD>(own, count, numbers, own_rows);
        __syncwarp();
        score_rows<HD, NT>(own_rows, queries[0], x);
        finish_logits<TOKENS_BY_ROW>(x, factor, slopes, 0, read_slots(0, count));
        if (weigh(x, r, rise, w)) scale_sums(acc, rise);
        accumulate_rows<HD, half_rows<HD>>(own_rows + half_rows<HD>::bytes, 0, false, w[0], acc);
    }
    finish_running(r);
    __syncthreads(); /* the rows are no longer read */
    const partials<HD> states = partials_at<HD>(rows, SIGN_WARPS, s.group);
    store_running(states, warp, s.group, r);
    store_sums<HD>(states, warp, s.group, acc);
    __syncthreads();
    finish_share<HD, SIGN_WARPS * 32>(a, s, states, SIGN_WARPS, shared + memory::bytes - memory::merging);
}

template <int HD, int NT> static cudaError_t launch_sign(const struct attend_decode *a, cudaStream_t stream) {
    constexpr int bytes = sign_memory<HD, NT>::bytes;
    static_assert(bytes <= 227 * 1024, "more shared memory than a CTA can have");
    const auto kernel = attend_sign_kernel<HD, NT>;
    const cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (result != cudaSuccess) return result;
    return launch_early(kernel, dim3(a->splits, a->heads.kv_heads, a->n_rows), dim3(SIGN_WARPS * 32), bytes, stream, *a);
}

cudaError_t attend_sign(const struct attend_decode *a, cudaStream_t stream) {
    const bool many = a->heads.query_heads / a->heads.kv_heads > 8;
    switch (a->heads.head_dim) {
    case 64: return many ? launch_sign<64, 2>(a, stream) : launch_sign<64, 1>(a, stream);
    case 96: return many ? launch_sign<96, 2>(a, stream) : launch_sign<96, 1>(a, stream);
    case 128: return many ? launch_sign<128, 2>(a, stream) : launch_sign<128, 1>(a, stream);
    case 256: return many ? launch_sign<256, 2>(a, stream) : launch_sign<256, 1>(a, stream);
    default: return cudaErrorInvalidValue;
    }
}
