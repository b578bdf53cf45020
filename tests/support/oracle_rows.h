/* Declares the numbers that an oracle keeps: rows as they are stored, as codecs give them back, and their rotation. For the oracle's own files. */
#ifndef TESTS_ORACLE_ROWS_H
#define TESTS_ORACLE_ROWS_H

#include "support/cache_oracle.h"

/* Returns the row of all KV heads of a token, of o->k or o->v. */
float *oracle_stored(const struct oracle *o, float *side, uint32_t layer, size_t token);
/* Returns the place that says whether a layer's KV head has kept nothing of a token. */
bool *oracle_dropped(const struct oracle *o, uint32_t layer, uint32_t head, size_t token);
const struct coding *oracle_coding(const struct oracle *o, int side);

/* These round numbers to halves: a row's, and those of tokens [first, last). */
void oracle_round_row(float *x, size_t n);
void oracle_round_tokens(const struct oracle *o, uint32_t layer, size_t first, size_t last);

/* These rotate by position in double precision. */
void oracle_rotate_by(const struct oracle *o, double position, double *x);
void oracle_rotate_floats(const struct oracle *o, double position, float *x);
/* Writes to rotated[CODEC_ROW_MAX] the mean of a head's keys before rotation, which is not in pages, at a position; of the pairs that turn by half a
 * radian or more within a run. Zeros where codecs keep none apart. */
void oracle_rotate_mean(const struct oracle *o, uint32_t layer, uint32_t head, double position, double *rotated);

/* Seals tokens [first, last) of a layer; scores[Hk][2][last - first] are Anchor Scores or NULL, and the `anchors` tokens for which
 * score times error is largest are rounded to half instead. */
void oracle_seal_tokens(struct oracle *o, uint32_t layer, size_t first, size_t last, double *scores, size_t anchors);

#endif
