/* Which kernels encode and decode a codec's pages. Both sides go in one launch where one family of kernels serves both. */
#include "backend/cuda/kv/encode.h"
#include "backend/cuda/kv/encode_common.cuh"

typedef cudaError_t launch(const struct encode *encode, struct encode_sides sides, cudaStream_t stream);

struct family {
    launch *encode, *decode;
};
static const struct family scaled = {encode_scaled, decode_scaled}, transform = {encode_transform, decode_transform},
                           centroids = {encode_centroids, decode_centroids};

static const struct family *family_of(enum codec_id codec) {
    switch (codec) {
    case CODEC_F16:
    case CODEC_Q8_0:
    case CODEC_Q4_0:
    case CODEC_KIVI_4:
    case CODEC_KIVI_2: return &scaled;
    case CODEC_TRANSFORM: return &transform;
    case CODEC_PQ:
    case CODEC_VQ:
    case CODEC_GAIN_SHAPE: return &centroids;
    default: return NULL;
    }
}

bool encode_supports(const struct head_view *heads, const enum codec_id codec[2]) {
    if (heads->head_dim == 0 || heads->head_dim % SCALE_GROUP || heads->head_dim > CODEC_HEAD_DIM_MAX) return false;
    for (int side = 0; side < 2; side++) {
        const struct family *family = family_of(codec[side]);
        if (!family || (family != &scaled && !encode_transform_supports(heads))) return false;
    }
    return true;
}

static cudaError_t launch_sides(const struct encode *encode, launch *family::*task, cudaStream_t stream) {
    if (!encode_supports(&encode->heads, encode->codec)) return cudaErrorNotSupported;
    if (!encode->n || !encode->n_layers) return cudaSuccess;
    const struct family *keys = family_of(encode->codec[CODEC_KEYS]), *values = family_of(encode->codec[CODEC_VALUES]);
    if (keys == values) return (keys->*task)(encode, {0, 2}, stream);
    cudaError_t result = (keys->*task)(encode, {CODEC_KEYS, 1}, stream);
    return result != cudaSuccess ? result : (values->*task)(encode, {CODEC_VALUES, 1}, stream);
}

cudaError_t encode_pages(const struct encode *encode, cudaStream_t stream) { return launch_sides(encode, &family::encode, stream); }
cudaError_t decode_pages(const struct encode *encode, cudaStream_t stream) { return launch_sides(encode, &family::decode, stream); }
