/* Has the table of codecs on the GPU. */
#include "backend/cuda/kv/codec.h"

#include "backend/cuda/kv/attend_codebooks.h"
#include "backend/cuda/kv/attend_commvq.h"
#include "backend/cuda/kv/attend_scaled.h"
#include "backend/cuda/kv/attend_sign.h"
#include "backend/cuda/kv/attend_sizes.h"
#include "backend/cuda/kv/attend_transform.h"
#include "backend/cuda/kv/centroids.h"
#include "backend/cuda/kv/commvq.h"
#include "backend/cuda/kv/encode_kernels.h"
#include "backend/cuda/kv/score_quest.h"
#include "backend/cuda/kv/score_sign.h"
#include "backend/cuda/kv/score_transform.h"
#include "backend/cuda/kv/transforms.h"

/* ---- Heads and codes that the kernels serve */

static bool whole_scale_groups(const struct head_view *heads) {
    return heads->head_dim && heads->head_dim % SCALE_GROUP == 0 && heads->head_dim <= CODEC_HEAD_DIM_MAX;
}

/* Returns whether kernels are compiled for the head dimension. */
static bool compiled_head_dims(const struct head_view *heads) { return attend_head_dim(heads->head_dim); }

/* Returns whether CommVQ's kernels are compiled for the head dimension: they have whole sub-vectors of 32 or 64 pairs. */
static bool commvq_head_dims(const struct head_view *heads) {
    return compiled_head_dims(heads) && (heads->head_dim & (heads->head_dim - 1)) == 0;
}

/* Returns whether kivi's 2-bit pages are read. 96 channels are 24 bytes of codes of two bits, in which groups of 32 channels end
 * within 16 bytes. */
static bool attends_kivi_2(const struct head_view *heads, enum codec_side side, struct centroid_shape code) {
    (void)code;
    return side == CODEC_KEYS || heads->head_dim != 96;
}

/* Returns whether the sub-vectors' width is a power of two. */
static bool attends_centroids(const struct head_view *heads, enum codec_side side, struct centroid_shape code) {
    (void)heads;
    (void)side;
    return code.width >= 2 && (code.width & (code.width - 1)) == 0;
}

/* Returns whether the side is keys, with the coding of 1 or 2 bits per value. */
static bool attends_commvq(const struct head_view *heads, enum codec_side side, struct centroid_shape code) {
    const struct coding one = commvq_coding(heads->head_dim, 1), two = commvq_coding(heads->head_dim, 2);
    return side == CODEC_KEYS && commvq_head_dims(heads) && code.width == one.width &&
           (code.bits == one.bits || code.bits == two.bits);
}

/* Returns whether the side is values, with a code of a bit or two for each channel. */
static bool attends_additive(const struct head_view *heads, enum codec_side side, struct centroid_shape code) {
    return side == CODEC_VALUES && (code.bits == heads->head_dim || code.bits == 2 * heads->head_dim);
}

/* ---- The memory that attention works in */

/* Returns the words of the largest launch, which has eight queries, or four. */
static size_t transform_run_words(const struct head_view *heads) {
    return run_record_words(heads->query_heads / heads->kv_heads > 4 ? 2 : 1, heads->head_dim / 2);
}

static const struct attend_form scaled = {.resident = 2};
static const struct attend_form centroids = {.resident = 1, .in_stretches = true}; /* their tables fill the shared memory */
static const struct attend_form vectors = {.resident = 1, .together = 16, .in_stretches = true};
static const struct attend_form transform = {
    .resident = 2, .halves_apart = true, .appends = true, .run_words = transform_run_words};

/* ---- The rows */

static const struct cuda_codec f16 = {.format = &codec_f16,
                                      .encodes = whole_scale_groups,
                                      .encode = encode_f16,
                                      .decode = decode_f16,
                                      .attend = attend_scaled_f16,
                                      .form = &scaled,
                                      .attend_mixed = attend_scaled_mixed};

static const struct cuda_codec q8_0 = {.format = &codec_q8_0,
                                       .encodes = whole_scale_groups,
                                       .encode = encode_q8_0,
                                       .decode = decode_q8_0,
                                       .attend = attend_scaled_q8_0,
                                       .form = &scaled,
                                       .attend_mixed = attend_scaled_mixed};

