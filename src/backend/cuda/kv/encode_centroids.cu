/* Writes and reads pages of codecs with centroids: pq, vq and gain-shape. Codes are the CPU's, bit for bit where rows are
 * (format/pq.h); rows of gain-shape are normalized and gains fitted with sums in another order than the CPU's.
 *
 * A block of 256 threads has a page. Where sub-vectors have 16 or 32 channels, it goes through all centroids together (encode_scores_wide.cuh).
 * Otherwise a warp takes a sub-vector at a time, a lane two tokens of it. Of 2, 4 or 8 channels tensor cores find the few centroids that may be
 * nearest (encode_scores.cuh), and the lane goes through these; of other widths through all in order, 8 of them for each reading of its tokens.
 * Numbers of centroids are copied to shared memory while the sub-vector's own are made ready. Of pq, where sub-vectors have 4 channels and
 * many centroids, a block has one sub-vector of many pages instead (encode_scores_resident.cuh). */
#include "backend/cuda/kv/encode_scores_resident.cuh"
#include "backend/cuda/kv/encode_scores_wide.cuh"
#include "backend/cuda/launch.cuh"
#include "format/pq.h"

#include <type_traits>

constexpr uint32_t STAGED = 1408;    /* floats of centroids that a warp has in shared memory: 4 x 256, or 8 x 128, and gaps */
constexpr uint32_t STAGED_ROW = 352; /* of them of a channel at most */
constexpr uint32_t SEARCHED = 512;   /* numbers of centroids that are staged at a time where all are searched */
constexpr uint32_t TOGETHER = 8;     /* centroids that a row meets at a time */

struct warp_searches {
    struct {
        float z[STAGED], gap[4] /* halves lie in other banks than channels */, half[STAGED_ROW];
        uint16_t codes[PAGE_TOKENS];
    } of[WARPS];
};

template <int HD, int WIDTH> struct centroids_memory {
    float numbers[HD][NUMBERS_STRIDE];
    union {
        std::conditional_t<WIDTH >= 16, wide_memory<HD, WIDTH>, warp_searches> search;
        token_sums sums; /* while rows are normalized and gains fitted */
    };
};

/* Moves, by a warp, a sub-vector's numbers to the origin and scales them, as the search takes them. */
template <int WIDTH, int HD>
static __device__ void move_to_origin(const struct centroid_view &view, uint32_t part, centroids_memory<HD, WIDTH> &m) {
    const uint32_t lane = threadIdx.x % 32, width = WIDTH ? WIDTH : view.shape.width;
    const float scale = view.scale[part];
#pragma unroll(WIDTH ? WIDTH : 2)
    for (uint32_t c = part * width; c < (part + 1) * width; c++) {
        const float origin = view.origin[c];
        m.numbers[c][lane] = (m.numbers[c][lane] - origin) * scale;
        m.numbers[c][lane + 32] = (m.numbers[c][lane + 32] - origin) * scale;
    }
    __syncwarp();
}

/* Begins to copy, by a warp, the numbers of centroids [first, first + n) of a sub-vector. */
template <int WIDTH, int HD>
static __device__ void copy_centroids(const struct centroid_view &view, uint32_t part, uint32_t first, uint32_t n,
                                      centroids_memory<HD, WIDTH> &m) {
    auto &own = m.search.of[threadIdx.x / 32];
    const uint32_t width = WIDTH ? WIDTH : view.shape.width, k = 1u << view.shape.bits, lane = threadIdx.x % 32,
                   stride = staged_stride(n);
    const float *const z = view.z + (size_t)part * width * k + first, *const half = view.half + (size_t)part * k + first;
    for (uint32_t j = 4 * lane; j < n; j += 4 * 32) {
        const uint32_t to = shared_address(own.z + staged_place(j));
#pragma unroll(WIDTH ? WIDTH : 2)
        for (uint32_t c = 0; c < width; c++) copy_async<16>(to + 4 * c * stride, z + (size_t)c * k + j);
        copy_async<16>(shared_address(own.half + staged_place(j)), half + j);
    }
    commit_copies();
}

