/* Chooses anchors and moves their rows. */
#include "backend/cuda/kv/anchor_rows.h"

#include "backend/cuda/select_largest.cuh"

#define CHOOSERS 512
#define UNITERS 256
#define MOVERS 64

static __host__ __device__ uint32_t most_rows(const struct anchor_view &a) { return a.capacity - a.first_exact; }
static __device__ uint32_t *tokens_of(const struct anchor_view &a, uint32_t head) { return a.tokens + (size_t)head * most_rows(a); }
static __device__ uint32_t *sides_of(const struct anchor_view &a, uint32_t head) { return a.sides + (size_t)head * most_rows(a); }
static __device__ device_half *row_of(const struct anchor_view &a, uint32_t head, int side, uint32_t row) {
    return a.rows + (((size_t)head * 2 + side) * a.capacity + a.first_exact + row) * a.head_dim;
}
static __device__ void copy_row(device_half *to, const device_half *from, uint32_t head_dim) {
    for (uint32_t c = threadIdx.x; c < head_dim; c += blockDim.x) to[c] = from[c];
}

/* ---- The choice */

/* Returns bits that order as scores do. Of one that is not positive, which rounding can make, and of NaN it returns 0. */
static __device__ uint32_t score_bits(float score) { return score > 0 ? __float_as_uint(score) : 0; }

static __global__ void __launch_bounds__(CHOOSERS) choose_kernel(struct anchor_choice c) {
    const float *scores = c.scores + (size_t)blockIdx.x * c.n;
    uint32_t *marks = (uint32_t *)(c.marks + (size_t)blockIdx.x * ((c.n + PAGE_TOKENS - 1) / PAGE_TOKENS));
    select_largest<CHOOSERS>([&](uint32_t i) { return score_bits(scores[i]); }, c.n, c.keep,
                             [&](uint32_t, uint32_t i) { atomicOr(&marks[i / 32], 1u << i % 32); });
}

cudaError_t choose_anchors(const struct anchor_choice *choice, cudaStream_t stream) {
    choose_kernel<<<2 * choice->kv_heads, CHOOSERS, 0, stream>>>(*choice);
    return cudaGetLastError();
}

/* ---- The union */

static __device__ uint32_t count_bits(uint64_t x) { return __popc((uint32_t)x) + __popc((uint32_t)(x >> 32)); }

/* Returns the sum of `own` over the threads before this one, and over all. */
static __device__ uint2 sums_before(uint32_t own) {
    __shared__ uint32_t sums[UNITERS];
    __syncthreads();
    sums[threadIdx.x] = own;
    __syncthreads();
    for (uint32_t apart = 1; apart < UNITERS; apart *= 2) {
        uint32_t more = threadIdx.x >= apart ? sums[threadIdx.x - apart] : 0;
        __syncthreads();
        sums[threadIdx.x] += more;
        __syncthreads();
    }
    return make_uint2(sums[threadIdx.x] - own, sums[UNITERS - 1]);
}

/* Lists the anchors of the step's pages [begin, end) in their order, behind n others, from the last place on where they are `elsewhere`. Returns
 * how many there are then. */
static __device__ uint32_t list_anchors(const struct anchor_union &u, uint32_t head, uint32_t begin, uint32_t end, uint32_t n,
                                        bool elsewhere) {
    const uint32_t last = most_rows(u.to) - 1;
    uint32_t *tokens = tokens_of(u.to, head), *sides = sides_of(u.to, head);
    const uint64_t *keys = u.marks + (size_t)head * 2 * u.pages, *values = keys + u.pages;
    for (uint32_t first = begin; first < end; first += UNITERS) {
        const uint32_t i = first + threadIdx.x, page = i < end && u.order ? u.order[i] : i;
        const uint64_t key = i < end ? keys[page] : 0, value = i < end ? values[page] : 0;
        const uint2 before = sums_before(count_bits(key | value));
        if (i < end && !elsewhere) u.to.pages[(size_t)head * u.to.n_pages + u.first_page + i] = key | value;
        uint32_t at = n + before.x;
        for (uint32_t t = 0; t < PAGE_TOKENS && (key | value) >> t; t++) {
            const uint32_t of = (uint32_t)(key >> t & 1) | (uint32_t)(value >> t & 1) << 1, place = elsewhere ? last - at : at;
            if (!of) continue;
            tokens[place] = u.first + page * PAGE_TOKENS + t;
            sides[place] = of;
            at++;
        }
        n += before.y;
    }
    return n;
}

/* Unites the anchors of a KV head. */
static __global__ void __launch_bounds__(UNITERS) unite_kernel(struct anchor_union u) {
    const uint32_t head = blockIdx.x, old = u.from.counts ? u.from.counts[head] : 0;
    uint32_t *tokens = tokens_of(u.to, head), *sides = sides_of(u.to, head);
    uint64_t *pages = u.to.pages + (size_t)head * u.to.n_pages;
    for (uint32_t i = threadIdx.x; i < old; i += UNITERS) {
        tokens[i] = tokens_of(u.from, head)[i];
        sides[i] = sides_of(u.from, head)[i];
    }
    for (uint32_t i = threadIdx.x; old && i < u.from.n_pages && i < u.first_page; i += UNITERS)
        pages[i] = u.from.pages[(size_t)head * u.from.n_pages + i];
    const uint32_t n = list_anchors(u, head, 0, u.here, old, false), others = list_anchors(u, head, u.here, u.pages, 0, true);
    if (threadIdx.x) return;
    u.to.counts[head] = n;
    u.to.elsewhere[head] = others;
}

