/* The kernel of attend_transform.cuh: rings of pages, what warps do with them, and putting their states together. */
#ifndef TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_KERNEL_CUH
#define TERSE_BACKEND_CUDA_KV_ATTEND_TRANSFORM_KERNEL_CUH

#include "backend/cuda/kv/attend_transform.cuh"
#include "backend/cuda/kv/attend_transform.h"

#include <cstring>

/* ---- The ring */

constexpr uint32_t RING_MOST = 12; /* slots */

/* Bytes of a slot: nibbles, then gains. */
ATTEND_INLINE uint32_t slot_bytes(uint32_t nibbles) { return (nibbles + 1) * PAGE_TRANSFORM_NIBBLE; }

ATTEND_INLINE void wait_for_copies(uint32_t pending) {
    switch (pending) {
    case 0: wait_copies<0>(); break;
    case 1: wait_copies<1>(); break;
    case 2: wait_copies<2>(); break;
    case 3: wait_copies<3>(); break;
    case 4: wait_copies<4>(); break;
    case 5: wait_copies<5>(); break;
    case 6: wait_copies<6>(); break;
    case 7: wait_copies<7>(); break;
    case 8: wait_copies<8>(); break;
    case 9: wait_copies<9>(); break;
    case 10: wait_copies<10>(); break;
    default: wait_copies<11>(); break;
    }
    __syncwarp();
}

/* The sides of a warp's pages, one after another: keys, values, keys, ... */
struct transform_ring {
    const struct page_set_view *sets;
    const struct place_view *place;
    uint32_t n;                  /* pages */
    uint32_t nibbles[2], own[2]; /* by side; own: where the lane's 16 bytes of four nibbles lie in a slot */
    uint32_t base, bytes, slots; /* of a slot */
    uint32_t read, next;         /* slots: of the side that is read next, and how many sides were asked for */
    const uint8_t *of_lane[2];   /* page 32 i + lane's */

    ATTEND_INLINE void start(const struct page_set_view *first, uint32_t count, const struct place_view *at, uint32_t memory,
                             uint32_t room, uint32_t key_nibbles, uint32_t value_nibbles) {
        const unsigned lane = lane_id(), n4 = lane / 8, j = lane % 8;
        sets = first, n = count, place = at, base = memory;
        nibbles[0] = key_nibbles, nibbles[1] = value_nibbles;
        own[0] = n4 * 128 + 16 * (j ^ 2 * n4), own[1] = n4 * 128 + 16 * (j ^ n4 % 2 * 4);
        bytes = slot_bytes(max(key_nibbles, value_nibbles));
        slots = min(room / bytes, RING_MOST);
        read = next = 0;
        for (uint32_t i = 0; i < slots; i++) issue(i);
    }

    ATTEND_INLINE void issue(uint32_t slot) {
        const uint32_t page = next / 2, side = next % 2, lane = lane_id();
        if (page < n) {
            if (side == 0 && page % 32 == 0) {
                const struct page_set_view set = sets[min(page + lane, n - 1)];
                of_lane[0] = page_address(&set, place, 0), of_lane[1] = page_address(&set, place, 1);
            }
            const uint8_t *from = reinterpret_cast<const uint8_t *>(
                __shfl_sync(ALL_LANES, (unsigned long long)(side ? of_lane[1] : of_lane[0]), page % 32));
            const uint32_t to = base + slot * bytes, count = nibbles[side] * 8;
            if (lane < 4) copy_async<16>(to + count * 16 + 16 * lane, from + 16 * lane);
            from += PAGE_TOKENS + 16 * lane;
            const uint32_t place_of_lane = to + (side ? own[1] : own[0]);
            for (uint32_t c = 0; c < count; c += 32)
                if (c + lane < count) copy_async<16>(place_of_lane + 16 * c, from + 16 * c);
        }
        next++;
        commit_copies();
    }

    ATTEND_INLINE uint32_t wait() {
        wait_for_copies(slots - 1);
        return base + read * bytes;
    }

    ATTEND_INLINE void release() {
        __syncwarp();
        issue(read);
        read = read + 1 == slots ? 0 : read + 1;
    }
};

