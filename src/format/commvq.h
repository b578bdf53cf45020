/* Describes CommVQ's parameters and codes (Li et al. 2025): what the codecs `comm` (keys, section 4.2) and `additive` (values,
 * section 4.1) keep in a codebook, and the limits of their codes. It is plain C, for C and CUDA C++ alike.
 *
 * Keys: channels that RoPE rotates together are a complex number; a sub-vector is up to 64 of them. Each round of a sub-vector has
 * a table of 64 entries of that many complex numbers, and a code of two indices (a, b), 6 bits each, that stands for z[a] + i z[b].
 * Parameters of a layer and KV head: tables[subvectors][rounds][COMMVQ_ENTRIES][width], each row the real parts of a sub-vector's
 * pairs and then the imaginary parts; the pairing, two numbers; then format/normalization.h's.
 *
 * Values: parameters of a layer and KV head are C[bits][head_dim], rows of which a value is a sum; then
 * format/normalization.h's. */
#ifndef TERSE_FORMAT_COMMVQ_H
#define TERSE_FORMAT_COMMVQ_H

#include "format/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COMMVQ_ENTRIES 64     /* of a table in pages: two indices of 6 bits are a code of 12 */
#define COMMVQ_BITS 12        /* of a code, a in its lower 6 */
#define COMMVQ_PART 96        /* bytes of the codes of 64 tokens */
#define COMMVQ_MOST_PAIRS 64  /* of a sub-vector */
#define COMMVQ_LEAST_PAIRS 16 /* smaller subvectors err more at equal bits */
#define COMMVQ_MOST_ROUNDS 64
#define COMMVQ_PAIRING_FLOATS 2

/* The whole rounds that come nearest to `bits` bits per value of sub-vectors of `width` channels. */
#define COMMVQ_ROUNDS(width, bits) (((width) * (bits) + COMMVQ_BITS / 2) / COMMVQ_BITS)

#define ADDITIVE_STEP 32        /* codes are a multiple of so many bits */
#define ADDITIVE_MOST_CODES 512 /* bits of a code: 2 for each of 256 channels */

/* Returns the coding of keys of `bits` bits per value, as near as whole rounds come, the gain not counted. Sub-vectors are as large
 * as they can be, since at equal bits larger ones err less. 1 and 2 bits are 11 and 21 rounds at head_dim 128 (1.03 and 1.97 bits),
 * 5 and 11 at 64. */
struct coding commvq_coding(uint32_t head_dim, uint32_t bits);
/* Returns the coding of values of `bits` bits per value, the gain not counted: the width is the whole head, the bits those of a
 * row's code. */
struct coding additive_coding(uint32_t head_dim, uint32_t bits);

static inline size_t commvq_subvectors(struct codec_shape shape) { return shape.head_dim / shape.width; }
static inline size_t commvq_rounds(struct codec_shape shape) { return shape.bits / COMMVQ_BITS; }
static inline size_t commvq_table_numbers(struct codec_shape shape) {
    return commvq_subvectors(shape) * commvq_rounds(shape) * COMMVQ_ENTRIES * shape.width;
}

/* A pairing says which channels are a complex number, and is stored beside the tables: `pairs` RoPE pairs, channels (2i, 2i + 1) if adjacent,
 * else (i, i + pairs). Channels from 2 pairs on, which no rotation touches, pair up as neighbours. */
struct commvq_pairing {
    size_t pairs;
    bool adjacent;
};
void commvq_set_pairing(struct codec_shape shape, float *parameters, size_t pairs, bool adjacent);
struct commvq_pairing commvq_pairing_of(struct codec_shape shape, const float *parameters);
/* Writes to channels[width] where in the head the numbers of a sub-vector's row lie. The parameters hold a pairing. */
void commvq_channels(struct codec_shape shape, const float *parameters, size_t subvector, uint8_t *channels);

/* In memory, tables are integers of 7 bits with a step for each pair, and rows of values bytes with a least number and a step for
 * each channel. Encoding and every way of reading see these numbers, on every backend, so that a round makes up for what rounding
 * has cost the rounds before. */
#define COMMVQ_LARGEST 63
#define COMMVQ_SUM 127 /* of a span: a byte's */

/* Makes integers of a sub-vector's tables[rounds][COMMVQ_ENTRIES][2 pairs]: rows[rounds][COMMVQ_ENTRIES][2][stride], what lies past
 * `pairs` as it was; steps[pairs] and inverses[pairs], both 0 where all numbers of a pair are next to nothing. */
void commvq_integers(size_t pairs, size_t rounds, const float *tables, size_t stride, int8_t *rows, float *steps, float *inverses);
/* Divides rounds into spans: a round joins the last span if no sum of codewords of it, of any pair of rows[subvectors][rounds]
 * [COMMVQ_ENTRIES][2][stride], can exceed COMMVQ_SUM. Writes the rounds of each to span[], adds to largest[subvectors][stride] what
 * no number of a pair's sum over all rounds exceeds, and returns how many spans there are. */
size_t commvq_spans(size_t subvectors, size_t rounds, size_t stride, const int8_t *rows, uint8_t *span, float *largest);
/* Makes bytes of C[codes][head_dim], which becomes what they stand for: low + step levels, levels at most 127. */
void additive_levels(size_t codes, size_t head_dim, float *C, uint8_t *levels, float *low, float *step);

/* These are the parts of codec_check and codec_check_parameters for the two codecs; they leave the normalization out. */
enum terse_status commvq_check(struct codec_shape shape, enum codec_side side, struct terse_error *error);
enum terse_status additive_check(struct codec_shape shape, enum codec_side side, struct terse_error *error);
enum terse_status commvq_check_parameters(struct codec_shape shape, const float *parameters, struct terse_error *error);
enum terse_status additive_check_parameters(struct codec_shape shape, const float *parameters, struct terse_error *error);

#ifdef __cplusplus
}
#endif

#endif
