/* Implements the codec additive: values as sums of a codebook's rows, one bit of the code for each (CommVQ, Li et al. 2025, section
 * 4.1).
 *
 *     value = mean + gain * s C,   s in {0, 1}^codes, C [codes][head_dim], 1 or 2 codes for a channel
 *
 * A query sums its weights by bit of the code, over all tokens, and multiplies the sums by C once at the end: softmax (s C) =
 * (softmax s) C. Any search for codes would do; this codec uses that of backend/cpu/codec/binary_code_search.h, as learning
 * (train/additive.h) does.
 *
 * The paper has one codebook for a layer, of all KV heads together. A page is of one KV head, so that here each head has its own: a
 * code of all heads would have to be read once for each of them, or the readers of one head would have to read all. This gives up
 * what heads have in common; a head's codebook is smaller by the square of the number of heads. The paper's channel scale is in C,
 * its norm in the gain, one byte as backend/cpu/codec/normalization.h has it, which is set last and is the best in least squares: a
 * gain that kept the norm would make every value too long by what the code has lost, and attention's average over tokens cannot
 * make that good.
 *
 * The paper finds codes by a network that is trained with the codebook. Measured (bench/experiments/value_codes.c: two heads of the
 * built-in model, 16384 tokens to learn from, 1500 steps for the network; error of the values weighted by the loss's gradients,
 * then of what attention gives, as parts of what their mean alone would leave):
 *
 *                         1 bit              2 bits
 *     this codec      0.065  0.027       0.023  0.0064
 *     the network     0.182  0.097       0.110  0.054     and 1.5 and 5 bits per value more for its weights at 8K tokens
 *     gain-shape      0.139  0.090       0.051  0.022
 *     KIVI's          2.1    0.74        0.23   0.035     and one bit more for scales
 *
 * so that here it is the search, in 6 and 17 us a token (AVX-512, one thread), the network's 3 and 9. A beam of 8 codes, snapped by
 * the same moves, would have 0.060 and 0.018, and attention's error not lower at 1 bit, in a multiple of the time.
 *
 * C is read as integers of 7 bits with a least number and a step for each channel; encoding searches by the same numbers. */
#include "backend/cpu/codec/codec.h"

#include "backend/cpu/codec/binary_code_search.h"
#include "backend/cpu/codec/normalization.h"
#include "backend/cpu/kernels/commvq/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

#define GAIN_BYTES PAGE_TOKENS
#define MOST_TOGETHER 16 /* queries, or tokens, whose numbers lie on the stack */

struct learned {
    struct additive_search search;
    uint8_t *centroids_u8; /* [codes][head_dim] */
    size_t level_bytes;
    float low[CODEC_HEAD_DIM_MAX], step[CODEC_HEAD_DIM_MAX], mean[CODEC_HEAD_DIM_MAX];
    float scale;
    float gain[256]; /* of each code */
};

static const uint8_t *codes_of(const void *page) { return (const uint8_t *)page + GAIN_BYTES; }

/* ---- What is learned */

static size_t numbers_of(struct codec_shape shape) { return (size_t)shape.bits * shape.head_dim; }

static void learned_free(void *opened) {
    struct learned *learned = opened;
    if (!learned) return;
    additive_search_free(&learned->search);
    memory_free(learned->centroids_u8);
    memory_free(learned);
}

static size_t learned_bytes(const void *opened) {
    const struct learned *learned = opened;
    return sizeof *learned + learned->level_bytes + additive_search_bytes(&learned->search);
}

static enum terse_status fill(struct learned *learned, struct codec_shape shape, const float *floats, struct terse_error *error) {
    size_t hd = shape.head_dim, numbers = numbers_of(shape);
    const float *normalization = floats + numbers;
    float *C = memory_array(numbers, sizeof *C);
    learned->centroids_u8 = memory_array(numbers, 1);
    learned->level_bytes = numbers;
    if (!C || !learned->centroids_u8) {
        memory_free(C);
        return status_no_memory(error, numbers * (1 + sizeof *C), "a codebook");
    }
    memcpy(C, floats, numbers * sizeof *C);
    additive_levels(shape.bits, hd, C, learned->centroids_u8, learned->low, learned->step);
    enum terse_status status = additive_search_new(hd, shape.bits, &learned->search, error);
    if (!status) additive_search_set(&learned->search, C);
    memory_free(C);
    memcpy(learned->mean, normalization, hd * sizeof *normalization);
    learned->scale = normalization[hd];
    gain_table(learned->scale, learned->gain);
    return status;
}

