/* Computes CommVQ's codings, where the channels of a sub-vector lie, and the integers that tables and rows are in memory. */
#include "format/commvq.h"

#include <math.h>
#include <stdlib.h>

#define LEAST_WIDTH (2 * COMMVQ_LEAST_PAIRS)
#define MOST_WIDTH (2 * COMMVQ_MOST_PAIRS)
#define MOST_NUMBERS (CODEC_HEAD_DIM_MAX / LEAST_WIDTH * COMMVQ_MOST_PAIRS) /* of all sub-vectors' pairs, with their padding */
#define MOST_LEVEL 127                                                      /* of a number of a row of values */
#define HALF_MAX 65504.0f                                                   /* the largest half float */

/* ---- Keys */

struct coding commvq_coding(uint32_t head_dim, uint32_t bits) {
    uint32_t width = head_dim > MOST_WIDTH ? head_dim / 2 : head_dim;
    uint32_t rounds = COMMVQ_ROUNDS(width, bits);
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

void commvq_integers(size_t pairs, size_t rounds, const float *tables, size_t stride, int8_t *rows, float *steps, float *inverses) {
    const size_t halves = rounds * COMMVQ_ENTRIES * 2;
    for (size_t j = 0; j < pairs; j++) {
        float largest = 0;
        for (size_t i = 0; i < halves; i++) largest = fmaxf(largest, fabsf(tables[i * pairs + j]));
        float step = largest / COMMVQ_LARGEST, inverse = step > 0 ? 1 / step : 0;
        if (!isfinite(inverse)) step = inverse = 0; /* next to nothing */
        steps[j] = step;
        inverses[j] = inverse;
        for (size_t i = 0; i < halves; i++) rows[i * stride + j] = (int8_t)lrintf(tables[i * pairs + j] * inverse);
    }
}

/* Returns the most that a number of pair j of a round's rows[COMMVQ_ENTRIES][2][stride] can be. */
static int round_size(const int8_t *rows, size_t stride, size_t j) {
    int re = 0, im = 0;
    for (size_t l = 0; l < COMMVQ_ENTRIES; l++) {
        const int8_t *row = rows + l * 2 * stride + j;
        re = abs(row[0]) > re ? abs(row[0]) : re;
        im = abs(row[stride]) > im ? abs(row[stride]) : im;
    }
    return re + im;
}

size_t commvq_spans(size_t subvectors, size_t rounds, size_t stride, const int8_t *rows, uint8_t *span, float *largest) {
    int sum[MOST_NUMBERS], most[MOST_NUMBERS];
    const size_t pairs = subvectors * stride;
    size_t spans = 0;
    for (size_t r = 0; r < rounds; r++) {
        bool joins = r > 0;
        for (size_t j = 0; j < pairs; j++) {
            const size_t k = j / stride;
            most[j] = round_size(rows + (k * rounds + r) * COMMVQ_ENTRIES * 2 * stride, stride, j % stride);
            largest[j] += (float)most[j];
            if (r > 0 && sum[j] + most[j] > COMMVQ_SUM) joins = false;
        }
        for (size_t j = 0; j < pairs; j++) sum[j] = joins ? sum[j] + most[j] : most[j];
        if (!joins) span[spans++] = 0;
        span[spans - 1]++;
    }
    return spans;
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

void additive_levels(size_t codes, size_t head_dim, float *C, uint8_t *levels, float *low, float *step) {
    for (size_t c = 0; c < head_dim; c++) {
        float least = C[c], most = C[c];
        for (size_t i = 1; i < codes; i++) {
            least = fminf(least, C[i * head_dim + c]);
            most = fmaxf(most, C[i * head_dim + c]);
        }
        float own = (most - least) / MOST_LEVEL, inverse = own > 0 ? 1 / own : 0;
        if (!isfinite(inverse)) own = inverse = 0; /* next to nothing */
        low[c] = least;
        step[c] = own;
        for (size_t i = 0; i < codes; i++) {
            long level = lrintf((C[i * head_dim + c] - least) * inverse);
            levels[i * head_dim + c] = (uint8_t)(level < MOST_LEVEL ? level : MOST_LEVEL);
            C[i * head_dim + c] = least + own * levels[i * head_dim + c];
        }
    }
}