/* ---- Shared memory */

template <int HD, int NQ, int WARPS> struct transform_shared {
    static constexpr bool basis = HD <= 128; /* of keys; larger ones are read from global memory */
    struct fixed {
        query_fragments<HD, 1> window, exact;
        side_program<HD> program[2];
        transform_queries<HD, NQ> queries;
        int8_t levels[TRANSFORM_TABLES * 16];
    };
    struct warp {
        query_scratch<HD, NQ> scratch;
        uint32_t bytes[NQ * side_program<HD>::most * 8];
    };
    static constexpr int basis_bytes = basis ? (int)sizeof(basis_fragments<HD>) : 0;
    static constexpr int fixed_bytes = ((int)sizeof(fixed) + 127) / 128 * 128;
    static constexpr int warp_bytes = ((int)sizeof(warp) + 127) / 128 * 128;
    static constexpr int rings = basis_bytes + fixed_bytes + WARPS * warp_bytes; /* where they begin */
    static constexpr int parts = WARPS * 32 / HD > 0 ? WARPS * 32 / HD : 1;      /* that channels are summed up in */
    static constexpr int states = WARPS + parts;
    /* When pages are read, where warps' own memory was: partial states, sums by component of each warp and of all, what merging needs. */
    static constexpr int sums_at = (int)partials_bytes<HD>(states, 4 * NQ);
    static constexpr int merging = (sums_at + (WARPS + 1) * 4 * NQ * (HD + 2) * 4 + 15) / 16 * 16;
    static constexpr int after = merging + WARPS * 32 * 24;
    static constexpr int least_ring = 2 * half_rows<HD>::bytes > (HD / 2 + 1) * PAGE_TRANSFORM_NIBBLE
                                          ? 2 * half_rows<HD>::bytes
                                          : (HD / 2 + 1) * PAGE_TRANSFORM_NIBBLE;
    static constexpr int least =
        basis_bytes + fixed_bytes + (WARPS * (warp_bytes + least_ring) > after ? WARPS * (warp_bytes + least_ring) : after);
};

/* ---- The kernel */

/* Logits of a page's tokens: ALiBi, and -INFINITY for those that are not read. */
template <int NQ>
ATTEND_INLINE void finish_page_logits(float (&x)[NQ][8], const float *slopes, uint32_t group, int32_t from, uint32_t begin,
                                      uint32_t end) {
    const uint32_t first = lane_token();
    if (slopes) {
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            const uint32_t query = 4 * n + lane_id() % 4;
            const float slope = query < group ? LOG2_E * slopes[query] : 0;
#pragma unroll
            for (int i = 0; i < 8; i++) x[n][i] += slope * (float)(from + (int32_t)(first + token_of(i)));
        }
    }
    if (begin || end < PAGE_TOKENS) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t token = first + token_of(i);
#pragma unroll
            for (int n = 0; n < NQ; n++)
                if (token < begin || token >= end) x[n][i] = -INFINITY;
        }
    }
}

/* A warp's sums by component to z[query][HD], zeros before; state[query]: maximum, sum. */
template <int HD, int NQ>
ATTEND_INLINE void store_components(const side_program<HD> &program, transform_running<NQ> &r, const transform_sums<HD, NQ> &acc,
                                    float *z, float2 *state) {
    const unsigned lane = lane_id(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < NQ; n++) {
        for (int o = 4; o < 32; o *= 2) {
            r.sum[n] += __shfl_xor_sync(ALL_LANES, r.sum[n], o);
            r.gained[n] += __shfl_xor_sync(ALL_LANES, r.gained[n], o);
        }
        if (g == 0) state[4 * n + t] = make_float2(r.max[n], r.sum[n]);
    }
    for (unsigned c = lane; c < 4 * NQ * HD; c += 32) z[c] = 0;
    __syncwarp();
#pragma unroll
    for (int p = 0; p < HD / 16; p++) {
        if (8 * p + g < program.planes) {
            const float4 scale = program.scale[8 * p + g];
            const unsigned quad = program.quad[8 * p + g];
#pragma unroll
            for (int n = 0; n < NQ; n++) {
                float *to = z + (4 * n + t) * HD + 4 * quad;
                const float zero = LEVEL_ZERO * r.gained[n];
                atomicAdd(to, (acc[p][n][0] - zero) * scale.x); /* a quad has at most two planes: the order does not matter */
                atomicAdd(to + 1, (acc[p][n][1] - zero) * scale.y);
                atomicAdd(to + 2, (acc[p][n][2] - zero) * scale.z);
                atomicAdd(to + 3, (acc[p][n][3] - zero) * scale.w);
            }
        }
    }
}

