/* Chooses kernels by the rows of the sides' codecs (codec.h), and the number of splits. */
#include "backend/cuda/kv/attend_decode.h"

#include "backend/cuda/kv/attend_sizes.h"
#include "backend/cuda/kv/codec.h"

#define WARPS 8 /* of a CTA: each takes pages of its own */

static const struct attend_form *form_of(enum codec_id keys) { return cuda_codec_of(keys)->form; }

/* Returns how many CTAs read a row and KV head besides the splits. */
static uint32_t more_parts(const struct attend_form *form) { return form->halves_apart ? 1 : 0; }

size_t attend_decode_part_floats(const struct head_view *heads, enum codec_id keys, uint32_t n_rows, uint32_t splits) {
    const struct attend_form *form = form_of(keys);
    const size_t stretches = form->in_stretches && (size_t)n_rows * splits > 1 ? ATTEND_STRETCHES : 0,
                 part = (1 + stretches) * (heads->head_dim + ATTEND_STATE_FLOATS);
    return (size_t)n_rows * heads->query_heads * (splits + more_parts(form)) * part;
}

size_t attend_decode_run_words(const struct head_view *heads, enum codec_id keys, uint32_t n_rows, uint32_t runs) {
    const struct attend_form *form = form_of(keys);
    return form->run_words ? (size_t)n_rows * heads->kv_heads * (runs + 1) * form->run_words(heads) : 0;
}

uint32_t attend_decode_splits(const struct head_view *heads, enum codec_id keys, uint32_t multiprocessors, uint32_t n_rows,
                              uint32_t pages) {
    const struct attend_form *form = form_of(keys);
    const uint64_t shares = (uint64_t)n_rows * heads->kv_heads;
    const uint32_t most = pages <= form->together ? 1 : (pages + WARPS - 1) / WARPS; /* as many as keep every warp busy */
    uint64_t splits = shares ? (uint64_t)form->resident * multiprocessors / shares : 1;
    if (splits > 8) splits -= more_parts(form); /* which are small */
    splits = splits < most ? splits : most;
    return splits ? (uint32_t)splits : 1;
}

uint32_t attend_decode_row_splits(const struct head_view *heads, uint32_t multiprocessors, uint64_t rows) {
    const uint32_t at_once = 16 * WARPS; /* rows of a CTA: 16 of each warp */
    const uint64_t busy = (rows + at_once - 1) / at_once, most = multiprocessors / heads->kv_heads;
    const uint64_t splits = busy < most ? busy : most;
    return splits ? (uint32_t)splits : 1;
}

uint32_t attend_decode_multiprocessor_parts(const struct head_view *heads, uint32_t multiprocessors, uint32_t parts) {
    return (uint32_t)(((uint64_t)heads->kv_heads * parts + multiprocessors - 1) / multiprocessors);
}

/* Returns the launch for pages of these codecs; NULL: there is none. */
static attend_launch *launch_of(const enum codec_id codec[2]) {
    const struct cuda_codec *keys = cuda_codec_of(codec[CODEC_KEYS]), *values = cuda_codec_of(codec[CODEC_VALUES]);
    if (!keys || !values) return NULL;
    if (keys->attend == values->attend) return keys->attend;
    return keys->attend_mixed == values->attend_mixed ? keys->attend_mixed : NULL;
}

bool attend_decode_supports(const struct head_view *heads, const enum codec_id codec[2], const struct centroid_shape centroid[2]) {
    const uint32_t group = heads->kv_heads ? heads->query_heads / heads->kv_heads : 0;
    if (!attend_head_dim(heads->head_dim)) return false;
    if (group < 1 || group > 16 || heads->query_heads % heads->kv_heads) return false;
    if (!launch_of(codec)) return false;
    for (int side = 0; side < 2; side++) {
        const struct cuda_codec *row = cuda_codec_of(codec[side]);
        const struct centroid_shape code = centroid ? centroid[side] : (struct centroid_shape){0};
        if (row->attends && !row->attends(heads, (enum codec_side)side, code)) return false;
    }
    return true;
}

cudaError_t attend_decode_launch(const struct attend_decode *attend, cudaStream_t stream) {
    if (!attend_decode_supports(&attend->heads, attend->codec, attend->centroid)) return cudaErrorInvalidValue;
    if (!attend->n_rows) return cudaSuccess;
    struct attend_decode launch = *attend;
    if (cuda_codec_of(attend->codec[CODEC_KEYS])->format->rope == CODEC_ROPE_AFTER) launch.run_angles = NULL;
    return launch_of(attend->codec)(&launch, stream);
}
