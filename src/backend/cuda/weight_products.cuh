/* Multiplies a tile, which lies in shared memory, by up to 64 vectors: a warp does so, on tensor cores. */
#ifndef TERSE_BACKEND_CUDA_WEIGHT_PRODUCTS_CUH
#define TERSE_BACKEND_CUDA_WEIGHT_PRODUCTS_CUH

#include "backend/cuda/weight_tiles.cuh"

#define PART 8 /* vectors of a product */

/* ---- Sums of vectors are the second operand of products with tiles' offsets. A tile and a vector have OFFSETS sums s, each as two
 * halves, high and low, in this order:
 *
 *     4    t = 0: high 0 1  t = 1: high 2 3  t = 2: low 0 1  t = 3: low 2 3
 *     8    high 2t 2t+1, low 2t 2t+1
 *     16   high 2t 2t+1, high 2t+8 2t+9, low 2t 2t+1, low 2t+8 2t+9 */
__host__ __device__ static constexpr int sum_bytes(int offsets) { return 4 * offsets; }

template <int OFFSETS> __device__ static inline int place_of_sum(int i, bool low) {
    int pair = i % 8 / 2;
    return 2 * (OFFSETS == 4 ? pair + 2 * low : OFFSETS == 8 ? 2 * pair + low : 4 * pair + i / 8 + 2 * low) + i % 2;
}

__host__ __device__ static constexpr int forms_of(enum vector_form form) { return form == THIRDS ? 3 : form == TWO_HALVES ? 2 : 1; }

/* ---- Vectors are the second operand of products with codes. A lane reads vector g of each part, or the first where there is no
 * such vector: its result is not read. */

/* These vectors lie in shared memory: [form][group][n][32]. */
template <int PARTS> struct shared_vectors {
    uint32_t at[PARTS], form_bytes, stride; /* stride: from a group to the next */
    __device__ shared_vectors(uint32_t memory, uint32_t n, uint32_t groups, int lane)
        : form_bytes(groups * n * 64), stride(n * 64) {
        for (int part = 0; part < PARTS; part++) {
            uint32_t v = PART * part + lane / 4;
            at[part] = memory + (v < n ? v : 0) * 64 + lane % 4 * 16;
        }
    }
    __device__ uint4 quad(uint32_t group, int part, int form) const {
        return load_shared_quad(at[part] + group * stride + form * form_bytes);
    }
};

/* These vectors lie in global memory, in the layout of device_vectors. */
template <int PARTS> struct stored_vectors {
    const uint4 *const *forms;
    uint32_t at[PARTS], stride;
    __device__ stored_vectors(const uint4 *const *forms, uint32_t n, uint32_t apart, int lane) : forms(forms), stride(apart * 4) {
        for (int part = 0; part < PARTS; part++) {
            uint32_t v = PART * part + lane / 4;
            at[part] = (v < n ? v : 0) * 4 + lane % 4;
        }
    }
    __device__ uint4 quad(uint32_t group, int part, int form) const { return forms[form][group * stride + at[part]]; }
};

/* These, from the vector `first` on, lie there, too, and zeros behind them up to the end of their last part: a part has a fixed
 * distance from the first. */
struct filled_vectors {
    const uint4 *const *forms;
    uint32_t at, stride;
    __device__ filled_vectors(const uint4 *const *forms, uint32_t first, uint32_t apart, int lane)
        : forms(forms), at(first * 4 + lane), stride(apart * 4) {}
    __device__ uint4 quad(uint32_t group, int part, int form) const {
        return (forms[form] + group * stride + at)[part * (PART * 4)];
    }
};

/* ---- Products */

/* A row_sums has sums of rows g and g + 8, for vectors 2t and 2t + 1 of each part. */
template <int PARTS> struct row_sums {
    float of[PARTS][4];
    __device__ void clear() {
        for (int part = 0; part < PARTS; part++)
            for (int i = 0; i < 4; i++) of[part][i] = 0;
    }
    /* Adds the sums `y`, times a factor of each row. */
    __device__ void add(const row_sums &y, float upper, float lower) {
        for (int part = 0; part < PARTS; part++)
            for (int i = 0; i < 4; i++) of[part][i] = fmaf(i < 2 ? upper : lower, y.of[part][i], of[part][i]);
    }
};

/* COUNT is the number of forms that a weight is multiplied in: 1 for the weight itself, 3 for thirds. */
template <class TILE> struct weight_forms { static constexpr int COUNT = 1; };
template <> struct weight_forms<tile_f32> { static constexpr int COUNT = 3; };

/* Returns group b of rows g and g + 8 as operands of two products: a[0 .. 3] and a[4 .. 7]. */
template <class TILE> __device__ static inline void weight_operands(const TILE &tile, int b, int t, int third, uint32_t a[8]) {
    for (int h = 0; h < 2; h++) {
        uint32_t pair[4];
        tile.pairs(b, h, t, pair, third);
        for (int i = 0; i < 4; i++) a[2 * i + h] = pair[i];
    }
}

