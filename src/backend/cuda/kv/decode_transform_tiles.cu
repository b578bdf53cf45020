/* Reads pages of the codec transform back as decode_transform.cu does, bit for bit, by tiles (transform_tiles.cuh): a warp has 16 tokens from
 * the codes that it loads to the rows that it writes. */
#include "backend/cuda/kv/decode_transform.cuh"
#include "backend/cuda/kv/transform_tiles.cuh"

/* A quad_planes says where a quad's codes lie: nibble, then from bits 8 and 16 on shift and mask of a plane's bits, whose scale is of its
 * levels; 0 where there is none. */
struct quad_planes {
    uint32_t planes[2];
    float scales[2];
};

template <int HD> struct tile_memory {
    struct tile_matrix<HD> basis; /* begins at a multiple of 1024 */
    /* By channel, and by component: */
    alignas(16) float mean[HD], pre_rope_mean[HD], step[HD];
    struct quad_planes quads[HD / TRANSFORM_QUAD];
    uint32_t nibbles[TILE_WARPS][HD / 2][8]; /* of a tile: words of 8 tokens and of those 16 behind them */
};

/* ---- What a CTA has in shared memory for pages of a view */

template <int HD> static __device__ void stage_basis(const struct transform_view &view, struct tile_memory<HD> &m) {
    constexpr uint32_t n = HD * (HD / 16);
#pragma unroll 1
    for (uint32_t first = threadIdx.x; first < n; first += STAGED_TOGETHER * TILE_THREADS) {
        uint4 basis[STAGED_TOGETHER][2];
#pragma unroll
        for (uint32_t i = 0; i < STAGED_TOGETHER; i++) {
            const uint32_t at = min(first + i * TILE_THREADS, n - 1), row = at % HD / 16 * 16 + order_in_block(at % 16);
            const uint4 *const from = (const uint4 *)(view.basis + row * HD + 16 * (at / HD));
            basis[i][0] = from[0], basis[i][1] = from[1];
        }
#pragma unroll
        for (uint32_t i = 0; i < STAGED_TOGETHER; i++) {
            const uint32_t at = first + i * TILE_THREADS;
            if (at < n) put_integers<HD>(basis[i], m.basis, at % HD, at / HD);
        }
    }
}

/* Asks for all that does not wait for something else before it uses any of it. */
static __device__ inline struct quad_planes planes_of_quad(const struct transform_view &view, uint32_t quad) {
    const struct transform_quad own = view.quad[quad];
    const struct transform_plane planes[2] = {view.layout.plane[own.plane[0]], view.layout.plane[own.plane[1]]};
    const uint32_t n = quad < view.layout.quads ? own.planes : 0;
    struct quad_planes found = {};
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        if (k >= n) continue;
        found.planes[k] = planes[k].nibble | (uint32_t)planes[k].shift << 8 | ((1u << planes[k].bits) - 1) << 16;
        found.scales[k] = planes[k].scale;
    }
    return found;
}

/* All threads call this, while none reads what was staged before. */
template <int HD> static __device__ void stage(const struct transform_view &view, struct tile_memory<HD> &m) {
    stage_basis(view, m);
    for (uint32_t c = threadIdx.x; c < HD; c += TILE_THREADS) {
        const float mean = view.mean[c], pre_rope_mean = view.pre_rope_mean[c], step = view.step[c];
        m.mean[c] = mean, m.pre_rope_mean[c] = pre_rope_mean, m.step[c] = step;
    }
    if (threadIdx.x < HD / TRANSFORM_QUAD) m.quads[threadIdx.x] = planes_of_quad(view, threadIdx.x);
    end_staging();
}

/* ---- Components */

#define WORDS_TOGETHER 8 /* of nibbles that a lane asks for before it has one */

static __device__ inline void load_nibbles(const struct tile &tile, uint32_t n, uint32_t (*nibbles)[8]) {
    const uint32_t lane = lane_of_warp();
    const uint32_t *const from = (const uint32_t *)(tile.job.page + PAGE_TOKENS) + 8 * tile.index + lane % 8;
    __syncwarp(); /* the nibbles of the tile before are no longer read */
#pragma unroll 1
    for (uint32_t first = lane / 8; first - lane / 8 < n; first += 4 * WORDS_TOGETHER) {
        uint32_t words[WORDS_TOGETHER];
#pragma unroll
        for (uint32_t i = 0; i < WORDS_TOGETHER; i++) words[i] = from[min(first + 4 * i, n - 1) * (PAGE_TRANSFORM_NIBBLE / 4)];
#pragma unroll
        for (uint32_t i = 0; i < WORDS_TOGETHER; i++) {
            const uint32_t word = nibble_word(tile.job.side, words[i]); /* which undoes what it does */
            if (first + 4 * i < n) nibbles[first + 4 * i][lane % 8] = word;
        }
    }
    __syncwarp();
}