/* All threads, after a __syncthreads: sums by component of WARPS states become `parts` partial states of channels, from number WARPS on. */
template <int HD, int NQ, int WARPS>
ATTEND_INLINE void components_to_channels(const transform_side<HD> &values, uint32_t group, float *z, float2 *states,
                                          const partials<HD> &to) {
    using memory = transform_shared<HD, NQ, WARPS>;
    float *const all = z + WARPS * 4 * NQ * HD;
    float2 *const state = states + WARPS * 4 * NQ;
    for (unsigned i = threadIdx.x; i < 4 * NQ * HD; i += WARPS * 32) {
        const unsigned query = i / HD;
        float m = -INFINITY, sum = 0, weights = 0;
        for (int w = 0; w < WARPS; w++) m = fmaxf(m, states[w * 4 * NQ + query].x);
        for (int w = 0; w < WARPS && m > -INFINITY; w++) {
            const float2 own = states[w * 4 * NQ + query];
            const float factor = exp2_fast(own.x - m);
            weights += factor * own.y, sum += factor * z[w * 4 * NQ * HD + i];
        }
        all[i] = sum;
        if (i % HD == 0) state[query] = make_float2(m, weights);
    }
    __syncthreads();
    const unsigned components = 4 * values.view->layout.quads;
    for (unsigned i = threadIdx.x; i < memory::parts * HD; i += WARPS * 32) {
        const unsigned channel = i % HD, part = i / HD;
        const unsigned first = components * part / memory::parts, end = components * (part + 1) / memory::parts;
        float sum[4 * NQ] = {};
        for (unsigned c = first; c < end; c++) {
            const float basis = __half2float(values.view->basis_half[c * HD + channel]);
#pragma unroll
            for (int n = 0; n < 4 * NQ; n++) sum[n] += all[n * HD + c] * basis;
        }
        const float mean = part ? 0 : values.mean[channel];
#pragma unroll
        for (int n = 0; n < 4 * NQ; n++) {
            if (n >= group) continue;
            to.sums[((WARPS + part) * group + n) * HD + channel] = sum[n] + mean * state[n].y;
            if (channel == 0) to.max_sum[(WARPS + part) * group + n] = make_float2(state[n].x, part ? 0 : state[n].y);
        }
    }
}

/* attend_decode_splits counts on two CTAs to a multiprocessor; here it holds one, which reads what two would. */
__host__ __device__ constexpr uint32_t transform_parts(uint32_t splits) { return splits > 1 ? splits / 2 : 1; }

