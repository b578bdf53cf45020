/* Launches the kernels that encode and decode, which the rows of the sides' codecs name. Both sides go in one launch where their
 * rows name the same. */
#include "backend/cuda/kv/encode.h"

#include "backend/cuda/kv/codec.h"
#include "backend/cuda/kv/encode_kernels.h"

bool encode_supports(const struct head_view *heads, const enum codec_id codec[2]) {
    for (int side = 0; side < 2; side++) {
        const struct cuda_codec *row = cuda_codec_of(codec[side]);
        if (!row || !row->encodes(heads)) return false;
    }
    return true;
}

/* Returns the launch's arguments for kernels: keys that are stored as they come are not rotated. */
static struct encode rotated_as_stored(const struct encode *encode) {
    struct encode launch = *encode;
    if (cuda_codec_of(encode->codec[CODEC_KEYS])->format->rope == CODEC_ROPE_AFTER) launch.heads.n_rot = 0;
    return launch;
}

static cudaError_t launch_sides(const struct encode *encode, encode_launch *keys, encode_launch *values, cudaStream_t stream) {
    const struct encode launch = rotated_as_stored(encode);
    if (!encode->n || !encode->n_layers) return cudaSuccess;
    if (keys == values) return keys(&launch, (struct encode_sides){CODEC_KEYS, 2}, stream);
    const cudaError_t result = keys(&launch, (struct encode_sides){CODEC_KEYS, 1}, stream);
    return result != cudaSuccess ? result : values(&launch, (struct encode_sides){CODEC_VALUES, 1}, stream);
}

cudaError_t encode_pages(const struct encode *encode, cudaStream_t stream) {
    if (!encode_supports(&encode->heads, encode->codec)) return cudaErrorNotSupported;
    const cudaError_t result = launch_sides(encode, cuda_codec_of(encode->codec[CODEC_KEYS])->encode,
                                            cuda_codec_of(encode->codec[CODEC_VALUES])->encode, stream);
    if (result != cudaSuccess || !encode->index_bytes) return result;
    return (encode->index == INDEX_SIGN ? encode_index_sign : encode_index_quest)(encode, stream);
}

cudaError_t decode_pages(const struct encode *encode, cudaStream_t stream) {
    if (!encode_supports(&encode->heads, encode->codec)) return cudaErrorNotSupported;
    return launch_sides(encode, cuda_codec_of(encode->codec[CODEC_KEYS])->decode,
                        cuda_codec_of(encode->codec[CODEC_VALUES])->decode, stream);
}
