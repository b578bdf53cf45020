/* Merges the parts that CTAs of attend_transform_kernel.cuh leave in memory: a CTA for each query row and KV head.
 *
 * Where rows of halves have no CTA of their own it reads these first. Else, where kernels begin early, it merges twice: before the parts are
 * there it merges whatever lies in their place, and writes nothing. Then the multiprocessor's caches have what does not depend on the parts:
 * tables, and the instructions, some 30 KB, each of which is executed once or twice and which other kernels have driven out since the layer
 * before. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_MERGE_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_MERGE_CUH

#include "backend/cuda/kv/attend_transform_rows.cuh"
#include "backend/cuda/kv/attend_transform_runs.cuh"

constexpr int MERGE_WARPS = 8, MERGE_THREADS = MERGE_WARPS * 32;

/* A thread has eight channels, of a section of the components, where it multiplies by the basis. A CTA has so few registers that it can
 * begin beside one that still reads pages. */
template <int HD> struct merge_shape {
    static constexpr unsigned octets = HD / 8, most = MERGE_THREADS / octets, sections = most < 16 ? most : 16,
                              rows = HD / sections, rows_at_once = rows % 4 ? 2 : 4, parts_at_once = 8;
    static_assert(HD % sections == 0 && rows % rows_at_once == 0, "sections are of one size");
};

/* A merge_memory is shared, then followed by the factors of parts, [parts][G]. */
template <int HD, int NQ> struct merge_memory {
    float4 sums[MERGE_THREADS];
    float components[HD][4 * NQ];
    float by_section[merge_shape<HD>::sections][4 * NQ][HD];
    float4 totals[4 * NQ]; /* of a query: the rows' factor, weights of rows in pages less the mean, 1 / all weights, 0 */
};

/* Computes the factors of `n` parts, a warp for each query. A learned sink is among all weights. The logarithm of their sum is left where
 * `ends` says that the parts are there. */
template <int HD, int NQ>
ATTEND_INLINE void weigh_parts(const struct attend_decode &a, const struct share &s, const transform_parts<HD> &parts, uint32_t n,
                               bool ends, merge_memory<HD, NQ> &m, float *factors) {
#pragma unroll 1
    for (unsigned query = threadIdx.x / 32; query < parts.group; query += MERGE_THREADS / 32) {
        float most = -INFINITY, weights = 0, of_mean = 0, of_rows = 0; /* of the lane's parts, part 0 apart */
#pragma unroll 2
        for (unsigned part = lane_id(); part < n; part += 32) {
            const float4 state = __ldcg(parts.states + part * parts.group + query);
            const float now = fmaxf(most, state.x), own = part && now > -INFINITY ? exp2_fast(state.x - now) : 0,
                        before = now == -INFINITY ? 0 : exp2_fast(most - now);
            weights = weights * before + own * state.y, of_mean = of_mean * before + own * state.z;
            if (!part) of_rows = state.y;
            factors[part * parts.group + query] = state.x, most = now;
        }
        const float of_lane = most;
        for (int o = 16; o; o /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, o));
        const float sink = sink_of(a, s, query);
        most = fmaxf(most, sink);
        const float to_most = most == -INFINITY ? 0 : exp2_fast(of_lane - most);
        weights *= to_most, of_mean *= to_most;
        for (int o = 16; o; o /= 2) {
            weights += __shfl_xor_sync(ALL_LANES, weights, o);
            of_mean += __shfl_xor_sync(ALL_LANES, of_mean, o);
        }
        float rows_factor = 0;
        for (unsigned part = lane_id(); part < n; part += 32) {
            float &factor = factors[part * parts.group + query];
            factor = most == -INFINITY ? 0 : exp2_fast(factor - most);
            if (!part) rows_factor = factor;
        }
        const float of_sink = sink == -INFINITY ? 0 : exp2_fast(sink - most),
                    all = weights + of_rows * rows_factor + of_sink; /* of lane 0 alone */
        if (lane_id() == 0) m.totals[query] = make_float4(rows_factor, of_mean, all > 0 ? 1 / all : 0, 0);
        if (lane_id() == 0 && ends) leave_log_sum(a, s, query, most, all);
    }
}

