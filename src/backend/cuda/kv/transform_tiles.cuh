/* Has what writing and reading pages of the codec transform by tiles share, for heads of up to 128 channels, with rows in registers: a warp has
 * 16 tokens of a page, and four lanes have a token. Where both factors of a product come from shared memory, as in encode_transform.cu and
 * decode_transform.cu, its reads and the instructions around them take most of the time; here the numbers of a product become a factor where
 * they are, and warps wait for each other only when the matrices change.
 *
 * A CTA has a multiprocessor to itself. Matrices lie in its shared memory, as halves and what these leave, and serve all pages of a layer, KV
 * head and side that it has. */
#ifndef TERSE_BACKEND_CUDA_KV_TRANSFORM_TILES_CUH
#define TERSE_BACKEND_CUDA_KV_TRANSFORM_TILES_CUH

#include "backend/cuda/kv/hopper.cuh"
#include "backend/cuda/kv/transform_page.cuh"
#include "backend/cuda/launch.cuh"

#define TILE_TOKENS 16
#define PAGE_TILES (PAGE_TOKENS / TILE_TOKENS)
#define PAGES_TOGETHER 3 /* as many as there are registers for */
#define TILE_WARPS (PAGES_TOGETHER * PAGE_TILES)
#define TILE_THREADS (32 * TILE_WARPS)

/* A warp's numbers, by channel or component. Of each 16, lane l has those from 4 (l % 4) on, of tokens l / 4 and l / 4 + 16 from the tile's
 * first on, since codes of tokens 16 apart share bytes. */
template <int HD> using tile_numbers = float[2][HD / 16][4];

/* A tile_matrix is a product's second factor, as halves and what these leave: of each row chunks of 8 halves. Either rows are the product's
 * columns, or they are summed over. It lies as products of warpgroups read it (hopper.cuh), in panels of 64 halves a row, which ldmatrix reads
 * without conflicts, too. Of each 16 rows, and of each 16 halves of a row, the order is that of order_in_block. */
template <int HD> struct tile_matrix { uint4 halves[(HD + 63) / 64][HD][8], rests[(HD + 63) / 64][HD][8]; };

/* Returns which of a block's 16 channels or components is the i-th, so that a product's columns are numbered as tile_numbers has them: mma
 * gives a lane two neighbours of each 8, of which tile_numbers has four. */
static __device__ inline uint32_t order_in_block(uint32_t i) { return i % 8 / 2 * 4 + i / 8 * 2 + i % 2; }

/* Returns where in a row of a panel a chunk lies: the k-th block's h-th. */
static __device__ inline uint32_t chunk_place(uint32_t row, uint32_t k, uint32_t h) { return (k % 4 * 2 + h) ^ row % 8; }

/* ---- Matrices in shared memory */

/* Puts the k-th block of a row into a panel; `words` has pairs of its 16 numbers. */
static __device__ inline void put_block(const uint32_t (&words)[8], uint4 (*rows)[8], uint32_t row, uint32_t k) {
#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
        rows[row][chunk_place(row, k, h)] = make_uint4(words[h], words[2 + h], words[4 + h], words[6 + h]);
}

/* Puts the k-th block of a row of a basis, 16 integers, into a matrix. */
template <int HD>
static __device__ inline void put_integers(const uint4 (&integers)[2], struct tile_matrix<HD> &matrix, uint32_t row, uint32_t k) {
    const uint32_t words[8] = {integers[0].x, integers[0].y, integers[0].z, integers[0].w,
                               integers[1].x, integers[1].y, integers[1].z, integers[1].w};
    uint32_t halves[8], rests[8];
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
        const uint2 own = split_integers(words[j]);
        halves[j] = own.x, rests[j] = own.y;
    }
    put_block(halves, matrix.halves[k / 4], row, k);
    put_block(rests, matrix.rests[k / 4], row, k);
}

/* All threads may read what was staged once this returns. */
static __device__ inline void end_staging() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    fence_shared();
#endif
    __syncthreads();
}

#define STAGED_TOGETHER 3 /* blocks of a row that a thread asks for before it has one */

/* ---- Rows of a tile */

/* A tile is what a warp writes or reads of a page. */
struct tile {
    struct page_job job;
    uint32_t index, token[2]; /* which of the page's, the lane's tokens */
};

static __device__ inline uint32_t lane_of_warp() { return threadIdx.x % 32; }

/* Returns the lane's first channel or component of the k-th 16. */
static __device__ inline uint32_t first_of(uint32_t k) { return 16 * k + lane_of_warp() % 4 * 4; }

