/* Implements the codec comm: keys before rotation, as sums of codewords that commute with RoPE (CommVQ, Li et al. 2025, section 4.2
 * and A.1).
 *
 *     key = mean + gain * shape,   shape = sum over rounds of z_r[a_r] + i z_r[b_r]
 *
 * Channels of a head that RoPE rotates together are a complex number; a sub-vector of up to 64 of them has one code, two indices of
 * 6 bits, for each round. Each round codes what the ones before have left, so that the first of many rounds are a coarser code of
 * their own. Tables are learned by train/em.c from keys normalized as format/normalization.h says: about their mean, which commutes
 * as well and costs no bits, and at a size of 1. The gain, one byte for each token and KV head, is set last and keeps the key's
 * norm: the paper has one norm for each token and layer in 16 bits, which a page, of one KV head, cannot share.
 *
 * Tables are read as integers of 7 bits with a step for each pair. Encoding sees the same numbers as every way of reading: a round
 * makes up for what earlier ones lost in rounding, so that it costs next to nothing, and sums are exact. */
#include "backend/cpu/codec/commvq.h"
#include "backend/cpu/codec/commvq_search.h"

#include "backend/cpu/codec/normalization.h"
#include "backend/cpu/codec/transpose.h"
#include "backend/cpu/kernels/commvq/ops.h"
#include "backend/cpu/kernels/pq/code_planes.h"
#include "backend/cpu/kernels/pq/ops.h"
#include "backend/cpu/kernels/select/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

#define LEAST_WIDTH (2 * COMMVQ_LEAST_PAIRS)
#define MOST_WIDTH (2 * COMMVQ_MOST_PAIRS)
#define GAIN_BYTES PAGE_TOKENS
#define HALF_FLOATS (COMMVQ_ENTRIES * COMMVQ_ENTRIES)

struct learned {
    struct commvq_code code; /* its arrays are these */
    int8_t *rows;
    int8_t *planes; /* NULL where the processor's kernels do not read them */
    float *half;    /* [subvectors][rounds][entries][entries], of the search */
    size_t row_bytes, plane_bytes, half_bytes;
    float steps[CODEC_HEAD_DIM_MAX / LEAST_WIDTH * COMMVQ_LANES]; /* wider subvectors need no more */
    float inverses[CODEC_HEAD_DIM_MAX / LEAST_WIDTH * COMMVQ_LANES];
    float largest[CODEC_HEAD_DIM_MAX / LEAST_WIDTH * COMMVQ_LANES];
    uint8_t channels[CODEC_HEAD_DIM_MAX], span[COMMVQ_MOST_ROUNDS];
    float mean[CODEC_HEAD_DIM_MAX];
    float scale;
    float gain[256]; /* of each code */
};

/* ---- What is learned */

/* Returns where the normalization begins. */
static size_t normalization_at(struct codec_shape shape) { return commvq_table_numbers(shape) + COMMVQ_PAIRING_FLOATS; }

static void learned_free(void *opened) {
    struct learned *learned = opened;
    if (!learned) return;
    memory_free(learned->rows);
    memory_free(learned->planes);
    memory_free(learned->half);
    memory_free(learned);
}

/* These functions count the bytes of the three arrays: rows of stride numbers, planes for tiers that look up in registers, and the
 * search's. */
static size_t row_bytes(struct codec_shape shape) {
    return commvq_subvectors(shape) * commvq_rounds(shape) * COMMVQ_ENTRIES * 2 * memory_round_up(shape.width / 2, COMMVQ_LANES);
}
static size_t plane_bytes(struct codec_shape shape) {
    return pq_ops()->has_register_lut ? commvq_subvectors(shape) * (shape.width / 2) * commvq_rounds(shape) * 2 * COMMVQ_ENTRIES
                                      : 0;
}
static size_t half_bytes(struct codec_shape shape) {
    return commvq_subvectors(shape) * commvq_rounds(shape) * HALF_FLOATS * sizeof(float);
}

