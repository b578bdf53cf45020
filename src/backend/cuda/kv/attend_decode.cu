/* Which kernels serve, and in how many parts. */
#include "backend/cuda/kv/attend_decode.h"

#include "backend/cuda/kv/attend_centroids.h"
#include "backend/cuda/kv/attend_scaled.h"
#include "backend/cuda/kv/attend_transform.h"

constexpr uint32_t WARPS = 8;    /* of a CTA: each takes pages of its own */
constexpr uint32_t RESIDENT = 2; /* CTAs that a multiprocessor holds */

static bool is_scaled(enum codec_id codec) { return codec <= CODEC_KIVI_2; }
static bool has_centroids(enum codec_id codec) { return codec == CODEC_PQ || codec == CODEC_VQ || codec == CODEC_GAIN_SHAPE; }

size_t attend_decode_part_floats(const struct head_view *heads, uint32_t n_rows, uint32_t splits) {
    const size_t scaled = (size_t)splits * (heads->head_dim + 2);
    const size_t transform = (size_t)(splits + 1) * (2 * heads->head_dim + 2); /* by plane, and one more of the rows of halves */
    return (size_t)n_rows * heads->query_heads * (scaled > transform ? scaled : transform);
}

size_t attend_decode_run_words(const struct head_view *heads, enum codec_id keys, uint32_t n_rows, uint32_t runs) {
    const size_t tiles = heads->query_heads / heads->kv_heads > 4 ? 2 : 1; /* of four queries */
    if (keys != CODEC_TRANSFORM) return 0;
    return (size_t)n_rows * heads->kv_heads * runs * tiles * (12 + 4 * (size_t)heads->head_dim); /* run_words */
}

uint32_t attend_decode_splits(const struct head_view *heads, enum codec_id keys, uint32_t multiprocessors, uint32_t n_rows,
                              uint32_t pages) {
    const uint64_t shares = (uint64_t)n_rows * heads->kv_heads;
    const uint32_t most = (pages + WARPS - 1) / WARPS;            /* as many as keep every warp busy */
    const uint32_t resident = has_centroids(keys) ? 1 : RESIDENT; /* whose tables fill its shared memory */
    uint64_t splits = shares ? (uint64_t)resident * multiprocessors / shares : 1;
    if (keys == CODEC_TRANSFORM && splits > 8) splits--; /* the rows of halves have a CTA of their own, a small one */
    splits = splits < most ? splits : most;
    return splits ? (uint32_t)splits : 1;
}

bool attend_decode_supports(const struct head_view *heads, const enum codec_id codec[2], const struct centroid_shape centroid[2]) {
    const uint32_t hd = heads->head_dim, group = heads->kv_heads ? heads->query_heads / heads->kv_heads : 0;
    if (hd != 64 && hd != 96 && hd != 128 && hd != 256) return false;
    if (group < 1 || group > 16 || heads->query_heads % heads->kv_heads) return false;
    if (hd == 96 && codec[CODEC_VALUES] == CODEC_KIVI_2)
        return false; /* 24 bytes of codes: groups of 32 channels end within 16 bytes */
    if (codec[CODEC_KEYS] == CODEC_TRANSFORM && codec[CODEC_VALUES] == CODEC_TRANSFORM) return true;
    if (has_centroids(codec[CODEC_KEYS]) && has_centroids(codec[CODEC_VALUES])) return attend_centroids_supports(centroid);
    return is_scaled(codec[CODEC_KEYS]) && is_scaled(codec[CODEC_VALUES]);
}

static cudaError_t attend_centroids(const struct attend_decode *attend, cudaStream_t stream) {
    switch (attend->heads.head_dim) {
    case 64: return attend_centroids_64(attend, stream);
    case 96: return attend_centroids_96(attend, stream);
    case 128: return attend_centroids_128(attend, stream);
    case 256: return attend_centroids_256(attend, stream);
    default: return cudaErrorInvalidValue;
    }
}

static cudaError_t attend_transform(const struct attend_decode *attend, cudaStream_t stream) {
    switch (attend->heads.head_dim) {
    case 64: return attend_transform_64(attend, stream);
    case 96: return attend_transform_96(attend, stream);
    case 128: return attend_transform_128(attend, stream);
    case 256: return attend_transform_256(attend, stream);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t attend_decode_launch(const struct attend_decode *attend, cudaStream_t stream) {
    if (!attend_decode_supports(&attend->heads, attend->codec, attend->centroid)) return cudaErrorInvalidValue;
    if (!attend->n_rows) return cudaSuccess;
    if (has_centroids(attend->codec[CODEC_KEYS])) return attend_centroids(attend, stream);
    if (attend->codec[CODEC_KEYS] != attend->codec[CODEC_VALUES]) return attend_scaled_mixed(attend, stream);
    switch (attend->codec[CODEC_KEYS]) {
    case CODEC_F16: return attend_scaled_f16(attend, stream);
    case CODEC_Q8_0: return attend_scaled_q8_0(attend, stream);
    case CODEC_Q4_0: return attend_scaled_q4_0(attend, stream);
    case CODEC_KIVI_4: return attend_scaled_kivi_4(attend, stream);
    case CODEC_KIVI_2: return attend_scaled_kivi_2(attend, stream);
    case CODEC_TRANSFORM: return attend_transform(attend, stream);
    default: return cudaErrorInvalidValue;
    }
}