template <enum vector_form FORM>
__device__ static inline void multiply_half_group(float (&sums)[4], const uint32_t *a, uint32_t b0, uint32_t b1) {
    if (FORM == THIRDS)
        mma_bf16(sums, a[0], a[1], a[2], a[3], b0, b1);
    else
        mma(sums, a[0], a[1], a[2], a[3], b0, b1);
}

/* Adds a group's products, scaled, to `sums`. Of thirds of weights and of vectors only those products count whose indices sum to
 * less than 3. */
template <class TILE, int PARTS, class VECTORS>
__device__ static inline void multiply_group(const TILE &tile, int b, uint32_t group, const VECTORS &x, int t,
                                             row_sums<PARTS> *sums) {
    constexpr int WEIGHT_FORMS = weight_forms<TILE>::COUNT;
    uint32_t a[WEIGHT_FORMS][8];
#pragma unroll
    for (int i = 0; i < WEIGHT_FORMS; i++) weight_operands(tile, b, t, i, a[i]);
    for (int part = 0; part < PARTS; part++) {
        float own[TILE::HALVES][4] = {};
        for (int form = 0; form < forms_of(TILE::FORM); form++) {
            uint4 v = x.quad(group, part, form);
#pragma unroll
            for (int i = 0; i < WEIGHT_FORMS && i + form < 3; i++) {
                multiply_half_group<TILE::FORM>(own[0], a[i], v.x, v.y);
                multiply_half_group<TILE::FORM>(own[TILE::HALVES - 1], a[i] + 4, v.z, v.w);
            }
        }
        for (int half = 0; half < TILE::HALVES; half++)
            for (int i = 0; i < 4; i++) sums->of[part][i] = fmaf(tile.size(b, i / 2, half), own[half][i], sums->of[part][i]);
    }
}

/* Adds offsets times sums. `at` is the lane's part of the sums of vector g and this tile, or of the first vector where there is no
 * such vector. */
template <class TILE, int PARTS>
__device__ static inline void multiply_offsets(shared_tile tile, const uint32_t at[PARTS], uint32_t skip, int lane,
                                               row_sums<PARTS> *sums) {
    const int g = lane / 4, t = lane % 4;
    uint32_t a[2][2];
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < (TILE::OFFSETS == 16 ? 2 : 1); i++) a[h][i] = TILE::offsets(tile, g + 8 * h, t + 4 * i);
    for (int part = 0; part < PARTS; part++) {
        if (TILE::OFFSETS == 4) mma(sums->of[part], a[0][0], a[1][0], 0, 0, load_shared(at[part] + skip), 0);
        if (TILE::OFFSETS == 8) {
            uint2 v = load_shared_pair(at[part] + skip);
            mma(sums->of[part], a[0][0], a[1][0], a[0][0], a[1][0], v.x, v.y);
        }
        if (TILE::OFFSETS == 16) {
            uint4 v = load_shared_quad(at[part] + skip);
            mma(sums->of[part], a[0][0], a[1][0], a[0][1], a[1][1], v.x, v.y);
            mma(sums->of[part], a[0][0], a[1][0], a[0][1], a[1][1], v.z, v.w);
        }
    }
}

/* A tile_sums has a warp's sums for 16 rows: products of codes, in units of 2^-24 where the type has codes, and of offsets. */
template <class TILE, int PARTS> struct tile_sums {
    row_sums<PARTS> codes, offsets;
    __device__ void clear() {
        codes.clear();
        offsets.clear();
    }

    /* Adds the products with tile k of the rows. */
    template <class VECTORS>
    __device__ void add(shared_tile from, uint32_t k, const VECTORS &x, const uint32_t sums_at[PARTS], uint32_t sums_stride,
                        int lane) {
        row_sums<PARTS> own;
        if (TILE::UNIT) own.clear();
        if (TILE::UNIT) offsets.clear();
#pragma unroll
        for (int chunk = 0; chunk < TILE::GROUPS; chunk += TILE::CHUNK) {
            TILE tile;
            tile.load(from, lane, chunk / TILE::CHUNK);
#pragma unroll
            for (int b = 0; b < TILE::CHUNK; b++)
                multiply_group<TILE, PARTS>(tile, b, k * TILE::GROUPS + chunk + b, x, lane % 4, TILE::UNIT ? &own : &codes);
        }
        if (TILE::OFFSETS) multiply_offsets<TILE, PARTS>(from, sums_at, k * sums_stride, lane, &offsets);
        if (!TILE::UNIT) return;
        codes.add(own, TILE::unit(from, lane / 4), TILE::unit(from, lane / 4 + 8));
        codes.add(offsets, TILE::offset_unit(from, lane / 4), TILE::offset_unit(from, lane / 4 + 8));
    }
    /* Adds the offsets to `codes`, which then holds the whole sum. */
    __device__ void finish() {
        if constexpr (TILE::OFFSETS && !TILE::UNIT) codes.add(offsets, TILE::offset_unit(0, 0), TILE::offset_unit(0, 0));
    }
};

#endif