static size_t learned_bytes(const void *opened) {
    const struct learned *learned = opened;
    return sizeof *learned + learned->row_bytes + learned->plane_bytes + learned->half_bytes;
}

static void set_planes(struct learned *learned) {
    const struct commvq_code *c = &learned->code;
    for (size_t i = 0; i < c->subvectors * c->pairs * c->rounds; i++) {
        size_t subvector = i / (c->pairs * c->rounds), j = i / c->rounds % c->pairs, round = i % c->rounds;
        for (size_t l = 0; l < COMMVQ_ENTRIES; l++) {
            const int8_t *row = c->rows + ((subvector * c->rounds + round) * COMMVQ_ENTRIES + l) * 2 * c->stride;
            int8_t *to = learned->planes + i * 2 * COMMVQ_ENTRIES + l;
            to[0] = row[j];
            to[COMMVQ_ENTRIES] = row[c->stride + j];
        }
    }
}

/* Reads a round's table with its steps. */
static void read_table(const struct commvq_code *c, size_t subvector, size_t round, float *table) {
    const int8_t *rows = c->rows + (subvector * c->rounds + round) * COMMVQ_ENTRIES * 2 * c->stride;
    const float *steps = c->steps + subvector * c->stride;
    for (size_t i = 0; i < 2 * COMMVQ_ENTRIES; i++)
        for (size_t j = 0; j < c->pairs; j++) table[i * c->pairs + j] = steps[j] * (float)rows[i * c->stride + j];
}

static void set_halves(struct learned *learned) {
    float table[COMMVQ_ENTRIES * MOST_WIDTH];
    const struct commvq_code *c = &learned->code;
    for (size_t i = 0; i < c->subvectors * c->rounds; i++) {
        struct commvq_search search = {c->pairs, COMMVQ_ENTRIES, COMMVQ_ENTRIES, NULL, learned->half + i * HALF_FLOATS};
        read_table(c, i / c->rounds, i % c->rounds, table);
        commvq_search_half(&search, table);
    }
}

static size_t predict_learned_bytes(struct codec_shape shape, enum codec_side side, const uint16_t *halves) {
    (void)side, (void)halves;
    return sizeof(struct learned) + row_bytes(shape) + plane_bytes(shape) + half_bytes(shape);
}

static enum terse_status learned_new(struct codec_shape shape, enum codec_side side, const float *floats, void **opened,
                                     struct terse_error *error) {
    (void)side;
    *opened = NULL;
    struct learned *learned = memory_zeros(1, sizeof *learned);
    if (!learned) return status_no_memory(error, sizeof *learned, "a codebook");
    struct commvq_code *c = &learned->code;
    const float *normalization = floats + normalization_at(shape);
    *c = (struct commvq_code){commvq_subvectors(shape), shape.width / 2, commvq_rounds(shape), .channels = learned->channels,
                              .mean = learned->mean};
    c->stride = memory_round_up(c->pairs, COMMVQ_LANES);
    c->steps = learned->steps;
    c->inverses = learned->inverses;
    c->largest = learned->largest;
    c->span = learned->span;
    struct commvq_pairing pairing = commvq_pairing_of(shape, floats);
    c->rotated = pairing.pairs;
    c->adjacent = pairing.adjacent;
    learned->row_bytes = row_bytes(shape);
    learned->plane_bytes = plane_bytes(shape);
    learned->half_bytes = half_bytes(shape);
    c->rows = learned->rows = memory_zeros(learned->row_bytes, 1);
    learned->half = memory_array(learned->half_bytes, 1);
    if (learned->plane_bytes) c->planes = learned->planes = memory_array(learned->plane_bytes, 1);
    if (!learned->rows || !learned->half || (learned->plane_bytes && !learned->planes)) {
        size_t bytes = learned->row_bytes + learned->plane_bytes + learned->half_bytes;
        learned_free(learned);
        return status_no_memory(error, bytes, "a codebook");
    }
    for (size_t k = 0; k < c->subvectors; k++) {
        const size_t rows = c->rounds * COMMVQ_ENTRIES, at = k * c->stride;
        commvq_integers(c->pairs, c->rounds, floats + k * rows * shape.width, c->stride, learned->rows + rows * 2 * at,
                        learned->steps + at, learned->inverses + at);
    }
    c->spans = commvq_spans(c->subvectors, c->rounds, c->stride, learned->rows, learned->span, learned->largest);
    if (learned->planes) set_planes(learned);
    set_halves(learned);
    for (size_t k = 0; k < c->subvectors; k++) commvq_channels(shape, floats, k, learned->channels + k * shape.width);
    memcpy(learned->mean, normalization, shape.head_dim * sizeof *normalization);
    learned->scale = normalization[shape.head_dim];
    gain_table(learned->scale, learned->gain);
    *opened = learned;
    return TERSE_OK;
}