/* Does the same where their numbers are not kept. */
template <int WIDTH, int HD>
static __device__ void convert_centroids(const struct centroid_view &view, uint32_t part, uint32_t first, uint32_t n,
                                         centroids_memory<HD, WIDTH> &m) {
    auto &own = m.search.of[threadIdx.x / 32];
    const uint32_t width = WIDTH ? WIDTH : view.shape.width, k = 1u << view.shape.bits;
    const device_half *from = view.centroids + (size_t)first * HD + part * width;
    const uint32_t stride = staged_stride(n);
    const float scale = view.scale[part];
    for (uint32_t c = 0; c < width; c += 2) {
        const bool pair = c + 1 < width && width % 2 == 0; /* halves of a pair lie in one word */
        const float *const origin = view.origin + part * width + c;
        const float low = origin[0], high = c + 1 < width ? origin[1] : 0;
#pragma unroll 4
        for (uint32_t j = threadIdx.x % 32; j < n; j += 32) {
            const device_half *const at = from + (size_t)j * HD + c;
            const __half2 x = pair ? *(const __half2 *)at : __halves2half2(at[0], at[c + 1 < width]);
            own.z[c * stride + staged_place(j)] = (__low2float(x) - low) * scale;
            if (c + 1 < width) own.z[(c + 1) * stride + staged_place(j)] = (__high2float(x) - high) * scale;
        }
    }
    for (uint32_t j = threadIdx.x % 32; j < n; j += 32) own.half[staged_place(j)] = view.half[(size_t)part * k + first + j];
}

/* Begins to stage, by a warp, centroids [first, first + n) of a sub-vector in the form that the search needs: z[channel][staged_place]. They
 * are there after staged(). */
template <int WIDTH, int HD>
static __device__ void stage_centroids(const struct centroid_view &view, uint32_t part, uint32_t first, uint32_t n,
                                       centroids_memory<HD, WIDTH> &m) {
    __syncwarp();
    if (view.z)
        copy_centroids<WIDTH>(view, part, first, n, m);
    else
        convert_centroids<WIDTH>(view, part, first, n, m);
}

static __device__ inline void staged() {
    wait_copies<0>();
    __syncwarp();
}

/* Computes the values (format/pq.h) of TOGETHER of a warp's `count` staged centroids, from the j-th on, for tokens t and t + 32 or, where R
 * is 1, for token t. WIDTH is that of sub-vectors, 0 for one that is known at run time. */
template <int WIDTH, int R, int HD>
static __device__ void find_values(const struct centroid_view &view, const centroids_memory<HD, WIDTH> &m, uint32_t part,
                                   uint32_t count, uint32_t j, uint32_t t, float (&value)[R][TOGETHER]) {
    const auto &own = m.search.of[threadIdx.x / 32];
    const uint32_t width = WIDTH ? WIDTH : view.shape.width, place = staged_place(j), stride = staged_stride(count);
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++)
#pragma unroll
        for (int r = 0; r < R; r++) value[r][i] = own.half[place + i];
#pragma unroll(WIDTH ? WIDTH : 2)
    for (uint32_t c = 0; c < width; c++) {
        const float4 low = *(const float4 *)&own.z[c * stride + place], high = *(const float4 *)&own.z[c * stride + place + 4];
        const float z[TOGETHER] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float y = m.numbers[part * width + c][t + 32 * r];
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++) value[r][i] = fmaf(-y, z[i], value[r][i]);
        }
    }
}

/* Finds, by a warp, the codes of a sub-vector and writes them. Of a group of centroids that a row meets together only the least value
 * is kept; which of the group has it is found once for a token, by the same sums again. */
template <int HD>
static __device__ void search_part(const struct centroid_view &view, uint32_t part, uint32_t tokens, centroids_memory<HD, 0> &m,
                                   uint8_t *bytes) {
    auto &own = m.search.of[threadIdx.x / 32];
    const uint32_t lane = threadIdx.x % 32, width = view.shape.width, k = 1u << view.shape.bits;
    const uint32_t n = min(k, SEARCHED / (width > 2 ? width : 2) / TOGETHER * TOGETHER);
    float best[2] = {INFINITY, INFINITY};
    uint32_t code[2] = {0, 0};
    stage_centroids<0>(view, part, 0, n, m);
    move_to_origin<0>(view, part, m);
    for (uint32_t first = 0; first < k; first += n) {
        const uint32_t count = min(n, k - first);
        uint32_t group[2] = {count, count}; /* `count`: none of these centroids is nearer */
        if (first) stage_centroids<0>(view, part, first, count, m);
        staged();
        for (uint32_t j = 0; j < count; j += TOGETHER) {
            float value[2][TOGETHER];
            find_values<0>(view, m, part, count, j, lane, value);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float least = value[r][0]; /* of the numbers that are not NaN */
#pragma unroll
                for (uint32_t i = 1; i < TOGETHER; i++) least = fminf(least, value[r][i]);
                if (least < best[r]) best[r] = least, group[r] = j;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (group[r] == count) continue;
            float value[1][TOGETHER];
            find_values<0>(view, m, part, count, group[r], lane + 32 * r, value);
#pragma unroll
            for (uint32_t i = TOGETHER; i-- > 0;)
                if (value[0][i] == best[r]) code[r] = first + group[r] + i;
        }
    }
    write_part(view.shape.bits, code, tokens, own.codes, bytes);
}

