/* Which kernels encode and decode a codec's pages. Both sides go in one launch where one family of kernels serves both. */
#include "backend/cuda/kv/encode_common.cuh"

static bool is_scaled(enum codec_id codec) {
    return codec == CODEC_F16 || codec == CODEC_Q8_0 || codec == CODEC_Q4_0 || codec == CODEC_KIVI_4 || codec == CODEC_KIVI_2;
}

bool encode_supports(const struct head_view *heads, const enum codec_id codec[2]) {
    if (heads->head_dim == 0 || heads->head_dim % SCALE_GROUP || heads->head_dim > CODEC_HEAD_DIM_MAX) return false;
    for (int side = 0; side < 2; side++)
        if (!is_scaled(codec[side]) && !(codec[side] == CODEC_TRANSFORM && encode_transform_supports(heads))) return false;
    return true;
}

typedef cudaError_t launch(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);

static cudaError_t launch_sides(const struct encode *encode, launch *scaled, launch *transform, cudaStream_t stream) {
    bool key = is_scaled(encode->codec[CODEC_KEYS]), value = is_scaled(encode->codec[CODEC_VALUES]);
    if (!encode_supports(&encode->heads, encode->codec)) return cudaErrorNotSupported;
    if (!encode->n || !encode->n_layers) return cudaSuccess;
    if (key == value) return (key ? scaled : transform)(encode, {0, 2}, stream);
    cudaError_t result = (key ? scaled : transform)(encode, {CODEC_KEYS, 1}, stream);
    return result != cudaSuccess ? result : (value ? scaled : transform)(encode, {CODEC_VALUES, 1}, stream);
}

cudaError_t encode_pages(const struct encode *encode, cudaStream_t stream) {
    return launch_sides(encode, encode_scaled, encode_transform, stream);
}

cudaError_t decode_pages(const struct encode *encode, cudaStream_t stream) {
    return launch_sides(encode, decode_scaled, decode_transform, stream);
}