static __global__ void keep_kernel(struct anchor_union u) {
    const uint32_t i = blockIdx.x, head = blockIdx.y, hd = u.to.head_dim;
    if (i >= u.to.counts[head] && i < most_rows(u.to) - u.to.elsewhere[head]) return;
    const bool old = u.from.counts && i < u.from.counts[head];
    const size_t from = old ? 0 : ((size_t)(tokens_of(u.to, head)[i] - u.first) * u.to.kv_heads + head) * hd;
    for (int side = 0; side < 2; side++)
        if (old)
            copy_row(row_of(u.to, head, side, i), row_of(u.from, head, side, i), hd);
        else if (sides_of(u.to, head)[i] >> side & 1)
            copy_row(row_of(u.to, head, side, i), u.rows[side] + from, hd);
}

cudaError_t unite_anchors(const struct anchor_union *anchors, cudaStream_t stream) {
    unite_kernel<<<anchors->to.kv_heads, UNITERS, 0, stream>>>(*anchors);
    keep_kernel<<<dim3(most_rows(anchors->to), anchors->to.kv_heads), MOVERS, 0, stream>>>(*anchors);
    return cudaGetLastError();
}

/* ---- Rows of other sides, and of prompts */

struct side_rows {
    device_half *of[2];
};

static __global__ void fill_kernel(struct anchor_view a, struct side_rows decoded, uint32_t first, uint32_t count) {
    const uint32_t i = blockIdx.x, head = blockIdx.y;
    if (i >= a.counts[head]) return;
    const uint32_t t = tokens_of(a, head)[i] - first; /* of a token before `first` more than count */
    if (t >= count) return;
    for (int side = 0; side < 2; side++)
        if (!(sides_of(a, head)[i] >> side & 1))
            copy_row(row_of(a, head, side, i), decoded.of[side] + ((size_t)t * a.kv_heads + head) * a.head_dim, a.head_dim);
}

cudaError_t fill_anchors(const struct anchor_view *anchors, const device_half *const decoded[2], uint32_t first, uint32_t count,
                         cudaStream_t stream) {
    const struct side_rows rows = {{(device_half *)decoded[0], (device_half *)decoded[1]}};
    fill_kernel<<<dim3(most_rows(*anchors), anchors->kv_heads), MOVERS, 0, stream>>>(*anchors, rows, first, count);
    return cudaGetLastError();
}

/* Returns how many of the first n numbers are less than `end`, where number(i) does not fall. */
template <class NUMBER> static __device__ uint32_t count_before(NUMBER number, uint32_t n, uint32_t end) {
    uint32_t low = 0, high = n;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (number(middle) < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static __device__ uint32_t row_of_token(const struct row_places &places, uint32_t token) {
    if (!places.spans) return token;
    const struct row_span span =
        places.spans[count_before([&](uint32_t i) { return places.spans[i].token; }, places.n, token + 1) - 1];
    return span.row + token - span.token;
}

static __global__ void spread_kernel(struct anchor_view a, struct side_rows rows, struct row_places places) {
    const uint32_t i = blockIdx.x, head = blockIdx.y;
    if (i >= a.counts[head]) return;
    const size_t to = ((size_t)row_of_token(places, tokens_of(a, head)[i]) * a.kv_heads + head) * a.head_dim;
    for (int side = 0; side < 2; side++) copy_row(rows.of[side] + to, row_of(a, head, side, i), a.head_dim);
}

cudaError_t spread_anchors(const struct anchor_view *anchors, device_half *const rows[2], const struct row_places *places,
                           cudaStream_t stream) {
    const struct side_rows to = {{rows[0], rows[1]}};
    spread_kernel<<<dim3(most_rows(*anchors), anchors->kv_heads), MOVERS, 0, stream>>>(*anchors, to, *places);
    return cudaGetLastError();
}

static __global__ void forget_kernel(struct anchor_view a, uint32_t end, uint32_t pages) {
    const uint32_t head = blockIdx.x, *tokens = tokens_of(a, head), last = most_rows(a) - 1;
    for (uint32_t i = pages + threadIdx.x; i < a.n_pages; i += blockDim.x) a.pages[(size_t)head * a.n_pages + i] = 0;
    if (threadIdx.x) return;
    a.counts[head] = count_before([&](uint32_t i) { return tokens[i]; }, a.counts[head], end);
    a.elsewhere[head] = count_before([&](uint32_t i) { return tokens[last - i]; }, a.elsewhere[head], end);
}

cudaError_t forget_anchors(const struct anchor_view *anchors, uint32_t end, uint32_t pages, cudaStream_t stream) {
    forget_kernel<<<anchors->kv_heads, MOVERS, 0, stream>>>(*anchors, end, pages);
    return cudaGetLastError();
}