/* Returns the sum over the lanes of a token. */
static __device__ inline float row_sum(float x) {
    x = x + __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

struct four_numbers {
    float of[4];
};
static __device__ inline struct four_numbers four_at(const float *from) {
    const float4 x = *(const float4 *)from;
    return {x.x, x.y, x.z, x.w};
}
static __device__ inline struct four_numbers four_of_halves(uint2 halves) {
    struct four_numbers x;
    spread_halves(halves.x, &x.of[0], &x.of[1]);
    spread_halves(halves.y, &x.of[2], &x.of[3]);
    return x;
}

/* A rotation says which channels are rotated between positions and their page's run in pairs. */
enum rotation {
    ROTATE_NOTHING, /* values */
    ROTATE_HALVES,  /* channels i and i + HD / 2 */
    ROTATE_SOME,    /* channels i and i + n_rot / 2 of the first n_rot */
    ROTATE_NEIGHBOURS
};

/* Loads four pairs' cosines and sines, or only the first two. */
template <bool FOUR> static __device__ void four_angles(const float2 *from, float2 (&angles)[4]) {
    const float4 low = ((const float4 *)from)[0], high = FOUR ? ((const float4 *)from)[1] : low;
    angles[0] = make_float2(low.x, low.y), angles[1] = make_float2(low.z, low.w);
    angles[2] = make_float2(high.x, high.y), angles[3] = make_float2(high.z, high.w);
}

/* ---- Products */

/* Adds the product of a tile's numbers, as halves and rests of 16 rows and 16 columns, with a matrix to `sums`. With OVER_ROWS the matrix's
 * rows are summed over. All warps of a page call this together. Which products are added to a sum, and in which order, is the same on all
 * devices; with OVER_ROWS it is also that of decode_transform.cu. */
template <bool OVER_ROWS, int HD>
static __device__ __forceinline__ void add_product(const struct tile_matrix<HD> &matrix, const uint32_t (&halves)[HD / 16][4],
                                                   const uint32_t (&rests)[HD / 16][4], float (&sums)[HD / 2]) {
    constexpr uint32_t blocks = HD / 16;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr uint32_t panel = HD * 128; /* bytes */
    constexpr enum side how = OVER_ROWS ? SUMMED : BY_ROWS;
    const auto side_at = [&](const void *at) {
        return OVER_ROWS ? side_summed(shared_address(at), panel) : side_by_rows(shared_address(at));
    };
    const uint64_t first = side_at(matrix.halves), first_rests = side_at(matrix.rests);
    hold(sums);
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < blocks; k++) {
        const uint32_t from = (OVER_ROWS ? k * 16 * 128 : k / 4 * panel + k % 4 * 32) / 16; /* sides count in 16 bytes */
        const uint64_t b = first + from, b_rests = first_rests + from;
        multiply_registers<how>(sums, OVER_ROWS ? halves[k] : rests[k], OVER_ROWS ? b_rests : b);
        multiply_registers<how>(sums, OVER_ROWS ? rests[k] : halves[k], OVER_ROWS ? b : b_rests);
        multiply_registers<how>(sums, halves[k], b);
    }
    products_commit();
    products_wait<0>();
    hold(sums);
#else
    const uint32_t lane = lane_of_warp();
#pragma unroll
    for (uint32_t k = 0; k < blocks; k++) {
#pragma unroll
        for (uint32_t n = 0; n < blocks; n++) {
            /* Where the row lies that ldmatrix takes from this lane: of its four matrices the first two give the first columns. */
            const uint32_t row = OVER_ROWS ? 16 * k + lane % 16 : 16 * n + lane / 16 * 8 + lane % 8, column = OVER_ROWS ? n : k,
                           place = chunk_place(row, column, OVER_ROWS ? lane / 16 : lane / 8 % 2);
            const auto load = [&](uint32_t(&r)[4], const uint4 *from) {
                if (OVER_ROWS)
                    load_matrices_transposed(r, shared_address(from));
                else
                    load_matrices(r, shared_address(from));
            };
            uint32_t b[4], b_rests[4];
            load(b, &matrix.halves[column / 4][row][place]);
            load(b_rests, &matrix.rests[column / 4][row][place]);
            const auto each = [&](const uint32_t(&a)[4], const uint32_t(&of)[4]) {
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
                    mma(*(float(*)[4]) & sums[8 * n + 4 * i], a[0], a[1], a[2], a[3], of[2 * i], of[2 * i + 1]);
            };
            each(OVER_ROWS ? halves[k] : rests[k], OVER_ROWS ? b_rests : b);
            each(OVER_ROWS ? rests[k] : halves[k], OVER_ROWS ? b : b_rests);
            each(halves[k], b);
        }
    }
#endif
}

