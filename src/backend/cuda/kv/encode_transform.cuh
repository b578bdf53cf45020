/* Has what both kernels that write pages of the codec transform share. */
#ifndef TERSE_BACKEND_CUDA_KV_ENCODE_TRANSFORM_CUH
#define TERSE_BACKEND_CUDA_KV_ENCODE_TRANSFORM_CUH

#include "backend/cuda/kv/transform_page.cuh"

static __device__ inline uint8_t gain_code(const struct transform_view &view, float gain) {
    if (!(view.gain_step > 0)) return TRANSFORM_NO_MEAN_GAINS;
    const float code = roundf((gain - view.gain_zero) / view.gain_step), least = TRANSFORM_NO_MEAN_GAINS;
    return (uint8_t)(code > least ? code < 255 ? code : 255 : least);
}

/* Returns the gain of a row from |z|^2, its product with the levels and these with themselves. */
static __device__ inline float gain_of(int side, float square, float cross, float own) {
    if (!(own > 0)) return 0;
    return side == CODEC_KEYS ? sqrtf(square / own) : cross / own;
}

/* A row_sums has sums over the components of a row that is quantized in some unit: of the squares of what its levels leave, of the products
 * of that with the levels, and of the squares of levels. */
struct row_sums {
    float rest, cross, square;
};

/* A row_fit says how much a row errs that is read with the gain that it would get, and the code of that. */
struct row_fit {
    float error;
    uint32_t gain;
};

/* Returns the fit of a row from its sums; `square` is its |z|^2. */
static __device__ inline struct row_fit fit_row(int side, const struct transform_view &view, float square, float unit,
                                                const struct row_sums &s) {
    const uint8_t gain = gain_code(view, gain_of(side, square, (s.cross + s.square) / unit, s.square));
    const float beyond = (view.gain_zero + (float)gain * view.gain_step) * unit - 1;
    return {(s.rest - 2 * beyond * s.cross + beyond * beyond * s.square) / (unit * unit), gain};
}

/* Clears a thread's share of a page that has no tokens. */
static __device__ inline void clear_page(const struct encode &e, const struct page_job &job, uint32_t thread, uint32_t threads) {
    const uint32_t words = places_of(e, *job.item)[job.place].bytes[job.side] / 4;
    for (uint32_t i = thread; i < words; i += threads) ((uint32_t *)job.page)[i] = 0;
}

/* encode_transform_tiles.cu has these: whether its kernel serves heads on this device, and its launch. */
bool encode_transform_has_tiles(const struct head_view *heads);
cudaError_t encode_transform_tiles(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);

#endif
