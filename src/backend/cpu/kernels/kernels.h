/* Every inner loop of terse, one function pointer each, and the choice of instruction set.
 *
 * scalar_*.c fill every slot and are the reference: compiled without fast-math and without auto-vectorisation. avx2_*.c,
 * avx512_*.c and neon_*.c overlay the slots that they do better. The choice is made at run time from what the processor has;
 * TERSE_CPU=scalar|avx2|avx512|neon lowers it, so one binary tests every tier (tests/test_kernels*.c hold each slot to the scalar
 * one, and that to double precision).
 *
 * Pointers need no alignment beyond their element's unless said. Arrays may be read and written only within the sizes given
 * (guard pages check that). Accumulation is in fp32 or exact.
 */
#ifndef TERSE_BACKEND_CPU_KERNELS_KERNELS_H
#define TERSE_BACKEND_CPU_KERNELS_KERNELS_H

#include "backend/cpu/codec/binary_code_search.h"
#include "backend/cpu/kernels/commvq/commvq.h"
#include "backend/cpu/kernels/pq/pq.h"
#include "gguf/gguf.h"

#include <stddef.h>
#include <stdint.h>

#define NEAREST_WIDTH 32 /* centroids; two of the widest registers */

#define KERNELS_MOST_CHANNELS 256 /* hd of the cache's kernels */

enum kernels_isa { KERNELS_SCALAR, KERNELS_AVX2, KERNELS_AVX512, KERNELS_NEON };

struct kernels {
    const char *name; /* "scalar", "avx2", "avx512", "neon" */

    /* n half floats. Both directions give the same bits in every tier: round to nearest even, subnormals kept, overflow to
     * infinity, NaN kept and made quiet. */
    void (*half_to_float)(const uint16_t *half, float *out, size_t n);
    void (*float_to_half)(const float *in, uint16_t *half, size_t n);

    /* Vectors of n floats. */
    float (*dot)(const float *a, const float *b, size_t n);
    /* y += scale x */
    void (*axpy)(float scale, const float *x, float *y, size_t n);
    /* out = gain x / sqrt(mean of x^2 + epsilon); out may be x. */
    void (*rms_norm)(const float *x, const float *gain, float epsilon, float *out, size_t n);
    /* gate = gate / (1 + exp(-gate)) * up; relative error at most 5e-7, and 1e-36 |up| where exp overflows. */
    void (*silu_mul)(float *gate, const float *up, size_t n);
    /* x[i] = exp(x[i] - max) in place, returns their sum. Of the difference as a float the relative error is at most 1e-7, and
     * 1.4e-45 where the result is subnormal. exp(-inf) = 0 whatever max is: with max = -inf, what max() says of an empty or fully
     * masked row, all -inf become 0 and the sum is 0. NaN stays NaN. */
    float (*exp_sum)(float *x, float max, size_t n);
    /* The largest, passing over NaN; -INFINITY when n = 0. */
    float (*max)(const float *x, size_t n);
    /* Both of 64 numbers in each of n tiles that lie `stride` floats apart. */
    float (*max_pages)(const float *x, size_t n, size_t stride);
    float (*exp_pages)(float *x, float max, size_t n, size_t stride);
    /* A gain for each of 64 tokens: out[64] = table[256] at the codes; and scaled[64] = weights times gains, which returns the weights'
     * sum. */
    void (*look_up_gains)(const float *table, const uint8_t *codes, float *out);
    float (*scale_weights)(const float *weights, const float *gains, float *scaled);
    /* AnTKV's Anchor Scores of 64 tokens: keys[j] += sum of A (1 - A) norms[r] and values[j] += sum of A over the rows, where A =
     * weights[r][j] factors[r]; rows lie `stride` floats apart. Lanes do not mix. */
    void (*add_anchors)(const float *weights, size_t stride, const float *factors, const float *norms, size_t rows, float *keys,
                        float *values);

