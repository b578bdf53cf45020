/* The codec gain-shape: vector quantization of a row's shape, and a gain that is fitted once the shape is known.
 *
 *     row = mean + gain * shape,   shape = the sub-vectors' centroids, learned from rows (x - mean) / rms(x - mean)
 *
 * Rows of one head differ in size far more than in shape, so codes are better spent on the shape; and quantization shrinks what it
 * rounds, which the gain undoes. For keys it keeps the row's norm (a shrunken key evens attention out), for values it is the best
 * in least squares. Gersho and Gray 1992, section 12.10, with the gain last. Measured on the built-in model, KL divergence falls by
 * half at 4 bits and by two fifths at 1 bit against the same codes without gain; docs/fidelity.md has the figures.
 *
 * A gain takes one byte, backend/cpu/codec/normalization.h says how. Parameters: those of codec vq, then mean[hd], then scale.
 */
#include "backend/cpu/codec/codec.h"

#include "base/memory.h"
#include "backend/cpu/codec/normalization.h"
#include "backend/cpu/codec/pq.h"
#include "backend/cpu/kernels/kernels.h"

#include <math.h>
#include <string.h>

#define GAIN_BYTES BLOCK_TOKENS

struct learned {
    void *shapes; /* codec vq's */
    float mean[CODEC_HEAD_DIM_MAX];
    float scale;
    float gain[256]; /* of each code */
};

/* What codec vq is told. */
static struct codec_shape inner(struct codec_shape shape) {
    const struct learned *learned = shape.learned;
    shape.learned = learned ? learned->shapes : NULL;
    return shape;
}

static const uint8_t *codes_of(const void *block) { return (const uint8_t *)block + GAIN_BYTES; }

static enum terse_status check(struct codec_shape shape, enum codec_side side, struct terse_error *error) {
    return codec_vq.check(shape, side, error);
}

static size_t block_bytes(struct codec_shape shape, enum codec_side side) { return GAIN_BYTES + codec_vq.block_bytes(shape, side); }

/* ---- What is learned */

static size_t parameters(struct codec_shape shape, enum codec_side side) {
    return codec_vq.parameters(shape, side) + frame_floats(shape.head_dim);
}

static void close_learned(void *opened) {
    struct learned *learned = opened;
    if (!learned) return;
    codec_vq.close(learned->shapes);
    memory_free(learned);
}

static size_t learned_bytes(const void *opened) {
    const struct learned *learned = opened;
    return sizeof *learned + codec_vq.learned_bytes(learned->shapes);
}

static enum terse_status open_learned(struct codec_shape shape, enum codec_side side, const float *floats, void **opened,
                                      struct terse_error *error) {
    const float *mean = floats + codec_vq.parameters(shape, side), *scale = mean + shape.head_dim;
    *opened = NULL;
    enum terse_status status = frame_check(mean, shape.head_dim, error);
    if (status) return status;
    struct learned *learned = memory_zeros(1, sizeof *learned);
    if (!learned) return status_no_memory(error, sizeof *learned, "a codebook");
    status = codec_vq.open(shape, side, floats, &learned->shapes, error);
    if (status) {
        memory_free(learned);
        return status;
    }
    memcpy(learned->mean, mean, shape.head_dim * sizeof *mean);
    learned->scale = *scale;
    frame_gains(*scale, learned->gain);
    *opened = learned;
    return TERSE_OK;
}

static size_t frame_numbers(struct codec_shape shape, enum codec_side side) {
    (void)side;
    return frame_floats(shape.head_dim);
}

static void learn_frame(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, float *floats) {
    frame_learn(rows, n, shape.head_dim, floats + codec_vq.parameters(shape, side));
}

static float enter_frame(struct codec_shape shape, enum codec_side side, const float *floats, float *row) {
    return frame_enter(row, floats + codec_vq.parameters(shape, side), shape.head_dim, row);
}

/* ---- Blocks */

/* Of centred rows x, and the shapes that stand for them. */
static float fit_gain(enum codec_side side, const float *x, const float *shape, size_t hd) {
    float square = kernels()->dot(shape, shape, hd);
    if (!(square > 0)) return 0;
    if (side == CODEC_KEYS) return sqrtf(kernels()->dot(x, x, hd) / square);
    return kernels()->dot(x, shape, hd) / square;
}

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *block) {
    const struct learned *learned = shape.learned;
    size_t hd = shape.head_dim;
    float unit[BLOCK_TOKENS * CODEC_HEAD_DIM_MAX], centred[CODEC_HEAD_DIM_MAX];
    uint8_t *gains = block;
    for (size_t t = 0; t < n; t++) frame_enter(rows + t * hd, learned->mean, hd, unit + t * hd);
    codec_vq.encode(inner(shape), side, unit, n, gains + GAIN_BYTES);
    codec_vq.decode(inner(shape), side, codes_of(block), unit);
    memset(gains, 0, GAIN_BYTES);
    for (size_t t = 0; t < n; t++) {
        frame_centre(rows + t * hd, learned->mean, hd, centred);
        gains[t] = frame_gain_code(learned->scale, fit_gain(side, centred, unit + t * hd, hd));
    }
}

