/* Moves rows. A block takes a token and a warp of it a head; none of this takes a thousandth of a step. */
#include "backend/cuda/kv/append.h"

#include "backend/cuda/kv/append_decode.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

#define HEADS_OF_BLOCK 4 /* warps */

/* ---- Decoding */

static __global__ void append_decode_kernel(struct append_decode a) {
    const struct query_row_view query = a.rows[blockIdx.x];
    const struct sequence_view &s = a.sequences[query.sequence];
    let_next_kernel_begin();
    wait_for_kernels();
    append_head(a, query, s, blockIdx.x, blockIdx.y * HEADS_OF_BLOCK + threadIdx.y);
}

static dim3 block_of_heads(void) { return dim3(WARP, HEADS_OF_BLOCK); }
static dim3 grid_of(size_t tokens, uint32_t heads) { return dim3((unsigned)tokens, (heads + HEADS_OF_BLOCK - 1) / HEADS_OF_BLOCK); }

cudaError_t append_decode(const struct append_decode *append, cudaStream_t stream) {
    uint32_t heads = (append->q ? append->heads.query_heads : 0) + (append->k ? 2 * append->heads.kv_heads : 0);
    return launch_early(append_decode_kernel, grid_of(append->n_rows, heads), block_of_heads(), 0, stream, *append);
}

/* ---- Prompts */

static __global__ void rotate_rows_kernel(struct rotary_view rotary, uint32_t hd, uint32_t heads, float *q, uint32_t position) {
    uint32_t head = blockIdx.y * HEADS_OF_BLOCK + threadIdx.y;
    if (head >= heads) return;
    float *row = q + ((size_t)blockIdx.x * heads + head) * hd;
    rotate_row(rotary, hd, position + blockIdx.x, row, [&](uint32_t c, float x) { row[c] = x; });
}

cudaError_t rotate_rows(const struct head_view *heads, const struct rotary_view *rotary, uint32_t n_heads, float *q, size_t count,
                        uint64_t position, cudaStream_t stream) {
    if (!rotary->n_rot || !count) return cudaSuccess;
    rotate_rows_kernel<<<grid_of(count, n_heads), block_of_heads(), 0, stream>>>(*rotary, heads->head_dim, n_heads, q,
                                                                                 (uint32_t)position);
    return cudaGetLastError();
}

static __global__ void append_rows_kernel(struct layer_rows r, const float *k, const float *v, uint32_t position, size_t row) {
    uint32_t head = blockIdx.y * HEADS_OF_BLOCK + threadIdx.y, hd = r.heads.head_dim, kv_heads = r.heads.kv_heads;
    if (head >= 2 * kv_heads) return;
    int side = head >= kv_heads;
    head -= side ? kv_heads : 0;
    const float *from = (side ? v : k) + ((size_t)blockIdx.x * kv_heads + head) * hd;
    __half *to = (side ? r.v : r.k) + ((row + blockIdx.x) * kv_heads + head) * hd;
    uint32_t token = position + blockIdx.x;
    if (side)
        for (uint32_t c = threadIdx.x; c < hd; c += WARP) to[c] = __float2half_rn(from[c]);
    else
        rotate_row(r.rotary, hd, token, from, [&](uint32_t c, float x) { to[c] = __float2half_rn(x); });
    if (token >= r.sequence->first_exact) return;
    if (!side) keep_unrotated(*r.sequence, r.heads, r.layer, head, token, from);
    __syncwarp();
    __half *exact = place_of(*r.sequence, r.heads, r.layer, head, side, token);
    for (uint32_t c = threadIdx.x; c < hd; c += WARP) exact[c] = to[c];
}

cudaError_t append_rows(const struct layer_rows *rows, const float *k, const float *v, size_t count, uint64_t position, size_t row,
                        cudaStream_t stream) {
    if (!count) return cudaSuccess;
    append_rows_kernel<<<grid_of(count, 2 * rows->heads.kv_heads), block_of_heads(), 0, stream>>>(*rows, k, v, (uint32_t)position,
                                                                                                  row);
    return cudaGetLastError();
}

/* ---- Rows that are halves already */

/* Rotates row[hd] further, without the magnitude, which the row has already. */
static __device__ void advance_row(const struct rotary_view &r, uint32_t position, const __half *from, __half *to, uint32_t hd) {
    for (uint32_t i = threadIdx.x; i < r.n_rot / 2; i += WARP) {
        uint2 at = pair_at(r, i);
        float2 angle = angle_at(r, position, i);
        float2 x = rotate(make_float2(__half2float(from[at.x]), __half2float(from[at.y])), angle);
        to[at.x] = __float2half_rn(x.x);
        to[at.y] = __float2half_rn(x.y);
    }
    for (uint32_t c = r.n_rot + threadIdx.x; c < hd; c += WARP) to[c] = from[c];
}