/* Returns the integer levels of a quad of a plane: of the lane's i-th token, whose bits are in a nibble's word. */
static __device__ inline struct four_numbers plane_levels(uint32_t plane, uint32_t word, uint32_t i) {
    const uint32_t most = plane >> 16, codes = word >> ((plane >> 8 & 0xff) + 4 * i) & most * 0x01010101u;
    struct four_numbers levels;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) /* 2^23 and a byte are a float */
        levels.of[j] = fmaf(2, __uint_as_float(permute(codes, 0x4b000000, 0x7440 | j)) - 0x1p23f, -(float)most);
    return levels;
}

/* Finds the components of the lane's tokens in units of their rows of the basis. */
template <int HD>
static __device__ void find_components(const struct tile &tile, const struct transform_view &view, const struct tile_memory<HD> &m,
                                       const float (&gain)[2], tile_numbers<HD> &x) {
    const uint32_t(*const nibbles)[8] = m.nibbles[threadIdx.x / 32], own = lane_of_warp() / 4;
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++) {
        const uint32_t c = first_of(k);
        const struct quad_planes quad = m.quads[c / TRANSFORM_QUAD];
        const struct four_numbers step = four_at(&m.step[c]);
        const uint32_t word = nibbles[quad.planes[0] & 0xff][own], finer = nibbles[quad.planes[1] & 0xff][own];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const struct four_numbers first = plane_levels(quad.planes[0], word, i);
            float levels[4];
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) levels[j] = quad.scales[0] * first.of[j];
            if (quad.planes[1]) {
                const struct four_numbers second = plane_levels(quad.planes[1], finer, i);
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) levels[j] = levels[j] + quad.scales[1] * second.of[j];
            }
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) x[i][k][j] = levels[j] * (gain[i] * step.of[j]);
        }
    }
}

/* ---- Rows */

/* Adds a pair's mean before rotation, which is rotated to the token's offset, and rotates it from its run (change_frame of
 * transform_page.cuh). */
static __device__ inline void rotate_pair(float &a, float &b, float2 run, float2 mean, float2 offset) {
    const float2 shift = make_float2(mean.x * offset.x - mean.y * offset.y, mean.x * offset.y + mean.y * offset.x),
                 own = rotate_forth(make_float2(a + shift.x, b + shift.y), run);
    a = own.x, b = own.y;
}

/* Rotates a token's row, to which its mean was added. */
template <enum rotation ROTATION, int HD>
static __device__ void rotate_row(const struct encode &e, const struct page_job &job, uint32_t t, const struct tile_memory<HD> &m,
                                  float (&x)[HD / 16][4]) {
    constexpr bool neighbours = ROTATION == ROTATE_NEIGHBOURS;
    constexpr uint32_t blocks = HD / 16, parts = neighbours ? blocks : blocks / 2;
    const uint32_t first = job.item->set.first, half = e.heads.n_rot / 2;
    const float2 *const runs = run_angles_from(e, first, 0), *const offsets = (const float2 *)e.pre_rope.offsets +
                                                                              (size_t)(first % ROPE_RUN_TOKENS + t) * half;
#pragma unroll
    for (uint32_t k = 0; k < parts; k++) {
        const uint32_t c = first_of(k), pair = neighbours ? c / 2 : c;
        if (neighbours && c >= 2 * half) continue;
        const struct four_numbers mean = four_at(&m.pre_rope_mean[c]),
                                  others = neighbours ? mean : four_at(&m.pre_rope_mean[c + HD / 2]);
        float2 run[4], offset[4];
        four_angles<!neighbours>(runs + pair, run);
        four_angles<!neighbours>(offsets + pair, offset);
#pragma unroll
        for (uint32_t j = 0; j < (neighbours ? 2 : 4); j++) {
            const float2 own =
                pair + j >= e.pre_rope.pairs ? make_float2(0, 0) : offset[j]; /* of pairs behind, which have no mean */
            if (neighbours)
                rotate_pair(x[k][2 * j], x[k][2 * j + 1], run[j], make_float2(mean.of[2 * j], mean.of[2 * j + 1]), own);
            else
                rotate_pair(x[k][j], x[k + parts][j], run[j], make_float2(mean.of[j], others.of[j]), own);
        }
    }
}

