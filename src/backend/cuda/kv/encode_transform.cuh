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

/* What is summed up of a row that is quantized in some unit: squares of what its levels leave, products of that with the levels, and squares
 * of levels. */
struct row_sums {
    float rest, cross, square;
};

/* Returns how much a row errs that is read with the gain that it would get; `square` is its |z|^2. */
static __device__ inline float row_error(int side, const struct transform_view &view, float square, float unit,
                                         const struct row_sums &s) {
    const float gain = gain_of(side, square, (s.cross + s.square) / unit, s.square),
                beyond = (view.gain_zero + (float)gain_code(view, gain) * view.gain_step) * unit - 1;
    return (s.rest - 2 * beyond * s.cross + beyond * beyond * s.square) / (unit * unit);
}

/* Returns a token's byte of gains: `square` is |z|^2 of its row, `found` has the sums of the products of its coefficients with the
 * levels that they got, for a row of size 1, and of these with themselves, and `no_mean` is the code of the gain of a row less no
 * mean, else TRANSFORM_NO_MEAN_GAINS. */
static __device__ inline uint8_t gain_byte(const struct page_job &job, const struct transform_view &view, uint32_t t, float square,
                                           float2 found, uint32_t no_mean) {
    const float gain = gain_of(job.side, square, found.x, found.y);
    return t >= job.count ? 0 : no_mean < TRANSFORM_NO_MEAN_GAINS ? (uint8_t)no_mean : gain_code(view, gain);
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