/* Does the same for WIDTH 2, 4 or 8 and at least 64 centroids: tensor cores find the few that may be nearest. */
template <int HD, int WIDTH>
static __device__ void score_part(const struct centroid_view &view, uint32_t part, uint32_t tokens, centroids_memory<HD, WIDTH> &m,
                                  uint8_t *bytes) {
    auto &own = m.search.of[threadIdx.x / 32];
    const uint32_t lane = threadIdx.x % 32, k = 1u << view.shape.bits, n = min(k, SCORE_GROUP * score_groups<WIDTH>);
    stage_centroids<WIDTH>(view, part, 0, n, m);
    move_to_origin<WIDTH>(view, part, m);
    const struct score_rows<WIDTH> rows = score_rows_of<HD, WIDTH>(m.numbers, part);
    float best[2] = {INFINITY, INFINITY};
    uint32_t code[2] = {0, 0};
    for (uint32_t first = 0; first < k; first += n) {
        if (first) stage_centroids<WIDTH>(view, part, first, n, m);
        staged();
        const uint2 near = nearest_runs<WIDTH>(rows, own.z, own.half, n, best);
#pragma unroll
        for (int r = 0; r < 2; r++)
            for (uint32_t runs = r ? near.y : near.x; runs; runs &= runs - 1) {
                const uint32_t run = SCORE_RUN * ((uint32_t)__ffs((int)runs) - 1);
#pragma unroll 1
                for (uint32_t j = run; j < run + SCORE_RUN; j += TOGETHER) {
                    float value[1][TOGETHER];
                    find_values<WIDTH>(view, m, part, n, j, lane + 32 * r, value);
#pragma unroll
                    for (uint32_t i = 0; i < TOGETHER; i++)
                        if (value[0][i] < best[r]) best[r] = value[0][i], code[r] = first + j + i;
                }
            }
    }
    write_part(view.shape.bits, code, tokens, own.codes, bytes);
}

template <int HD, int WIDTH>
static __device__ void search_parts(const struct centroid_view &view, uint32_t tokens, centroids_memory<HD, WIDTH> &m,
                                    uint8_t *codes) {
    for (uint32_t part = threadIdx.x / 32; part < HD / view.shape.width; part += WARPS) {
        if constexpr (WIDTH)
            score_part<HD, WIDTH>(view, part, tokens, m, codes + part * PAGE_PQ_PART(view.shape.bits));
        else
            search_part(view, part, tokens, m, codes + part * PAGE_PQ_PART(view.shape.bits));
    }
}

template <int HD>
static __device__ float centroid_at(const struct centroid_view &view, const uint8_t *codes, uint32_t c, uint32_t t) {
    const uint32_t width = view.shape.width, bits = view.shape.bits, part = c / width;
    const uint32_t code = code_at(codes + part * PAGE_PQ_PART(bits), bits, t);
    return __half2float(view.centroids[(size_t)code * HD + c]);
}

/* Writes gains, once the codes are written and `numbers` are centred rows: a key's keeps its norm, a value's is best in least
 * squares. */