    /* Weights as stored, indexed by enum tensor_type; NULL: type not supported. n is a multiple of the type's block. */
    void (*dequantize[TENSOR_TYPES])(const void *row, float *out, size_t n);
    /* y[r] = <row r of w, x> for `rows` rows of n elements, read as they are; x in full precision, but that vector tiers may take
     * what meets Q4_0, Q8_0 and Q4_K as fixed point: each number off by at most 2^-15 of the largest of its 32, and 0 where that is
     * less than 1e-25. */
    void (*matvec[TENSOR_TYPES])(const void *w, size_t row_bytes, size_t rows, size_t n, const float *x, float *y);

    /* Nearest centroids, a panel of `width` (a multiple of NEAREST_WIDTH) at a time; backend/cpu/codec/nearest.h is the search made of it.
     * Rows x[n][d]; centroids by channel panel[d][width], half[width] half their squared norms. Where the least half[j] - <x[r],
     * c[j]> is less than best[r], it becomes best[r], and code[r] becomes first + j, the lowest such j. What is NaN is never less.
     */
    void (*nearest)(const float *x, size_t n, size_t d, const float *panel, const float *half, size_t width, uint32_t first,
                    float *best, uint32_t *code);

    /* Codecs of the cache: shapes and layouts in format/page_layout.h. G = queries, hd = head_dim (any multiple of 32 up to 256).
     * score: logits[G][64] = <q[G][hd], key t>. mix: acc[G][hd] += sum over t of weights[G][64] value t. Any G; the block is read
     * from memory once. The vector tiers prefetch 16 KB ahead: blocks that are read one after another should lie so. */
    void (*score_f16)(const float *q, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_f16)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    /* q8_0 and q4_0 score in two steps: the order within tables[G][hd] is the tier's own, made once of q[G][hd] for all blocks. Tiers
     * that multiply integers take numbers as fixed point, a query's and each weight times a scale: each number of a query is off by at
     * most 1 / 65000 of its query's largest, with q4_0 1 / 253 of the largest of its 32; each product of a weight and a scale by
     * 1 / 65000 of the largest of its query and 32 channels; what is below 1e-30 then counts for nothing. */
    void (*prepare_q8_0)(const float *q, size_t G, size_t hd, float *tables);
    void (*score_q8_0)(const float *tables, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_q8_0)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    void (*prepare_q4_0)(const float *q, size_t G, size_t hd, float *tables);
    void (*score_q4_0)(const float *tables, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_q4_0)(const float *weights, size_t G, size_t hd, const void *page, float *acc);

    /* kivi with 4 and 2 bits. The same tiers take a number of a query times its channel's scale, and a weight times a token's, as fixed
     * point: the former is off by at most 1 / 253 of the largest of its query and 32 tokens, the latter by 1 / 65000 of the largest of
     * its query and 32 channels. */
    void (*score_kivi_4)(const float *q, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_kivi_4)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    void (*score_kivi_2)(const float *q, size_t G, size_t hd, const void *page, float *logits);
    void (*accumulate_kivi_2)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    /* The same, of q4_0 as well, for weights that are a small part of all that their queries give: products of a weight and a scale may
     * be off by 1 / 253 of the largest. Whether this is the faster way, else it is the same: */
    bool int8_is_faster;
    void (*accumulate_int8_q4_0)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    void (*accumulate_int8_kivi_4)(const float *weights, size_t G, size_t hd, const void *page, float *acc);
    void (*accumulate_int8_kivi_2)(const float *weights, size_t G, size_t hd, const void *page, float *acc);

    /* out[G][32], rows ldo apart, += a[G][K] b[K][32] of bytes up to 127, rows ldb apart (additive's rows). */
    void (*add_bytes)(const float *a, size_t G, size_t K, const uint8_t *b, size_t ldb, float *out, size_t ldo);

    /* Keys of codec sign: mean[hd] + sign * alpha[hd] * magnitude. As `score` of the codecs above in two steps: the order within
     * tables[G][kernels_sign_floats] is the tier's own, made once of the queries for all blocks. Vector tiers may take a query times
     * alpha as fixed point: each number off by at most 1 / 253 of the largest of its 32. */
    void (*prepare_sign)(const float *q, const float *mean, const float *alpha, size_t G, size_t hd, float *tables);
    void (*score_sign)(const float *tables, size_t G, size_t hd, const void *page, float *logits);