static __global__ void rows_from_exact_kernel(struct layer_rows r, uint32_t evicted) {
    uint32_t head = blockIdx.y * HEADS_OF_BLOCK + threadIdx.y, hd = r.heads.head_dim, kv_heads = r.heads.kv_heads;
    if (head >= 2 * kv_heads) return;
    int side = head >= kv_heads;
    head -= side ? kv_heads : 0;
    const __half *from = exact_rows_at(r.sequence, &r.heads, r.layer, head, side) + (size_t)blockIdx.x * hd;
    __half *to = (side ? r.v : r.k) + ((size_t)blockIdx.x * kv_heads + head) * hd;
    if (!side && evicted)
        advance_row(r.rotary, evicted, from, to, hd);
    else
        for (uint32_t c = threadIdx.x; c < hd; c += WARP) to[c] = from[c];
}

cudaError_t rows_from_exact(const struct layer_rows *rows, size_t n, uint64_t evicted, cudaStream_t stream) {
    if (!n) return cudaSuccess;
    rows_from_exact_kernel<<<grid_of(n, 2 * rows->heads.kv_heads), block_of_heads(), 0, stream>>>(*rows, (uint32_t)evicted);
    return cudaGetLastError();
}

static __global__ void window_kernel(struct layer_rows r, uint32_t first, int64_t row, bool back) {
    uint32_t head = blockIdx.y * HEADS_OF_BLOCK + threadIdx.y, hd = r.heads.head_dim, kv_heads = r.heads.kv_heads;
    if (head >= 2 * kv_heads) return;
    int side = head >= kv_heads;
    head -= side ? kv_heads : 0;
    uint32_t slot = window_row(r.sequence, first + blockIdx.x);
    __half *window = window_rows_at(r.sequence, &r.heads, r.layer, head, side) + (size_t)slot * hd;
    __half *rows = (side ? r.v : r.k) + ((row + (int64_t)blockIdx.x) * (int64_t)kv_heads + (int64_t)head) * (int64_t)hd;
    for (uint32_t c = threadIdx.x; c < hd; c += WARP)
        if (back)
            window[c] = rows[c];
        else
            rows[c] = window[c];
}

static cudaError_t move_window(const struct layer_rows *rows, uint64_t first, size_t count, int64_t row, bool back,
                               cudaStream_t stream) {
    if (!count) return cudaSuccess;
    window_kernel<<<grid_of(count, 2 * rows->heads.kv_heads), block_of_heads(), 0, stream>>>(*rows, (uint32_t)first, row, back);
    return cudaGetLastError();
}

cudaError_t rows_from_window(const struct layer_rows *rows, uint64_t first, size_t count, int64_t row, cudaStream_t stream) {
    return move_window(rows, first, count, row, false, stream);
}

cudaError_t rows_to_window(const struct layer_rows *rows, uint64_t first, size_t count, int64_t row, cudaStream_t stream) {
    return move_window(rows, first, count, row, true, stream);
}

/* ---- Random rows */

/* Returns random bits of a place, by splitmix64. */
static __device__ uint64_t random_bits(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* Writes pairs of normally distributed numbers by the Box-Muller transform. */
static __global__ void random_rows_kernel(float2 *numbers, size_t pairs, uint32_t hd, float octaves, uint64_t seed) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs) return;
    uint64_t bits = random_bits(seed * 0xD1342543DE82EF95ull + i);
    float u = ((uint32_t)(bits >> 40) + 1) * 0x1p-24f, turn = (uint32_t)(bits & 0xFFFFFF) * 0x1p-23f, s, c;
    float radius = sqrtf(-2 * logf(u));
    sincospif(turn, &s, &c);
    radius *= exp2f(-octaves * (float)(2 * i % hd) / (float)hd);
    numbers[i] = make_float2(radius * c, radius * s);
}

cudaError_t random_rows(float *numbers, size_t n, uint32_t hd, float octaves, uint64_t seed, cudaStream_t stream) {
    random_rows_kernel<<<(unsigned)((n / 2 + 255) / 256), 256, 0, stream>>>((float2 *)numbers, n / 2, hd, octaves, seed);
    return cudaGetLastError();
}
