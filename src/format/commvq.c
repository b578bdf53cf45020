/* Computes CommVQ's codings, and where the channels of a sub-vector lie. */
#include "format/commvq.h"

#include <math.h>

#define LEAST_WIDTH (2 * COMMVQ_LEAST_PAIRS)
#define MOST_WIDTH (2 * COMMVQ_MOST_PAIRS)
#define HALF_MAX 65504.0f /* the largest half float */

/* ---- Keys */

struct coding commvq_coding(uint32_t head_dim, uint32_t bits) {
    uint32_t width = head_dim > MOST_WIDTH ? head_dim / 2 : head_dim;
    uint32_t rounds = (width * bits + COMMVQ_BITS / 2) / COMMVQ_BITS;
    return (struct coding){.codec = &codec_commvq, .width = width, .bits = COMMVQ_BITS * (rounds ? rounds : 1)};
}

enum terse_status commvq_check(struct codec_shape shape, enum codec_side side, struct terse_error *error) {
    if (side != CODEC_KEYS) return status_fail(error, TERSE_E_UNSUPPORTED, "codec comm is for keys: choose another one for values");
    if (shape.width < LEAST_WIDTH || shape.width % 2 || shape.width > MOST_WIDTH || shape.head_dim % shape.width)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "subvectors of %u channels in the model's heads of %u: use an even divisor of %u from %d to %d",
                           shape.width, shape.head_dim, shape.head_dim, LEAST_WIDTH, MOST_WIDTH);
    if (!shape.bits || shape.bits % COMMVQ_BITS || shape.bits > COMMVQ_BITS * COMMVQ_MOST_ROUNDS)
        return status_fail(error, TERSE_E_UNSUPPORTED, "a subvector's code of %u bits: use a multiple of %d up to %d", shape.bits,
                           COMMVQ_BITS, COMMVQ_BITS * COMMVQ_MOST_ROUNDS);
    return TERSE_OK;
}

void commvq_set_pairing(struct codec_shape shape, float *parameters, size_t pairs, bool adjacent) {
    float *pairing = parameters + commvq_table_numbers(shape);
    pairing[0] = (float)pairs;
    pairing[1] = adjacent;
}

struct commvq_pairing commvq_pairing_of(struct codec_shape shape, const float *parameters) {
    const float *pairing = parameters + commvq_table_numbers(shape);
    return (struct commvq_pairing){(size_t)pairing[0], pairing[1] != 0};
}

void commvq_channels(struct codec_shape shape, const float *parameters, size_t subvector, uint8_t *channels) {
    struct commvq_pairing pairing = commvq_pairing_of(shape, parameters);
    size_t g = shape.width / 2;
    for (size_t j = 0; j < g; j++) {
        size_t pair = subvector * g + j;
        bool split = !pairing.adjacent && pair < pairing.pairs;
        size_t first = split ? pair : 2 * pair;
        channels[j] = (uint8_t)first;
        channels[g + j] = (uint8_t)(first + (split ? pairing.pairs : 1));
    }
}

enum terse_status commvq_check_parameters(struct codec_shape shape, const float *parameters, struct terse_error *error) {
    const float *pairing = parameters + commvq_table_numbers(shape);
    for (size_t i = 0; i < commvq_table_numbers(shape); i++) {
        if (!(fabsf(parameters[i]) <= HALF_MAX))
            return status_fail(
                error, TERSE_E_FORMAT,
                "number %zu of the codebook's tables is %g, beyond half precision: the codebook is damaged, make it again "
                "with terse calibrate",
                i, (double)parameters[i]);
    }
    if (!(pairing[0] >= 0 && pairing[0] <= (float)(shape.head_dim / 2)) || pairing[0] != floorf(pairing[0]) ||
        (pairing[1] != 0 && pairing[1] != 1))
        return status_fail(
            error, TERSE_E_FORMAT,
            "%g RoPE pairs of kind %g in heads of %u channels: the codebook is damaged, make it again with terse calibrate",
            (double)pairing[0], (double)pairing[1], shape.head_dim);
    return TERSE_OK;
}

/* ---- Values */

struct coding additive_coding(uint32_t head_dim, uint32_t bits) {
    return (struct coding){.codec = &codec_additive, .width = head_dim, .bits = head_dim * bits};
}

enum terse_status additive_check(struct codec_shape shape, enum codec_side side, struct terse_error *error) {
    if (side != CODEC_VALUES)
        return status_fail(error, TERSE_E_UNSUPPORTED, "codec additive is for values: choose another one for keys");
    if (shape.width == shape.head_dim && shape.bits && shape.bits % ADDITIVE_STEP == 0 && shape.bits <= 2 * shape.head_dim)
        return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED,
                       "codes of %u bits for %u of a head's %u channels: use a multiple of %d bits up to %u for all of them",
                       shape.bits, shape.width, shape.head_dim, ADDITIVE_STEP, 2 * shape.head_dim);
}

enum terse_status additive_check_parameters(struct codec_shape shape, const float *parameters, struct terse_error *error) {
    for (size_t i = 0; i < (size_t)shape.bits * shape.head_dim; i++) {
        if (!(fabsf(parameters[i]) <= HALF_MAX))
            return status_fail(error, TERSE_E_FORMAT,
                               "number %zu of the codebook's rows is %g, beyond half precision: the codebook is damaged, make it "
                               "again with terse calibrate",
                               i, (double)parameters[i]);
    }
    return TERSE_OK;
}