/* Adds means to a tile's numbers, rotates keys to their positions, and stores rows. */
template <enum rotation ROTATION, int HD>
static __device__ void store_tile(const struct encode &e, const struct tile &tile, const struct tile_memory<HD> &m,
                                  const bool (&no_mean)[2], tile_numbers<HD> &x) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
        for (uint32_t k = 0; k < HD / 16; k++) {
            const struct four_numbers mean = four_at(&m.mean[first_of(k)]);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) x[i][k][j] = x[i][k][j] + (no_mean[i] ? 0 : mean.of[j]);
        }
        if (ROTATION != ROTATE_NOTHING) rotate_row<ROTATION>(e, tile.job, tile.token[i], m, x[i]);
        if (tile.token[i] >= tile.job.count) continue;
        __half *const row = tile.job.rows + tile.token[i] * e.token_stride;
#pragma unroll
        for (uint32_t k = 0; k < HD / 16; k++)
            *(uint2 *)(row + first_of(k)) = make_uint2(two_halves(x[i][k][0], x[i][k][1]), two_halves(x[i][k][2], x[i][k][3]));
    }
}

/* ---- Tiles and pages */

template <int HD>
static __device__ void read_tile(const struct encode &e, const struct tile &tile, const struct transform_view &view,
                                 struct tile_memory<HD> &m) {
    tile_numbers<HD> x;
    float gain[2], unit[2] = {1, 1};
    bool no_mean[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint8_t code = tile.job.page[tile.token[i]];
        no_mean[i] = code < TRANSFORM_NO_MEAN_GAINS;
        gain[i] = no_mean[i] ? TRANSFORM_NO_MEAN_GAIN(view.gain, code) : fmaf(view.gain_step, (float)code, view.gain_zero);
    }
    load_nibbles(tile, view.layout.nibbles, m.nibbles[threadIdx.x / 32]);
    find_components(tile, view, m, gain, x);
    multiply_tile<true, HD>(m.basis, x, unit);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
#pragma unroll
        for (uint32_t k = 0; k < HD / 16; k++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) x[i][k][j] = x[i][k][j] * unit[i] * INTEGER_UNIT;
    if (tile.job.side == CODEC_VALUES || !e.heads.n_rot)
        store_tile<ROTATE_NOTHING>(e, tile, m, no_mean, x);
    else if (e.heads.pairing == ROPE_ADJACENT)
        store_tile<ROTATE_NEIGHBOURS>(e, tile, m, no_mean, x);
    else
        store_tile<ROTATE_HALVES>(e, tile, m, no_mean, x);
}

template <int HD>
static __global__ void __launch_bounds__(TILE_THREADS, 1)
    decode_tiles_kernel(const __grid_constant__ struct encode e, struct encode_sides sides, uint32_t pages, uint32_t each) {
    extern __shared__ __align__(1024) uint8_t memory[];
    struct tile_memory<HD> &m = *(struct tile_memory<HD> *)memory;
    each_tile(
        e, sides, pages, each, [&](const struct transform_view &view) { stage(view, m); },
        [&](const struct tile &tile, const struct transform_view &view) {
            if (tile.job.count) read_tile(e, tile, view, m);
        });
}

/* Where only some channels are rotated in halves, a channel's partner is another lane's. */
bool decode_transform_has_tiles(const struct head_view *heads) {
    const bool partners = !heads->n_rot || heads->n_rot == heads->head_dim || heads->pairing == ROPE_ADJACENT;
    return partners && heads->head_dim <= 128 && heads->n_rot % 8 == 0 &&
           sizeof(struct tile_memory<128>) <= (size_t)device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

cudaError_t decode_transform_tiles(const struct encode *encode, struct encode_sides sides, cudaStream_t stream) {
    switch (encode->heads.head_dim) {
    case 64: return launch_tiles(decode_tiles_kernel<64>, sizeof(struct tile_memory<64>), encode, sides, stream);
    case 96: return launch_tiles(decode_tiles_kernel<96>, sizeof(struct tile_memory<96>), encode, sides, stream);
    case 128: return launch_tiles(decode_tiles_kernel<128>, sizeof(struct tile_memory<128>), encode, sides, stream);
    default: return cudaErrorNotSupported;
    }
}