/* A thread adds up a quad of a query, of every ranks-th part of those behind part 0. */
struct merge_items {
    unsigned n, width, ranks, rank;
    ATTEND_INLINE merge_items(unsigned quads)
        : n(quads), width(min(n, (unsigned)MERGE_THREADS)), ranks(MERGE_THREADS / width), rank(threadIdx.x / width) {}
    ATTEND_INLINE bool has(unsigned i) const { return rank < ranks && i < n; }
    ATTEND_INLINE unsigned first() const { return threadIdx.x % width; }
};

template <int HD> struct loaded_parts { float4 of[merge_shape<HD>::parts_at_once]; };

template <int HD>
ATTEND_INLINE void load_parts(const transform_parts<HD> &parts, uint32_t n, const merge_items &of, unsigned i, unsigned first,
                              loaded_parts<HD> &to) {
    if (!of.has(i)) return;
#pragma unroll
    for (unsigned k = 0; k < merge_shape<HD>::parts_at_once; k++)
        to.of[k] = __ldcg(parts.of(min(first + k * of.ranks, n - 1), i / (HD / 4)) + i % (HD / 4));
}

/* Sums by component. `x` has the first loads of the thread's first item. */
template <int HD, int NQ>
ATTEND_INLINE void add_parts(const transform_parts<HD> &parts, uint32_t n, const merge_items &of, loaded_parts<HD> &x,
                             const float *factors, merge_memory<HD, NQ> &m) {
    constexpr unsigned at_once = merge_shape<HD>::parts_at_once;
#pragma unroll 1
    for (unsigned base = 0; base < of.n; base += of.width) {
        const unsigned i = base + of.first(), query = i / (HD / 4), quad = i % (HD / 4);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (unsigned first = 1 + of.rank; first < n && of.has(i); first += at_once * of.ranks) {
            if (base || first != 1 + of.rank) load_parts(parts, n, of, i, first, x);
#pragma unroll
            for (unsigned k = 0; k < at_once; k++) {
                const unsigned part = first + k * of.ranks;
                if (part < n) add_scaled(sum, factors[part * parts.group + query], x.of[k]);
            }
        }
        if (of.ranks > 1) {
            __syncthreads();
            m.sums[threadIdx.x] = sum;
            __syncthreads();
        }
        if (!of.has(i) || of.rank) continue;
        for (unsigned r = 1; r < of.ranks; r++) add_scaled(sum, 1, m.sums[threadIdx.x + r * of.width]);
        float(*const to)[4 * NQ] = m.components + 4 * quad;
        to[0][query] = sum.x, to[1][query] = sum.y, to[2][query] = sum.z, to[3][query] = sum.w;
    }
}

/* A thread has a section of the components of eight channels of the basis in registers, where these suffice: it asks for them before
 * the parts are there. */
template <int HD, int NQ> struct basis_section {
    using shape = merge_shape<HD>;
    static constexpr bool kept = shape::rows * NQ <= 8;
    const uint4 *at;
    uint4 of[kept ? shape::rows : 1];

    ATTEND_INLINE basis_section(const struct transform_view &view)
        : at(reinterpret_cast<const uint4 *>(view.basis) +
             (size_t)min(threadIdx.x / shape::octets, shape::sections - 1) * shape::rows * shape::octets +
             threadIdx.x % shape::octets) {
        if constexpr (kept) {
#pragma unroll
            for (unsigned k = 0; k < shape::rows; k++) of[k] = __ldg(at + k * shape::octets);
        }
    }
    ATTEND_INLINE uint4 row(unsigned k) const {
        if constexpr (kept) return of[k];
        return __ldg(at + k * shape::octets);
    }
};

/* Multiplies, by a thread, a section of the components by eight channels of the basis. */
template <int HD, int NQ> ATTEND_INLINE void multiply_section(const basis_section<HD, NQ> &basis, merge_memory<HD, NQ> &m) {
    using shape = merge_shape<HD>;
    const unsigned octet = threadIdx.x % shape::octets, section = threadIdx.x / shape::octets, first = section * shape::rows;
    if (section >= shape::sections) return;
    float x[4 * NQ][8] = {};
#pragma unroll(basis_section <HD, NQ>::kept ? shape::rows : shape::rows_at_once)
    for (unsigned k = 0; k < shape::rows; k++) {
        const uint4 row = basis.row(k);
        const uint32_t pairs[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float b = integer_of(pairs[i / 2], i % 2);
#pragma unroll
            for (int q = 0; q < 4 * NQ; q++) x[q][i] = fmaf(m.components[first + k][q], b, x[q][i]);
        }
    }
#pragma unroll
    for (int q = 0; q < 4 * NQ; q++) {
        float4 *const to = reinterpret_cast<float4 *>(m.by_section[section][q] + 8 * octet);
        to[0] = make_float4(x[q][0], x[q][1], x[q][2], x[q][3]), to[1] = make_float4(x[q][4], x[q][5], x[q][6], x[q][7]);
    }
}