template <int HD, int WIDTH>
static __device__ void write_gains(const struct centroid_view &view, const struct page_job &job, centroids_memory<HD, WIDTH> &m) {
    const uint8_t *codes = job.page + PAGE_TOKENS;
    const float shape = sum_over_channels<HD>(m.sums, 0, [&](uint32_t c, uint32_t t) {
        const float s = centroid_at<HD>(view, codes, c, t);
        return s * s;
    });
    const float other = sum_over_channels<HD>(m.sums, 1, [&](uint32_t c, uint32_t t) {
        const float x = m.numbers[c][t];
        return x * (job.side == CODEC_KEYS ? x : centroid_at<HD>(view, codes, c, t));
    });
    const uint32_t t = threadIdx.x;
    if (t < PAGE_TOKENS) job.page[t] = t < job.count ? fit_gain(job.side, other, shape, view.gain_scale) : 0;
}

template <int HD> static __device__ void clear_rest(const struct centroid_view &view, uint8_t *codes) {
    const uint32_t parts = HD / view.shape.width, used = parts * (uint32_t)PAGE_PQ_PART(view.shape.bits);
    const uint32_t bytes = (uint32_t)PAGE_BYTES_PQ(parts, view.shape.bits);
    for (uint32_t i = used + threadIdx.x; i < bytes; i += TRANSFORM_THREADS) codes[i] = 0;
}

template <int HD, int WIDTH>
static __global__ void __launch_bounds__(TRANSFORM_THREADS, HD > 128 ? 1 : 2)
    encode_centroids_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    centroids_memory<HD, WIDTH> &m = *(centroids_memory<HD, WIDTH> *)memory;
    const struct page_job job = job_of_block(e, sides);
    const struct centroid_view &view = ((const struct centroid_view *)e.learned[job.side])[job.place];
    uint8_t *const codes = job.page + (view.normalized ? PAGE_TOKENS : 0);
    load_numbers<HD>(e, job, {NULL, view.mean}, m.numbers);
    if (view.normalized) scale_row<HD>(size_of_row<HD>(m.sums, m.numbers).inverse, m.numbers);
    if constexpr (WIDTH >= 16)
        search_wide<HD, WIDTH>(view, job.count, m.numbers, m.search, codes);
    else
        search_parts<HD, WIDTH>(view, job.count, m, codes);
    clear_rest<HD>(view, codes);
    if (!view.normalized) return;
    __syncthreads(); /* codes are written, and numbers no longer read */
    load_numbers<HD>(e, job, {NULL, view.mean}, m.numbers);
    write_gains(view, job, m);
}

constexpr uint32_t RESIDENT_PAGES = 64; /* that a block goes through: against as many, making the records is little */

/* Encodes pages; blockIdx.x = (pages * Hk + head) * sub-vectors + sub-vector. */
static __global__ void __launch_bounds__(TRANSFORM_THREADS, 2)
    encode_resident_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    resident_memory &m = *(resident_memory *)memory;
    const uint32_t parts = e.heads.head_dim / RESIDENT_WIDTH, numbered = blockIdx.x % parts, kv_heads = e.heads.kv_heads;
    const uint32_t head = blockIdx.x / parts % kv_heads, first = blockIdx.x / parts / kv_heads * RESIDENT_PAGES;
    const int side = sides.first + (int)blockIdx.z;
    const size_t place = (size_t)(e.layer + blockIdx.y) * kv_heads + head;
    const struct centroid_view &view = ((const struct centroid_view *)e.learned[side])[place];
    const struct resident_part part = resident_part_of(view, numbered);
    make_records(view, part, e.heads.head_dim, m.records);
    __syncthreads();
    const uint32_t end = min(e.n, first + RESIDENT_PAGES);
    for (uint32_t item = first + threadIdx.x / 32; item < end; item += WARPS) {
        const struct page_job job = page_of_item(e, blockIdx.y, item, head, side);
        uint32_t code[2];
        search_resident(part, job.rows, e.token_stride, job.count, m, code);
        write_part(view.shape.bits, code, job.count, m.of[threadIdx.x / 32].codes,
                   job.page + numbered * PAGE_PQ_PART(view.shape.bits));
    }
}

