/* Scores all tokens of a prompt by their keys' signs (Self-Indexing KVCache, Yang et al. 2026, equations 6 to 8): products of the mean
 * query with the centroids, rounded to 8 bits as on the CPU (backend/cpu/codec/index_sign.c), are added by look-ups. A CTA makes a
 * table of 256 sums for each eight channels, in shared memory; a thread then takes four tokens of a page. */
#include "backend/cuda/kv/score_sign.h"

#include "backend/cuda/kv/score_common.cuh"
#include "format/index.h"

#define THREADS 256
#define RESIDENT 4 /* CTAs of a multiprocessor */
#define OF_PAGE 16 /* threads that take a page's tokens */
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

template <int HD>
static __global__ void __launch_bounds__(THREADS, RESIDENT) score_sign_kernel(const __grid_constant__ struct select_tokens select) {
    const struct attend_decode &a = select.attend;
    __shared__ uint8_t entries[HD / WIDTH * CODES];
    __shared__ uint16_t sums[HD / 8][256];
    __shared__ uint32_t widest;
    struct share s;
    share_of(a, 0, blockIdx.x, blockIdx.y, s);
    wait_for_kernels();
    if (!s.sequence->own) return;
    const size_t share = scored_share(a, s);
    const float *const learned =
        s.sequence->own_learned + ((size_t)a.layer * a.heads.kv_heads + s.head) * s.sequence->learned_floats;
    make_entries<HD>(a.q + share * HD, a.heads.scale, learned + HD, entries, &widest);
    for (unsigned i = threadIdx.x; i < HD / 8 * 256; i += THREADS)
        sums[i / 256][i % 256] = entries[i / 256 * 2 * CODES + i % CODES] + entries[(i / 256 * 2 + 1) * CODES + i % 256 / CODES];
    __syncthreads();
    const struct place_view *const place = scored_place(a, s);
    const struct listed_pages listed = listed_from(s, 0, 1);
    uint16_t *const scores = select.to.scores + share * select.to.pages * PAGE_TOKENS;
    const unsigned four = threadIdx.x % OF_PAGE;
    for (uint32_t page = blockIdx.z * (THREADS / OF_PAGE) + threadIdx.x / OF_PAGE; page < s.n_pages;
         page += gridDim.z * (THREADS / OF_PAGE)) {
        const struct page_set_view set = listed.set(page);
        const uint8_t *const planes =
            select.index_bytes ? index_address(&set, place, select.index_bytes) : page_address(&set, place, 0);
        const uint32_t live = (uint32_t)(listed.live(page) >> 4 * four) & 15;
        uint32_t codes[HD / 8], sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < HD / 8; j++) codes[j] = __ldcs(reinterpret_cast<const uint32_t *>(planes + j * PAGE_TOKENS) + four);
#pragma unroll
        for (int j = 0; j < HD / 8; j++)
#pragma unroll
            for (int t = 0; t < 4; t++) sum[t] += sums[j][codes[j] >> 8 * t & 255];
#pragma unroll
        for (int t = 0; t < 4; t++) sum[t] = live >> t & 1 ? sum[t] + 1 : 1;
        reinterpret_cast<uint2 *>(scores + (size_t)page * PAGE_TOKENS)[four] =
            make_uint2(sum[0] | sum[1] << 16, sum[2] | sum[3] << 16);
    }
}

cudaError_t score_sign(const struct select_tokens *select, cudaStream_t stream) {
    const dim3 grid = score_grid(select, THREADS / OF_PAGE, RESIDENT);
    switch (select->attend.heads.head_dim) {
    case 64: return launch_early(score_sign_kernel<64>, grid, dim3(THREADS), 0, stream, *select);
    case 96: return launch_early(score_sign_kernel<96>, grid, dim3(THREADS), 0, stream, *select);
    case 128: return launch_early(score_sign_kernel<128>, grid, dim3(THREADS), 0, stream, *select);
    case 256: return launch_early(score_sign_kernel<256>, grid, dim3(THREADS), 0, stream, *select);
    default: return cudaErrorInvalidValue;
    }
}