/* ---- Pages */

const struct commvq_code *commvq_code_of(struct codec_shape shape) { return &((const struct learned *)shape.learned)->code; }

const void *commvq_codes(const void *page) { return (const uint8_t *)page + GAIN_BYTES; }

void commvq_gains(struct codec_shape shape, const void *page, float *gains) {
    const struct learned *learned = shape.learned;
    vector_ops()->look_up_gains(learned->gain, page, gains);
}

/* Writes the codes of one sub-vector's rows[n][2 pairs], from which the codewords are subtracted round by round. */
static void encode_subvector(const struct learned *learned, size_t subvector, float *rows, size_t n, uint8_t *codes) {
    const struct commvq_code *c = &learned->code;
    float table[COMMVQ_ENTRIES * MOST_WIDTH], panel[MOST_WIDTH * 2 * COMMVQ_ENTRIES];
    for (size_t r = 0; r < c->rounds; r++, codes += COMMVQ_PART) {
        uint16_t code[PAGE_TOKENS] = {0};
        struct commvq_search search = {c->pairs, COMMVQ_ENTRIES, COMMVQ_ENTRIES, panel,
                                       learned->half + (subvector * c->rounds + r) * HALF_FLOATS};
        read_table(c, subvector, r, table);
        commvq_search_panel(&search, table);
        commvq_search_nearest(&search, rows, n, 2 * c->pairs, code);
        commvq_subtract(table, c->pairs, COMMVQ_ENTRIES, code, n, rows, 2 * c->pairs);
        code_planes_write(code, COMMVQ_BITS, codes);
    }
}

/* Returns the gain that keeps a centred key's norm. */
static float keep_norm(const float *x, const float *shape, size_t hd) {
    float square = vector_ops()->dot(shape, shape, hd);
    return square > 0 ? sqrtf(vector_ops()->dot(x, x, hd) / square) : 0;
}

/* Encodes a page. The normalized rows, less what is left of them after coding, are their shapes. */
static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    const struct learned *learned = shape.learned;
    const struct commvq_code *c = &learned->code;
    size_t hd = shape.head_dim, width = shape.width;
    float unit[PAGE_TOKENS * CODEC_HEAD_DIM_MAX], some[PAGE_TOKENS * MOST_WIDTH], centred[CODEC_HEAD_DIM_MAX];
    uint8_t *gains = page, *codes = gains + GAIN_BYTES;
    memset(page, 0, codec_page_bytes(&codec_commvq, shape, side));
    for (size_t t = 0; t < n; t++) normalization_apply(rows + t * hd, learned->mean, hd, unit + t * hd);
    for (size_t k = 0; k < c->subvectors; k++) {
        const uint8_t *channels = learned->channels + k * width;
        for (size_t t = 0; t < n; t++)
            for (size_t j = 0; j < width; j++) some[t * width + j] = unit[t * hd + channels[j]];
        encode_subvector(learned, k, some, n, codes + k * c->rounds * COMMVQ_PART);
        for (size_t t = 0; t < n; t++)
            for (size_t j = 0; j < width; j++) unit[t * hd + channels[j]] -= some[t * width + j];
    }
    for (size_t t = 0; t < n; t++) {
        normalization_centre(rows + t * hd, learned->mean, hd, centred);
        gains[t] = gain_code(learned->scale, keep_norm(centred, unit + t * hd, hd));
    }
}