/* Writes out[G][HD] of query heads first_query .. of each group, at most 4 NQ. READS_ROWS: it makes part 0 itself before it waits, while
 * others still read pages: since these let it begin, they have waited for the kernels that write the rows and queries. */
template <int HD, int NQ, bool READS_ROWS>
__global__ void __launch_bounds__(MERGE_THREADS, 2)
    merge_transform_kernel(const __grid_constant__ struct attend_decode a, uint32_t first_query) {
    extern __shared__ __align__(128) uint8_t shared[];
    auto &m = *reinterpret_cast<merge_memory<HD, NQ> *>(shared);
    float *const factors = reinterpret_cast<float *>(&m + 1);
    constexpr unsigned outputs = (4 * NQ * HD + MERGE_THREADS - 1) / MERGE_THREADS; /* of a thread, every MERGE_THREADS-th */
    struct share s;
    share_of(a, 0, blockIdx.x, blockIdx.y, s);
    take_heads(s, first_query, 4 * NQ);
    const transform_parts<HD> parts = transform_parts_of<HD>(a, s);
    if constexpr (READS_ROWS) {
        const struct share own = s; /* a function that is called gets copies: what it gets is in memory */
        const transform_parts<HD> own_parts = parts;
        leave_rows<HD, NQ, MERGE_WARPS>(a, own, true, shared, own_parts);
        __syncthreads();
    }
    const uint32_t n = s.parts + 1;
    const transform_side<HD> values = side_of<HD>(a, s, 1);
    const merge_items items(parts.group * (HD / 4));
    const basis_section<HD, NQ> basis(*values.view);
    float rows[outputs];
    loaded_parts<HD> first;
    float *const out = a.out + queries_at<HD>(a, s);
#pragma unroll 1
    for (int pass = kernels_begin_early() && !READS_ROWS ? 0 : 1; pass < 2; pass++) {
        if (pass) wait_for_kernels();
        load_parts(parts, n, items, items.first(), 1 + items.rank, first);
#pragma unroll
        for (unsigned k = 0; k < outputs; k++) {
            const unsigned i = threadIdx.x + k * MERGE_THREADS;
            rows[k] = i < parts.group * HD ? __ldcg(reinterpret_cast<const float *>(parts.of(0, 0)) + i) : 0;
        }
        weigh_parts(a, s, parts, n, pass, m, factors);
        __syncthreads();
        if (pass) let_next_kernel_begin(); /* not before: weights that it asks for would delay all that is loaded here */
        add_parts(parts, n, items, first, factors, m);
        __syncthreads();
        multiply_section(basis, m);
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < outputs; k++) {
            const unsigned i = threadIdx.x + k * MERGE_THREADS, query = i / HD, channel = i % HD;
            if (i >= parts.group * HD) continue;
            const float4 total = m.totals[query];
            float sum = __ldg(values.mean + channel) * total.y + total.x * rows[k];
#pragma unroll
            for (unsigned from = 0; from < merge_shape<HD>::sections; from++) sum += m.by_section[from][query][channel];
            if (pass) out[i] = sum * total.z;
        }
        __syncthreads(); /* what the first pass has left is read */
    }
}

template <int HD, int NQ, bool READS_ROWS>
cudaError_t launch_merge(const struct attend_decode *a, uint32_t first_query, cudaStream_t stream) {
    const auto kernel = merge_transform_kernel<HD, NQ, READS_ROWS>;
    const size_t merging = sizeof(merge_memory<HD, NQ>) + (a->splits + 1) * 4 * NQ * sizeof(float),
                 reading = READS_ROWS ? (size_t)row_memory<HD, NQ, MERGE_WARPS>::bytes() : 0,
                 bytes = merging > reading ? merging : reading;
    const cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (result != cudaSuccess) return result;
    return launch_early(kernel, dim3(a->heads.kv_heads, a->n_rows), dim3(MERGE_THREADS), bytes, stream, *a, first_query);
}

#endif