/* Multiplies a tile's numbers by a matrix, as add_product does. Tokens' products have to be multiplied by `unit`, which this changes. */
template <bool OVER_ROWS, int HD>
static __device__ void multiply_tile(const struct tile_matrix<HD> &matrix, tile_numbers<HD> &x, float (&unit)[2]) {
    constexpr uint32_t blocks = HD / 16;
    uint32_t halves[blocks][4], rests[blocks][4];
    float most[2] = {};
#pragma unroll
    for (uint32_t k = 0; k < blocks; k++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) most[i] = fmaxf(most[i], fabsf(x[i][k][j]));
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float factor = factor_of(most[i]);
        unit[i] = unit[i] * inverse_of(factor);
#pragma unroll
        for (uint32_t k = 0; k < blocks; k++) {
            const uint4 own = split_four(x[i][k][0] * factor, x[i][k][1] * factor, x[i][k][2] * factor, x[i][k][3] * factor);
            halves[k][i] = own.x, halves[k][2 + i] = own.y, rests[k][i] = own.z, rests[k][2 + i] = own.w;
        }
    }
    float sums[HD / 2] = {};
    add_product<OVER_ROWS, HD>(matrix, halves, rests, sums);
#pragma unroll
    for (uint32_t n = 0; n < blocks; n++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) x[i][n][j] = sums[8 * n + j / 2 * 4 + 2 * i + j % 2];
}

/* ---- Tiles of a launch */

/* Returns how many pages from an item's on, at most so many, are of the same transform. */
static __device__ inline uint32_t pages_alike(const struct encode_item *items, int side, uint32_t most) {
    uint32_t n = 1;
    while (n < most && items[n].rate.transforms[side] == items->rate.transforms[side]) n++;
    return n;
}

/* Calls stage(view) when pages of another view follow, and work(tile, view) for a warp's tile of each of the pages [blockIdx.x each, ...) of a
 * launch, in which pages of a layer, KV head and side follow one another. */
template <class Stage, class Work>
static __device__ void each_tile(const struct encode &e, struct encode_sides sides, uint32_t pages, uint32_t each, Stage stage,
                                 Work work) {
    const uint32_t end = min((blockIdx.x + 1) * each, pages), warp = threadIdx.x / 32, slot = warp / PAGE_TILES;
    const struct transform_view *staged = nullptr;
    for (uint32_t p = blockIdx.x * each, n; p < end; p += n) {
        const uint32_t item = p % e.n, place = p / e.n, layer = place / e.heads.kv_heads;
        const int side = sides.first + (int)(layer / e.n_layers);
        n = pages_alike(&e.items[item], side, min(min(PAGES_TOGETHER, end - p), e.n - item));
        struct tile tile = {
            rows_of_item(e, layer % e.n_layers, item + min(slot, n - 1), place % e.heads.kv_heads, side), warp % PAGE_TILES, {}};
        const struct transform_view *const view = &view_of(e, tile.job);
        if (view != staged) {
            __syncthreads();
            stage(*view);
            staged = view;
        }
        if (slot >= n) continue;
        tile.job.page = page_address(&tile.job.item->set, places_of(e, *tile.job.item) + tile.job.place, side);
        tile.token[0] = tile.index / 2 * 32 + tile.index % 2 * 8 + lane_of_warp() / 4;
        tile.token[1] = tile.token[0] + 16;
        work(tile, *view);
    }
}

/* A tiles_grid says how many pages a launch has, how many of them a CTA has, and how many CTAs there are. */
struct tiles_grid {
    uint32_t pages, each, blocks;
};
static inline struct tiles_grid tiles_grid_of(const struct encode *encode, struct encode_sides sides) {
    const uint32_t pages = encode->n * encode->heads.kv_heads * encode->n_layers * (uint32_t)sides.n,
                   most = (uint32_t)device_attribute(cudaDevAttrMultiProcessorCount), each = (pages + most - 1) / most;
    return {pages, each, (pages + each - 1) / each};
}

/* A tiles_kernel writes or reads the pages of a launch, `each` by a CTA. */
typedef void tiles_kernel(struct encode e, struct encode_sides sides, uint32_t pages, uint32_t each);

static inline cudaError_t launch_tiles(tiles_kernel *kernel, size_t shared_bytes, const struct encode *encode,
                                       struct encode_sides sides, cudaStream_t stream) {
    const cudaError_t result = allow_shared(kernel, shared_bytes);
    const struct tiles_grid grid = tiles_grid_of(encode, sides);
    if (result != cudaSuccess) return result;
    kernel<<<grid.blocks, TILE_THREADS, shared_bytes, stream>>>(*encode, sides, grid.pages, grid.each);
    return cudaGetLastError();
}

#endif