static void channels(struct codec_shape shape, const void *page, float *to) {
    float gains[PAGE_TOKENS];
    commvq_gains(shape, page, gains);
    commvq_ops()->decode(commvq_code_of(shape), gains, commvq_codes(page), to);
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    (void)side;
    float by_channel[CODEC_HEAD_DIM_MAX * PAGE_TOKENS];
    channels(shape, page, by_channel);
    transpose_channels(by_channel, shape.head_dim, rows, shape.head_dim);
}

static void gather_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at) {
    (void)side;
    select_ops()->gather_codes(from, 1, 8, slots, n, to, at);
    select_ops()->gather_codes(commvq_codes(from), commvq_subvectors(shape) * commvq_rounds(shape), COMMVQ_BITS, slots, n,
                               (uint8_t *)to + GAIN_BYTES, at);
}

/* ---- Scores: the choice of algorithm
 *
 * Keys are decoded once for all queries of a KV head, rotated and scored: in i16 where the tier does so, else in floats. The paper
 * makes a table for each query instead, whose sums are rotated by the token's whole angle; it looks up as often, in numbers four
 * times as wide, for each query. Measured (ns per token and KV head, 4 queries, one thread; the last line is a whole layer's
 * attention with the paper's keys, 8192 tokens, as a multiple of ours):
 *
 *     head_dim, rounds          128, 11   128, 21   64, 5   64, 11
 *     AVX-512  in i16              33        50       12       18
 *              in floats           46        63       17       23
 *     AVX2                         90       118       35       45
 *     AVX-512  by table            14        23        8       10 times
 *
 * So `score_rotated` decodes at every shape; the cache has no table to hand over. With i16, looking up is two thirds to four fifths
 * of the time at head_dim 128, and the one port that permutes bytes bounds it: four permutations for a pair, a round and 64
 * tokens. */

void commvq_score_decoded(struct codec_shape shape, const float *q, const struct key_rotation *rotation, const void *page,
                          float *logits) {
    float keys[CODEC_HEAD_DIM_MAX * PAGE_TOKENS], gains[PAGE_TOKENS];
    commvq_gains(shape, page, gains);
    if (commvq_ops()->score_rotated &&
        commvq_ops()->score_rotated(commvq_code_of(shape), rotation, gains, q, shape.group, commvq_codes(page), logits))
        return;
    channels(shape, page, keys);
    pq_ops()->score_rotated_channels(rotation, q, shape.group, shape.head_dim, keys, logits);
}

void commvq_prepare(struct codec_shape shape, const float *q, float *tables) {
    const struct commvq_code *c = commvq_code_of(shape);
    for (size_t g = 0; g < shape.group; g++) commvq_ops()->prepare(c, q + g * shape.head_dim, tables + g * commvq_table_floats(c));
}

void commvq_score_by_table(struct codec_shape shape, const float *tables, const struct key_rotation *rotation, const void *page,
                           float *logits) {
    const struct commvq_code *c = commvq_code_of(shape);
    float gains[PAGE_TOKENS];
    commvq_gains(shape, page, gains);
    for (size_t g = 0; g < shape.group; g++)
        commvq_ops()->look_up(c, rotation, tables + g * commvq_table_floats(c), gains, commvq_codes(page),
                              logits + g * PAGE_TOKENS);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    (void)tables;
    static const float none[PAGE_TOKENS];
    commvq_score_decoded(shape, q, &(struct key_rotation){.cosine = none, .sine = none}, page, logits);
}

const struct cpu_codec cpu_codec_commvq = {.format = &codec_commvq,
                                           .encode = encode,
                                           .decode = decode,
                                           .score = score,
                                           .channels = channels,
                                           .gather_tokens = gather_tokens,
                                           .learned = &(const struct codec_learned){.make = learned_new,
                                                                                    .free = learned_free,
                                                                                    .bytes = learned_bytes,
                                                                                    .predict_bytes = predict_learned_bytes},
                                           .score_rotated = commvq_score_decoded};
