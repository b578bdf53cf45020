/* Computes the sizes of each codec's pages and parameters, and checks which shapes it serves. */
#include "format/codec.h"
#include "format/commvq.h"
#include "format/index.h"
#include "format/normalization.h"
#include "format/pq.h"
#include "format/transform.h"

#include <math.h>

/* A page is whole cache lines for every head dimension. */
_Static_assert(PAGE_BYTES_F16(SCALE_GROUP) % 64 == 0 && PAGE_BYTES_Q8_0(SCALE_GROUP) % 64 == 0 &&
                   PAGE_BYTES_Q4_0(SCALE_GROUP) % 64 == 0 && PAGE_BYTES_KIVI(SCALE_GROUP, 2) % 64 == 0 &&
                   PAGE_BYTES_SIGNS(SCALE_GROUP) % 64 == 0 && PAGE_BYTES_QUEST(SCALE_GROUP) % 64 == 0 &&
                   PAGE_BYTES_ADDITIVE(ADDITIVE_STEP) % 64 == 0,
               "pages are multiples of 64 bytes");
_Static_assert(PAGE_BYTES_F16(128) == 64 * 256 && PAGE_BYTES_Q8_0(128) == 64 * 136 && PAGE_BYTES_Q4_0(128) == 64 * 72 &&
                   PAGE_BYTES_KIVI(128, 4) == 64 * 80 && PAGE_BYTES_KIVI(128, 2) == 64 * 48 && PAGE_BYTES_SIGNS(128) == 64 * 16 &&
                   PAGE_BYTES_PQ(32, 8) == 64 * 32 && PAGE_BYTES_PQ(8, 12) == 64 * 12 && PAGE_BYTES_COMMVQ(1, 11) == 1152 &&
                   PAGE_BYTES_ADDITIVE(128) == 64 * 17,
               "bytes of 64 tokens of a head of 128 channels");
_Static_assert(PAGE_PQ_PART(COMMVQ_BITS) == COMMVQ_PART, "codes lie as pq's of 12 bits");

#define GAIN_BYTES PAGE_TOKENS /* of a page: one for each token */
#define HALF_OVERFLOW 65520.0f /* the least number that rounds to infinity in half precision */

/* ---- Shapes */

struct coding codec_coding(const struct codec *codec, uint32_t head_dim, uint32_t bits) {
    switch (codec->id) {
    case CODEC_COMMVQ: return commvq_coding(head_dim, bits);
    case CODEC_ADDITIVE: return additive_coding(head_dim, bits);
    default: return (struct coding){.codec = codec};
    }
}

static enum terse_status check_pq(struct codec_shape shape, struct terse_error *error) {
    if (!shape.width || shape.width > PQ_WIDTH_MAX || shape.head_dim % shape.width)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "sub-vectors of %u channels do not divide the model's heads of %u: use a divisor of %u up to %d",
                           shape.width, shape.head_dim, shape.head_dim, PQ_WIDTH_MAX);
    if (shape.bits < PQ_BITS_MIN || shape.bits > PQ_BITS_MAX)
        return status_fail(error, TERSE_E_UNSUPPORTED, "codes of %u bits: use %d to %d", shape.bits, PQ_BITS_MIN, PQ_BITS_MAX);
    return TERSE_OK;
}

enum terse_status codec_check(const struct codec *codec, struct codec_shape shape, enum codec_side side,
                              struct terse_error *error) {
    enum terse_status status = codec_check_head_dim(shape.head_dim, error);
    if (status) return status;
    switch (codec->id) {
    case CODEC_PQ:
    case CODEC_VQ:
    case CODEC_GAIN_SHAPE: return check_pq(shape, error);
    case CODEC_COMMVQ: return commvq_check(shape, side, error);
    case CODEC_ADDITIVE: return additive_check(shape, side, error);
    default: return TERSE_OK;
    }
}

/* ---- Pages */

static size_t pq_page_bytes(struct codec_shape shape) { return PAGE_BYTES_PQ(shape.head_dim / shape.width, shape.bits); }

/* Pages of a row's slices lie one after the other. */
static size_t transform_page_bytes(struct codec_shape shape) {
    size_t bytes = 0;
    for (size_t slice = 0; slice < (shape.slices ? shape.slices : 1); slice++)
        bytes += PAGE_BYTES_TRANSFORM(shape.layout ? shape.layout[slice].nibbles : 0);
    return bytes;
}