static void decode(struct codec_shape shape, enum codec_side side, const void *block, float *rows) {
    const struct learned *learned = shape.learned;
    const uint8_t *gains = block;
    size_t hd = shape.head_dim;
    codec_vq.decode(inner(shape), side, codes_of(block), rows);
    for (size_t t = 0; t < BLOCK_TOKENS; t++) {
        float gain = learned->gain[gains[t]];
        for (size_t c = 0; c < hd; c++) rows[t * hd + c] = learned->mean[c] + gain * rows[t * hd + c];
    }
}

static void take(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n, void *to,
                 size_t at) {
    kernels()->take_codes(from, 1, 8, slots, n, to, at);
    codec_vq.take(shape, side, codes_of(from), slots, n, (uint8_t *)to + GAIN_BYTES, at);
}

static void approach(struct codec_shape shape, enum codec_side side, size_t blocks) {
    codec_vq.approach(inner(shape), side, blocks);
}

static void gains_of(const struct learned *learned, const void *block, float *gains) {
    kernels()->look_up_gains(learned->gain, block, gains);
}

static void channels(struct codec_shape shape, const void *block, float *to) {
    const struct learned *learned = shape.learned;
    float gains[BLOCK_TOKENS];
    gains_of(learned, block, gains);
    codec_vq.channels(inner(shape), codes_of(block), to);
    for (size_t c = 0; c < shape.head_dim; c++) {
        float mean = learned->mean[c], *row = to + c * BLOCK_TOKENS;
        for (size_t t = 0; t < BLOCK_TOKENS; t++) row[t] = mean + gains[t] * row[t];
    }
}

static void score_turned(struct codec_shape shape, const float *q, const struct key_turn *turn, const void *block, float *logits) {
    const struct learned *learned = shape.learned;
    float gains[BLOCK_TOKENS];
    struct key_turn gained = *turn;
    gains_of(learned, block, gains);
    gained.gain = gains;
    gained.mean = learned->mean;
    codec_vq.score_turned(inner(shape), q, &gained, codes_of(block), logits);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *block, float *logits) {
    const struct learned *learned = shape.learned;
    float gains[BLOCK_TOKENS];
    (void)tables;
    gains_of(learned, block, gains);
    codec_vq.score(inner(shape), q, NULL, codes_of(block), logits);
    for (size_t g = 0; g < shape.group; g++) {
        float mean = kernels()->dot(q + g * shape.head_dim, learned->mean, shape.head_dim);
        for (size_t t = 0; t < BLOCK_TOKENS; t++) logits[g * BLOCK_TOKENS + t] = mean + gains[t] * logits[g * BLOCK_TOKENS + t];
    }
}

#define MOST_TOGETHER 16 /* queries whose scaled weights lie on the stack */

static void mix_gained(bool light, struct codec_shape shape, const float *weights, const void *block, float *acc) {
    const struct learned *learned = shape.learned;
    size_t hd = shape.head_dim;
    float gains[BLOCK_TOKENS], scaled[MOST_TOGETHER * BLOCK_TOKENS];
    struct codec_shape some = inner(shape);
    gains_of(learned, block, gains);
    for (size_t first = 0; first < shape.group; first += some.group) {
        some.group = (uint32_t)(shape.group - first < MOST_TOGETHER ? shape.group - first : MOST_TOGETHER);
        for (size_t g = 0; g < some.group; g++) {
            float sum = kernels()->scale_weights(weights + (first + g) * BLOCK_TOKENS, gains, scaled + g * BLOCK_TOKENS);
            kernels()->axpy(sum, learned->mean, acc + (first + g) * hd, hd);
        }
        (light ? codec_vq.mix_light : codec_vq.mix)(some, scaled, codes_of(block), acc + first * hd);
    }
}

static void mix(struct codec_shape shape, const float *weights, const void *block, float *acc) {
    mix_gained(false, shape, weights, block, acc);
}

static void mix_light(struct codec_shape shape, const float *weights, const void *block, float *acc) {
    mix_gained(true, shape, weights, block, acc);
}

const struct codec codec_gain_shape = {.name = "gain-shape",
                                       .rope = CODEC_ROPE_BEFORE,
                                       .check = check,
                                       .block_bytes = block_bytes,
                                       .parameters = parameters,
                                       .open = open_learned,
                                       .close = close_learned,
                                       .learned_bytes = learned_bytes,
                                       .frame_floats = frame_numbers,
                                       .learn_frame = learn_frame,
                                       .enter_frame = enter_frame,
                                       .settle = pq_settle,
                                       .encode = encode,
                                       .decode = decode,
                                       .take = take,
                                       .approach = approach,
                                       .score = score,
                                       .channels = channels,
                                       .score_turned = score_turned,
                                       .mix = mix,
                                       .mix_light = mix_light};