/* Query heads first_query .. of each group, at most 4 NQ. `ring`: bytes of a warp's. */
template <int HD, int NQ, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 1)
    attend_transform_kernel(const __grid_constant__ struct attend_decode whole, uint32_t first_query, uint32_t ring_bytes,
                            const __grid_constant__ struct transform_levels_view levels, struct complement complement) {
    using memory = transform_shared<HD, NQ, WARPS>;
    extern __shared__ __align__(128) uint8_t shared[];
    auto *const basis = reinterpret_cast<basis_fragments<HD> *>(shared);
    auto &fixed = *reinterpret_cast<typename memory::fixed *>(shared + memory::basis_bytes);
    const unsigned warp = threadIdx.x / 32, lane = lane_id();
    auto &own =
        *reinterpret_cast<typename memory::warp *>(shared + memory::basis_bytes + memory::fixed_bytes + warp * memory::warp_bytes);
    const uint32_t ring_at = shared_address(shared) + memory::rings + warp * ring_bytes;
    struct attend_decode a = whole;
    struct share s;
    share_of(a, blockIdx.x, blockIdx.y, blockIdx.z, s);
    s.parts = transform_parts(s.parts);
    if (s.part >= s.parts) return;
    { /* from here on, a group is the query heads that this launch serves */
        const uint32_t all = s.group;
        s.group = min(all - first_query, 4u * NQ);
        const size_t skipped = (size_t)s.head * (all - s.group) + first_query,
                     row = (size_t)s.row * a.heads.kv_heads * (all - s.group);
        a.q += (row + skipped) * HD, a.q_exact += (row + skipped) * HD, a.out += (row + skipped) * HD;
        if (a.heads.slopes) a.heads.slopes += skipped;
    }

    /* What pages are the warp's, and asking for them. */
    uint32_t first, end;
    share_pages(s, first, end);
    const uint32_t n = end - first, begin = first + n * warp / WARPS, pages = first + n * (warp + 1) / WARPS - begin;
    const struct page_set_view *const sets = s.sequence->page_sets + begin;
    const struct place_view *const place = a.places + (size_t)a.layer * a.heads.kv_heads + s.head;
    const transform_side<HD> keys = side_of<HD>(a, s, 0), values = side_of<HD>(a, s, 1);
    transform_ring ring;
    ring.start(sets, pages, place, ring_at, ring_bytes, keys.view->layout.nibbles, values.view->layout.nibbles);

    const size_t queries = ((size_t)s.row * a.heads.kv_heads + s.head) * s.group * HD;
    if (threadIdx.x < 2) fixed.program[threadIdx.x].wraps = 0;
    for (unsigned i = threadIdx.x; i < TRANSFORM_TABLES * 4; i += WARPS * 32)
        reinterpret_cast<uint32_t *>(fixed.levels)[i] = levels.words[i];
    if (memory::basis)
        for (unsigned i = warp; i < HD / 16 * (HD / 32) * 2; i += WARPS)
            (&basis->of[0][0][0][lane])[i * 32] = *basis_at<HD>(keys.view->basis_half, i / (HD / 32 * 2), i / 2 % (HD / 32), i % 2);
    prepare_queries<HD, 1, WARPS>(a.q + queries, s.group, a.heads.scale, fixed.window);
    prepare_queries<HD, 1, WARPS>(a.q_exact + queries, s.group, a.heads.scale, fixed.exact);
    stage_queries<HD, NQ, WARPS * 32>(a.q + queries, s.group, a.heads.scale, keys.mean, fixed.queries);
    __syncthreads();
    make_program<HD, 0, WARPS * 32>(keys, fixed.levels, fixed.program[0]);
    make_program<HD, 1, WARPS * 32>(values, fixed.levels, fixed.program[1]);
    __syncthreads();

    transform_sums<HD, NQ> acc = {};
    transform_running<NQ> r;
#pragma unroll
    for (int i = 0; i < NQ; i++) r.max[i] = -INFINITY, r.sum[i] = r.gained[i] = 0;
    run_queries<NQ> of_run;
    uint32_t run = ALL_LANES;     /* no position of a run */
    struct page_set_view of_lane; /* page 32 i + lane's */
    const float *const slopes = a.heads.slopes ? a.heads.slopes + s.head * s.group : nullptr;
#pragma unroll 1
    for (uint32_t page = 0; page < pages; page++) {
        if (page % 32 == 0) of_lane = sets[min(page + lane, pages - 1)];
        const uint32_t from = __shfl_sync(ALL_LANES, of_lane.first, page % 32);
        const uint32_t slots = __shfl_sync(ALL_LANES, of_lane.begin | (uint32_t)of_lane.end << 16, page % 32);
        const uint32_t stop = from > s.position ? 0 : min(slots >> 16, s.position + 1 - from);
        if (run_of(from) != run) {
            run = run_of(from);
            of_run = prepare_run<HD, NQ, memory::basis>(whole.heads, a.run_angles + (size_t)(run / RUN_TOKENS) * a.heads.n_rot,
                                                        keys.view->basis_half, basis, fixed.queries, fixed.program[0], own.scratch,
                                                        own.bytes);
        }
        float x[NQ][8];
        page_weights<NQ> weights;
        score_page<HD, NQ>(ring.wait(), fixed.program[0], own.bytes, of_run, complement, x);
        ring.release();
        finish_page_logits(x, slopes, s.group, (int32_t)(from - s.position), slots & 0xffff, stop);
        const uint32_t slot = ring.wait();
        weigh_page<HD, NQ>(slot, fixed.program[1], x, r, acc, weights);
        accumulate_page<HD, NQ>(slot, fixed.program[1], weights, complement, acc);
        ring.release();
    }
    wait_copies<0>();
    __syncwarp();

    running<1> of_rows;
    float rows[HD / 16][1][4] = {};
    clear_running(of_rows);
    attend_rows<HD>(whole, s, warp * s.parts + s.part, WARPS * s.parts, fixed.exact, fixed.window, slopes_of<1>(a, s), ring_at,
                    of_rows, rows);
    finish_running(of_rows);
    __syncthreads(); /* nobody reads a ring any more */

    uint8_t *const after = shared + memory::basis_bytes + memory::fixed_bytes;
    const partials<HD> states = partials_at<HD>(after, memory::states, s.group);
    float *const z = reinterpret_cast<float *>(after + memory::sums_at);
    float2 *const z_states = reinterpret_cast<float2 *>(z + (WARPS + 1) * 4 * NQ * HD);
    store_running(states, warp, s.group, of_rows);
    store_sums<HD>(states, warp, s.group, rows);
    store_components<HD, NQ>(fixed.program[1], r, acc, z + warp * 4 * NQ * HD, z_states + warp * 4 * NQ);
    __syncthreads();
    components_to_channels<HD, NQ, WARPS>(values, s.group, z, z_states, states);
    __syncthreads();
    finish_share<HD, WARPS * 32>(a, s, states, memory::states, after + memory::merging);
}