size_t codec_page_bytes(const struct codec *codec, struct codec_shape shape, enum codec_side side) {
    size_t hd = shape.head_dim;
    switch (codec->id) {
    case CODEC_F16: return PAGE_BYTES_F16(hd);
    case CODEC_Q8_0: return PAGE_BYTES_Q8_0(hd);
    case CODEC_Q4_0: return PAGE_BYTES_Q4_0(hd);
    case CODEC_KIVI_4: return PAGE_BYTES_KIVI(hd, 4);
    case CODEC_KIVI_2: return PAGE_BYTES_KIVI(hd, 2);
    case CODEC_SIGN: return (side == CODEC_KEYS ? PAGE_BYTES_SIGNS(hd) : 0) + PAGE_BYTES_KIVI(hd, 2);
    case CODEC_PQ:
    case CODEC_VQ: return pq_page_bytes(shape);
    case CODEC_GAIN_SHAPE: return GAIN_BYTES + pq_page_bytes(shape);
    case CODEC_COMMVQ: return PAGE_BYTES_COMMVQ(commvq_subvectors(shape), commvq_rounds(shape));
    case CODEC_ADDITIVE: return PAGE_BYTES_ADDITIVE(shape.bits);
    case CODEC_TRANSFORM: return transform_page_bytes(shape);
    case CODEC_COUNT: break;
    }
    return 0;
}

/* ---- Parameters of a codebook */

size_t codec_normalization_floats(const struct codec *codec, struct codec_shape shape) {
    return codec->normalized ? normalization_floats(shape.head_dim) : 0;
}

/* Returns the number of a codec's parameters without those of the normalization. */
static size_t own_parameters(const struct codec *codec, struct codec_shape shape) {
    switch (codec->learner) {
    case CODEC_LEARNS_KMEANS: return ((size_t)1 << shape.bits) * shape.head_dim;
    case CODEC_LEARNS_EM: return commvq_table_numbers(shape) + COMMVQ_PAIRING_FLOATS;
    case CODEC_LEARNS_ADDITIVE: return (size_t)shape.bits * shape.head_dim;
    case CODEC_LEARNS_TRANSFORM: return transform_parameter_floats(shape.head_dim);
    case CODEC_LEARNS_NOTHING: break;
    }
    return 0;
}

size_t codec_parameters(const struct codec *codec, struct codec_shape shape) {
    return own_parameters(codec, shape) + codec_normalization_floats(codec, shape);
}

/* Checks that half precision can hold centroids. */
static enum terse_status check_centroids(const float *floats, size_t n, struct terse_error *error) {
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(floats[i]) < HALF_OVERFLOW))
            return status_fail(
                error, TERSE_E_FORMAT,
                "number %zu of the codebook's centroids is %g, beyond half precision: the codebook is damaged, make it "
                "again with terse calibrate",
                i, (double)floats[i]);
    }
    return TERSE_OK;
}

enum terse_status codec_check_parameters(const struct codec *codec, struct codec_shape shape, const float *parameters,
                                         struct terse_error *error) {
    size_t own = own_parameters(codec, shape);
    enum terse_status status = TERSE_OK;
    switch (codec->learner) {
    case CODEC_LEARNS_KMEANS: status = check_centroids(parameters, own, error); break;
    case CODEC_LEARNS_EM: status = commvq_check_parameters(shape, parameters, error); break;
    case CODEC_LEARNS_ADDITIVE: status = additive_check_parameters(shape, parameters, error); break;
    case CODEC_LEARNS_TRANSFORM: status = transform_check_parameters(parameters, shape.head_dim, error); break;
    case CODEC_LEARNS_NOTHING: break;
    }
    return status || !codec->normalized ? status : normalization_check(parameters + own, shape.head_dim, error);
}

/* ---- Fitted while running */

size_t codec_fitted_bytes(const struct codec *codec, struct codec_shape shape, enum codec_side side) {
    if (!codec->fitted || side != CODEC_KEYS) return 0;
    return index_learned_bytes(codec->index, shape.head_dim) + shape.head_dim * sizeof(float); /* the largest of each channel */
}