static size_t predict_learned_bytes(struct codec_shape shape, enum codec_side side, const uint16_t *halves) {
    (void)side, (void)halves;
    struct additive_search search = {.channels = shape.head_dim, .codes = shape.bits};
    return sizeof(struct learned) + numbers_of(shape) + additive_search_bytes(&search);
}

static enum terse_status learned_new(struct codec_shape shape, enum codec_side side, const float *floats, void **opened,
                                     struct terse_error *error) {
    (void)side;
    *opened = NULL;
    struct learned *learned = memory_zeros(1, sizeof *learned);
    if (!learned) return status_no_memory(error, sizeof *learned, "a codebook");
    enum terse_status status = fill(learned, shape, floats, error);
    if (status)
        learned_free(learned);
    else
        *opened = learned;
    return status;
}

/* ---- Pages */

/* Computes to[G][head_dim] = sums[G][codes] C. */
static void times_codebook(struct codec_shape shape, const float *sums, size_t G, float *to) {
    const struct learned *learned = shape.learned;
    size_t hd = shape.head_dim, codes = shape.bits;
    memset(to, 0, G * hd * sizeof *to);
    for (size_t c = 0; c < hd; c += SCALE_GROUP) commvq_ops()->add_bytes(sums, G, codes, learned->centroids_u8 + c, hd, to + c, hd);
    for (size_t g = 0; g < G; g++) {
        float all = 0;
        for (size_t i = 0; i < codes; i++) all += sums[g * codes + i];
        for (size_t c = 0; c < hd; c++) to[g * hd + c] = learned->low[c] * all + learned->step[c] * to[g * hd + c];
    }
}

/* Writes shapes[n][head_dim] of the tokens first, first + 1, ..., n <= MOST_TOGETHER. */
static void read_shapes(struct codec_shape shape, const uint8_t *codes, size_t first, size_t n, float *shapes) {
    float bits[MOST_TOGETHER * ADDITIVE_MOST_CODES];
    for (size_t t = 0; t < n; t++) {
        const uint8_t *octet = codes + (first + t) / 8 * shape.bits;
        for (size_t i = 0; i < shape.bits; i++) bits[t * shape.bits + i] = (float)(octet[i] >> (first + t) % 8 & 1);
    }
    times_codebook(shape, bits, n, shapes);
}

/* Writes bits[n][codes / 8] of tokens to octets[8][codes], which begin as zeros. */
static void write_codes(const uint8_t *bits, size_t n, size_t codes, uint8_t *octets) {
    for (size_t t = 0; t < n; t++) {
        uint8_t *to = octets + t / 8 * codes;
        for (size_t i = 0; i < codes; i++) to[i] = (uint8_t)(to[i] | (bits[(t * codes + i) / 8] >> i % 8 & 1) << t % 8);
    }
}

/* Returns the gain that is best in least squares. */
static float fit_gain(const float *x, const float *shape, size_t hd) {
    float square = vector_ops()->dot(shape, shape, hd);
    return square > 0 ? vector_ops()->dot(x, shape, hd) / square : 0;
}

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    const struct learned *learned = shape.learned;
    size_t hd = shape.head_dim;
    float unit[PAGE_TOKENS * CODEC_HEAD_DIM_MAX], centred[CODEC_HEAD_DIM_MAX];
    uint8_t bits[PAGE_TOKENS * ADDITIVE_MOST_CODES / 8], *gains = page, *codes = gains + GAIN_BYTES;
    memset(page, 0, codec_page_bytes(&codec_additive, shape, side));
    if (!n) return;
    for (size_t t = 0; t < n; t++) normalization_apply(rows + t * hd, learned->mean, hd, unit + t * hd);
    additive_search_find(&learned->search, unit, n, hd, bits);
    write_codes(bits, n, shape.bits, codes);
    for (size_t first = 0; first < n; first += MOST_TOGETHER) {
        size_t count = n - first < MOST_TOGETHER ? n - first : MOST_TOGETHER;
        read_shapes(shape, codes, first, count, unit);
        for (size_t t = 0; t < count; t++) {
            normalization_centre(rows + (first + t) * hd, learned->mean, hd, centred);
            gains[first + t] = gain_code(learned->scale, fit_gain(centred, unit + t * hd, hd));
        }
    }
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    const struct learned *learned = shape.learned;
    const uint8_t *gains = page;
    size_t hd = shape.head_dim;
    (void)side;
    for (size_t first = 0; first < PAGE_TOKENS; first += MOST_TOGETHER)
        read_shapes(shape, codes_of(page), first, MOST_TOGETHER, rows + first * hd);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        float gain = learned->gain[gains[t]];
        for (size_t c = 0; c < hd; c++) rows[t * hd + c] = learned->mean[c] + gain * rows[t * hd + c];
    }
}