template <int HD>
static __global__ void __launch_bounds__(TRANSFORM_THREADS)
    decode_centroids_kernel(const __grid_constant__ struct encode e, struct encode_sides sides) {
    extern __shared__ __align__(16) uint8_t memory[];
    float(*const numbers)[NUMBERS_STRIDE] = (float(*)[NUMBERS_STRIDE])memory;
    const struct page_job job = job_of_block(e, sides);
    const struct centroid_view &view = ((const struct centroid_view *)e.learned[job.side])[job.place];
    const uint8_t *const codes = job.page + (view.normalized ? PAGE_TOKENS : 0);
    const uint32_t t = threadIdx.x % PAGE_TOKENS;
    const float gain = view.normalized ? gain_at(view.gain_scale, job.page[t]) : 1;
    for (uint32_t c = threadIdx.x / PAGE_TOKENS; c < HD; c += TOKEN_PARTS)
        numbers[c][t] = view.mean[c] + gain * centroid_at<HD>(view, codes, c, t);
    __syncthreads();
    change_frame<HD, false>(e, job, {}, numbers);
    store_numbers<HD>(e, job, numbers);
}

/* Launches the kernel of a width or, where the device has not the shared memory for it, that of any. */
template <int HD, int WIDTH>
static cudaError_t encode_rows_of(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    constexpr size_t bytes = sizeof(centroids_memory<HD, WIDTH>);
    if constexpr (bytes > sizeof(centroids_memory<HD, 0>))
        if (bytes > (size_t)device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))
            return encode_rows_of<HD, 0>(encode, sides, stream);
    return launch_shapes<HD>(encode_centroids_kernel<HD, WIDTH>, bytes, encode, sides, stream);
}

template <int WIDTH> static cudaError_t encode_width(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
#define LAUNCH(hd) encode_rows_of<hd, WIDTH>(encode, sides, stream)
    TRANSFORM_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}

/* Returns the width whose centroids tensor cores score; 0 where all are compared one by one. */
static uint32_t scored_width(struct centroid_shape shape) {
    const uint32_t width = shape.width;
    const bool scored = width >= 2 && width <= 32 && (width & (width - 1)) == 0 && 1u << shape.bits >= SCORE_GROUP;
    return scored ? width : 0;
}

/* Returns whether blocks keep a sub-vector's centroids: of rows that are encoded as they come, in pages without bytes behind the codes. */
static bool is_resident(const struct encode *encode, int side) {
    const struct centroid_shape shape = encode->centroid[side];
    const uint32_t k = 1u << shape.bits;
    return shape.width == RESIDENT_WIDTH && k >= RESIDENT_LEAST && k <= RESIDENT_MOST && encode->codec[side] == CODEC_PQ &&
           (side == CODEC_VALUES || !encode->heads.n_rot) && encode->heads.head_dim % 32 == 0 &&
           sizeof(resident_memory) <= (size_t)device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

static cudaError_t encode_resident(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    const uint32_t blocks = (encode->n + RESIDENT_PAGES - 1) / RESIDENT_PAGES, parts = encode->heads.head_dim / RESIDENT_WIDTH;
    const cudaError_t result = allow_shared(encode_resident_kernel, sizeof(resident_memory));
    if (result != cudaSuccess) return result;
    encode_resident_kernel<<<dim3(blocks * encode->heads.kv_heads * parts, encode->n_layers, (unsigned)sides.n), TRANSFORM_THREADS,
                             sizeof(resident_memory), stream>>>(*encode, sides);
    return cudaGetLastError();
}

cudaError_t encode_centroids(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    const uint32_t width = scored_width(encode->centroid[sides.first]);
    const bool resident = is_resident(encode, sides.first);
    if (sides.n == 2 && (scored_width(encode->centroid[CODEC_VALUES]) != width || is_resident(encode, CODEC_VALUES) != resident)) {
        const cudaError_t result = encode_centroids(encode, (struct encode_sides){CODEC_KEYS, 1}, stream);
        return result != cudaSuccess ? result : encode_centroids(encode, (struct encode_sides){CODEC_VALUES, 1}, stream);
    }
    if (resident) return encode_resident(encode, sides, stream);
    switch (width) {
    case 2: return encode_width<2>(encode, sides, stream);
    case 4: return encode_width<4>(encode, sides, stream);
    case 8: return encode_width<8>(encode, sides, stream);
    case 16: return encode_width<16>(encode, sides, stream);
    case 32: return encode_width<32>(encode, sides, stream);
    default: return encode_width<0>(encode, sides, stream);
    }
}

cudaError_t decode_centroids(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
#define LAUNCH(hd) launch_shapes<hd>(decode_centroids_kernel<hd>, hd * NUMBERS_STRIDE * sizeof(float), encode, sides, stream)
    TRANSFORM_HEAD_DIMS(encode->heads, LAUNCH)
#undef LAUNCH
}