    /* Choosing tokens. scores[64] of a block of index sign: sums over its planes[n][64] of tables[2 n][16], which each byte's low
     * and then its high four bits look up. n is at most 64. */
    void (*scores_sign)(const uint8_t *tables, size_t n, const uint8_t *planes, uint16_t *scores);
    /* bounds[4] of a block of index quest, one for each page: sums of the larger of q[c] least[c] and q[c] most[c]. */
    void (*scores_quest)(const float *q, size_t hd, const void *page, float *bounds);
    /* How many of scores[n] are at least `least`. */
    size_t (*count_scores)(const uint16_t *scores, size_t n, uint16_t least);
    /* Writes the places of scores above `threshold`, and of those equal to it all but the first `skip`, in order.
     * Returns how many there are. n is below 2^32. */
    size_t (*list_scores)(const uint16_t *scores, size_t n, uint16_t threshold, size_t skip, uint32_t *tokens);

    /* Packing tokens of blocks. `parts` sets of code planes (as pq's in page_layout.h; 1 to 12 bits, and 16 for halves [parts][64]):
     * codes of the slots slots[n] become those of slots at, at + 1, ... of `to`, whose other slots stay. n + at <= 64. */
    void (*gather_codes)(const void *from, size_t parts, unsigned bits, const uint8_t *slots, size_t n, void *to, size_t at);

    /* Product quantization, hd = parts * width; backend/cpu/kernels/pq/pq.h. Whether the tier reads planes and levels, which makes decoding
     * cheap, and must be given them: */
    bool has_register_lut;
    /* As vectors: channels[hd][64] of keys, rows[64][hd] of either. */
    void (*channels_pq)(const struct pq_codebook *p, const void *page, float *channels);
    void (*rows_pq)(const struct pq_codebook *p, const void *page, float *rows);
    /* score and mix by centroids, decoded once for all queries. Where levels are read, what they are weighed with is fixed point:
     * each weight, and each number of a query times its channel's step, is off by about 1 / 65278 of its query's largest. */
    void (*score_pq)(const struct pq_codebook *p, const float *q, size_t G, const void *page, float *logits);
    void (*accumulate_pq)(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc);
    /* mix as accumulate_int8_q4_0 is: weights may be off by 1 / 253 of the largest. */
    void (*accumulate_int8_pq)(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *acc);
    /* score by levels in two steps, in tiers with has_register_lut only (else NULL), and where there are levels: fixed[G][pq_i16_floats]
     * of the queries, once for all blocks. */
    void (*quantize_query_pq)(const struct pq_codebook *p, const float *q, size_t G, float *fixed);
    void (*score_i16_pq)(const struct pq_codebook *p, const float *fixed, size_t G, const void *page, float *logits);
    /* score by look-up; the order within tables[pq_table_floats] is the tier's own. Where planes are read, entries are fixed point:
     * off by at most 2^-17 of the widest span that a sub-vector's have. */
    void (*prepare_pq)(const struct pq_codebook *p, const float *q, size_t G, float *tables);
    void (*look_up_pq)(const struct pq_codebook *p, const float *tables, size_t G, const void *page, float *logits);
    /* mix in two steps: tallies[pq_table_floats] += weights by code, then acc[G][hd] += tallies times centroids. */
    void (*accumulate_by_code_pq)(const struct pq_codebook *p, const float *weights, size_t G, const void *page, float *code_sums);
    void (*finish_pq)(const struct pq_codebook *p, const float *code_sums, size_t G, float *acc);