static void gather_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at) {
    const uint8_t *gains = from;
    uint8_t *page = to;
    (void)side;
    for (size_t k = 0; k < n; k++, at++) {
        const uint8_t *octet = codes_of(from) + slots[k] / 8 * shape.bits;
        uint8_t *into = page + GAIN_BYTES + at / 8 * shape.bits, keep = (uint8_t) ~(1u << at % 8);
        page[at] = gains[slots[k]];
        for (size_t i = 0; i < shape.bits; i++) into[i] = (uint8_t)((into[i] & keep) | (octet[i] >> slots[k] % 8 & 1) << at % 8);
    }
}

/* ---- Reading: [G][codes] sums of weights times gains by bit of the code, and [G] of weights for the mean. */

static size_t sums_of_query(struct codec_shape shape) { return shape.bits; }

static size_t code_sum_floats(struct codec_shape shape) { return shape.group * (sums_of_query(shape) + 1); }

static void accumulate_by_code(struct codec_shape shape, const float *weights, const void *page, float *to) {
    const struct learned *learned = shape.learned;
    float gains[PAGE_TOKENS], scaled[MOST_TOGETHER * PAGE_TOKENS], *sums = to + (size_t)shape.group * shape.bits;
    vector_ops()->look_up_gains(learned->gain, page, gains);
    for (size_t first = 0, G; first < shape.group; first += G) {
        G = shape.group - first < MOST_TOGETHER ? shape.group - first : MOST_TOGETHER;
        for (size_t g = 0; g < G; g++)
            sums[first + g] += vector_ops()->scale_weights(weights + (first + g) * PAGE_TOKENS, gains, scaled + g * PAGE_TOKENS);
        commvq_ops()->accumulate_by_code(scaled, G, shape.bits, codes_of(page), to + first * shape.bits);
    }
}

static void finish_code_sums(struct codec_shape shape, const float *from, float *acc) {
    const struct learned *learned = shape.learned;
    const float *sums = from + (size_t)shape.group * shape.bits;
    size_t hd = shape.head_dim;
    float values[MOST_TOGETHER * CODEC_HEAD_DIM_MAX];
    for (size_t first = 0, G; first < shape.group; first += G) {
        G = shape.group - first < MOST_TOGETHER ? shape.group - first : MOST_TOGETHER;
        times_codebook(shape, from + first * shape.bits, G, values);
        for (size_t g = 0; g < G; g++) {
            float *to = acc + (first + g) * hd;
            for (size_t c = 0; c < hd; c++) to[c] += sums[first + g] * learned->mean[c] + values[g * hd + c];
        }
    }
}

static void accumulate_values(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    float sums[MOST_TOGETHER * (ADDITIVE_MOST_CODES + 1)];
    struct codec_shape some = shape;
    for (size_t first = 0; first < shape.group; first += some.group) {
        some.group = (uint32_t)(shape.group - first < MOST_TOGETHER ? shape.group - first : MOST_TOGETHER);
        memset(sums, 0, code_sum_floats(some) * sizeof *sums);
        accumulate_by_code(some, weights + first * PAGE_TOKENS, page, sums);
        finish_code_sums(some, sums, acc + first * shape.head_dim);
    }
}

const struct cpu_codec cpu_codec_additive = {
    .format = &codec_additive,
    .encode = encode,
    .decode = decode,
    .accumulate_values = accumulate_values,
    .gather_tokens = gather_tokens,
    .learned =
        &(const struct codec_learned){
            .make = learned_new, .free = learned_free, .bytes = learned_bytes, .predict_bytes = predict_learned_bytes},
    .code_sums = &(const struct codec_code_sums){
        .floats = code_sum_floats, .row = sums_of_query, .add = accumulate_by_code, .finish = finish_code_sums}};