template <int HD, int NQ, int WARPS>
cudaError_t launch_transform_warps(const struct attend_decode *a, uint32_t first_query, int room, cudaStream_t stream) {
    using memory = transform_shared<HD, NQ, WARPS>;
    const auto kernel = attend_transform_kernel<HD, NQ, WARPS>;
    const int ring = (room - memory::rings) / WARPS / 128 * 128, bytes = memory::rings + WARPS * ring;
    const cudaError_t result = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (result != cudaSuccess) return result;
    struct transform_levels_view levels;
    memcpy(levels.words, transform_levels, sizeof levels.words);
    kernel<<<dim3(transform_parts(a->splits), a->heads.kv_heads, a->n_rows), WARPS * 32, bytes, stream>>>(
        *a, first_query, (uint32_t)ring, levels, complement{ALL_LANES});
    return cudaGetLastError();
}

/* As many warps as fit: those of a GPU with 227 KiB for a CTA, half as many, or two. */
template <int HD, int NQ> cudaError_t launch_transform(const struct attend_decode *a, uint32_t first_query, cudaStream_t stream) {
    constexpr int warps = HD <= 128 ? (NQ == 1 ? 12 : 8) : (NQ == 1 ? 8 : 4), half = warps / 2;
    int device, room;
    cudaError_t result = cudaGetDevice(&device);
    if (result == cudaSuccess) result = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (result != cudaSuccess) return result;
    if (room >= transform_shared<HD, NQ, warps>::least) return launch_transform_warps<HD, NQ, warps>(a, first_query, room, stream);
    if (room >= transform_shared<HD, NQ, half>::least) return launch_transform_warps<HD, NQ, half>(a, first_query, room, stream);
    if (room >= transform_shared<HD, NQ, 2>::least) return launch_transform_warps<HD, NQ, 2>(a, first_query, room, stream);
    return cudaErrorInvalidConfiguration;
}

/* More than 8 query heads of a group take several launches. */
template <int HD> cudaError_t launch_transform_groups(const struct attend_decode *a, cudaStream_t stream) {
    const uint32_t group = a->heads.query_heads / a->heads.kv_heads;
    cudaError_t result = cudaSuccess;
    for (uint32_t first = 0; first < group && result == cudaSuccess; first += 8)
        result = group - first > 4 ? launch_transform<HD, 2>(a, first, stream) : launch_transform<HD, 1>(a, first, stream);
    return result;
}

#endif