    /* logits[G][64] = <q[G][hd], key t turned by its own angles>: keys[hd][64]; gain and mean in `turn` are not looked at. Pair i is
     * channels (2i, 2i + 1) if `adjacent`, else (i, i + pairs); (a, b) becomes (a cos - b sin, a sin + b cos). Channels from 2
     * pairs on stay. */
    void (*score_rotated)(const struct key_rotation *rotation, const float *q, size_t G, size_t hd, const float *keys,
                          float *logits);
    /* The same of keys in a block, by gain and mean where there are any. Where levels and words of the angles are read, keys and
     * queries are fixed point: each number of a key is off by at most 1 / 2600 of what its pair's mean, levels and the largest gain can
     * come to in size, and what queries are off by makes hd / 30000 of the sum of what a logit's terms can come to. */
    void (*score_rotated_pq)(const struct pq_codebook *p, const struct key_rotation *rotation, const float *q, size_t G,
                             const void *page, float *logits);

    /* CommVQ's keys; backend/cpu/kernels/commvq/commvq.h. out[n][width] = x[n][d], rows `stride` apart, times panel[d][width], a multiple of 32: each
     * product summed by number. */
    void (*products)(const float *x, size_t n, size_t d, size_t stride, const float *panel, size_t width, float *out);
    /* The least of half[a][b] - products[columns + b] - products[a] and where it is, a columns + b, of equal ones the lowest; and
     * all that are less than a limit, in order, of which the first `most` are written: returns how many there are. */
    uint32_t (*least_commvq)(const float *half, size_t entries, size_t columns, const float *products, float *least);
    size_t (*within_commvq)(const float *half, size_t entries, size_t columns, const float *products, float limit, size_t most,
                            uint32_t *cells, float *values);
    /* Keys as vectors, channels[hd][64] = mean + gains[64] times what the codes say. */
    void (*channels_commvq)(const struct commvq_code *c, const float *gains, const void *codes, float *channels);
    /* score_rotated of the same keys, in tiers with has_register_lut only (else NULL). Keys and queries are fixed point: each number of a key is
     * off by at most 1 / 6000 of what its pair's mean, tables and the largest gain can come to in size, and what queries are off by
     * makes hd / 45000 of the sum of what a logit's terms can come to. False, nothing written, where `turn` has no words or the tier
     * does not take such pairs together: the way over channels serves. */
    bool (*score_rotated_commvq)(const struct commvq_code *c, const struct key_rotation *rotation, const float *gains,
                                 const float *q, size_t G, const void *codes, float *logits);
    /* The same keys turned and met by one query q[hd], from tables[commvq_table_floats] made of it once: logits[64]. Angles as for
     * score_rotated; gain and mean in `turn` are not looked at. */
    void (*prepare_commvq)(const struct commvq_code *c, const float *q, float *tables);
    void (*look_up_commvq)(const struct commvq_code *c, const struct key_rotation *rotation, const float *tables,
                           const float *gains, const void *codes, float *logits);

    /* CommVQ's values; backend/cpu/codec/binary_code_search.h. tallies[G][n] += weights[G][64] added up by bit of the code, n a multiple of 32: bit j of
     * codes[8][n]'s byte [o][i] is bit i of token 8 o + j's. Vector tiers take weights as fixed point: each is off by at most
     * 1 / 65406 of the sum of its query's magnitudes. */
    void (*accumulate_by_code_additive)(const float *weights, size_t G, size_t n, const uint8_t *codes, float *code_sums);
    /* spins[count][n] of low energy for couplings[n][n] and what each of a row would feel if none were set, fields[count][n], which
     * becomes what each feels of the others. Rows do not depend on each other. */
    void (*local_search_additive)(const float *couplings, size_t n, size_t count, float *fields, float *spins);
};

/* Floats of a query in the tables of prepare_sign. */
static inline size_t kernels_sign_floats(size_t hd) { return hd + 2; }

/* The best table this processor runs, lowered by TERSE_CPU; chosen at first use, thread-safe. */
const struct kernels *kernels(void);
/* The table of one instruction set, or NULL when this processor or this build lacks it. */
const struct kernels *kernels_for(enum kernels_isa isa);
/* TERSE_E_ARGUMENT when TERSE_CPU is set and names no instruction set that this processor and build offer (kernels() then goes on
 * with the best one): a misspelt mask must not pass for a slow or a fast run. Loading a model asks this. */
enum terse_status kernels_check(struct terse_error *error);

#endif