static const struct cuda_codec q4_0 = {.format = &codec_q4_0,
                                       .encodes = whole_scale_groups,
                                       .encode = encode_q4_0,
                                       .decode = decode_q4_0,
                                       .attend = attend_scaled_q4_0,
                                       .form = &scaled,
                                       .attend_mixed = attend_scaled_mixed};

static const struct cuda_codec kivi_4 = {.format = &codec_kivi_4,
                                         .encodes = whole_scale_groups,
                                         .encode = encode_kivi_4,
                                         .decode = decode_kivi_4,
                                         .attend = attend_scaled_kivi_4,
                                         .form = &scaled,
                                         .attend_mixed = attend_scaled_mixed};

static const struct cuda_codec kivi_2 = {.format = &codec_kivi_2,
                                         .encodes = whole_scale_groups,
                                         .encode = encode_kivi_2,
                                         .decode = decode_kivi_2,
                                         .attend = attend_scaled_kivi_2,
                                         .form = &scaled,
                                         .attends = attends_kivi_2,
                                         .attend_mixed = attend_scaled_mixed};

static const struct cuda_codec sign = {.format = &codec_sign,
                                       .encodes = compiled_head_dims,
                                       .encode = encode_sign,
                                       .decode = decode_sign,
                                       .attend = attend_sign,
                                       .form = &scaled};

static const struct cuda_codec pq = {.format = &codec_pq,
                                     .encodes = compiled_head_dims,
                                     .encode = encode_centroids,
                                     .decode = decode_centroids,
                                     .attend = attend_codebooks,
                                     .form = &centroids,
                                     .attends = attends_centroids,
                                     .learned_new = centroids_new};

static const struct cuda_codec vq = {.format = &codec_vq,
                                     .encodes = compiled_head_dims,
                                     .encode = encode_centroids,
                                     .decode = decode_centroids,
                                     .attend = attend_codebooks,
                                     .form = &vectors,
                                     .attends = attends_centroids,
                                     .learned_new = centroids_new};

static const struct cuda_codec gain_shape = {.format = &codec_gain_shape,
                                             .encodes = compiled_head_dims,
                                             .encode = encode_centroids,
                                             .decode = decode_centroids,
                                             .attend = attend_codebooks,
                                             .form = &vectors,
                                             .attends = attends_centroids,
                                             .learned_new = centroids_new};

static const struct cuda_codec commvq = {.format = &codec_commvq,
                                         .encodes = commvq_head_dims,
                                         .encode = encode_commvq,
                                         .decode = decode_commvq,
                                         .attend = attend_commvq,
                                         .form = &centroids,
                                         .attends = attends_commvq,
                                         .learned_new = commvq_new};

static const struct cuda_codec additive = {.format = &codec_additive,
                                           .encodes = commvq_head_dims,
                                           .encode = encode_additive,
                                           .decode = decode_additive,
                                           .attend = attend_commvq,
                                           .form = &centroids,
                                           .attends = attends_additive,
                                           .learned_new = additive_new};

static const struct cuda_codec transformed = {.format = &codec_transform,
                                              .encodes = compiled_head_dims,
                                              .encode = encode_transform,
                                              .decode = decode_transform,
                                              .attend = attend_transform,
                                              .form = &transform,
                                              .score = score_transform,
                                              .learned_new = transforms_new};

static const struct cuda_codec *const codecs[CODEC_COUNT] = {[CODEC_F16] = &f16,
                                                             [CODEC_Q8_0] = &q8_0,
                                                             [CODEC_Q4_0] = &q4_0,
                                                             [CODEC_KIVI_4] = &kivi_4,
                                                             [CODEC_KIVI_2] = &kivi_2,
                                                             [CODEC_SIGN] = &sign,
                                                             [CODEC_PQ] = &pq,
                                                             [CODEC_VQ] = &vq,
                                                             [CODEC_GAIN_SHAPE] = &gain_shape,
                                                             [CODEC_COMMVQ] = &commvq,
                                                             [CODEC_ADDITIVE] = &additive,
                                                             [CODEC_TRANSFORM] = &transformed};

const struct cuda_codec *cuda_codec_of(enum codec_id id) { return codecs[id]; }

score_launch *cuda_scores_of(const struct method *method) {
    if (method->index->id == INDEX_QUEST) return score_quest;
    if (method->index->id == INDEX_SIGN) return score_sign;
    return method->index->id == INDEX_COMPONENTS ? cuda_codec_of(method->key.codec->id)->score : NULL;
}
