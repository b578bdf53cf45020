/* Computes scores of the positions of one window: the likelihood of the token that follows each, and the divergence of the
 * prediction from the base's. The base is kept in full precision (32-bit logits), so that a cache that changes nothing has a
 * divergence of exactly 0. */
#ifndef TERSE_BENCH_FIDELITY_SCORE_H
#define TERSE_BENCH_FIDELITY_SCORE_H

#include "terse.h"

/* These are the columns of scores, each an array of [rows] floats. nll: negative log-likelihood of the token that follows, in nats;
 * delta: nll minus the base's, computed in double so that small differences keep their digits; kld: KL(base || own) over the whole
 * vocabulary; same: 1 where the most likely token is the base's, else 0. */
enum score_column { SCORE_KLD, SCORE_NLL, SCORE_DELTA, SCORE_SAME, SCORE_COLUMNS };

struct scores;

/* Makes scores for windows of `rows` scored positions. It takes rows * vocabulary floats for the base. NULL when memory is
 * refused. */
struct scores *scores_new(uint32_t vocabulary, size_t rows, int threads);
void scores_free(struct scores *scores);

/* Begins a window: the next rows of logits are those of positions 0, 1, ...; next[i] is the token after position i. `base`: these rows
 * become the base that later rows are compared with. */
void scores_begin(struct scores *scores, const int32_t *next, bool base);
/* Takes a row, as a terse_logits_sink.row with the scores as user. Rows come in order; those after the last scored position are
 * ignored. */
void scores_row(void *scores, size_t i, const float *logits);
/* Returns values[SCORE_COLUMNS][rows], valid until the next scores_begin; NULL when a logit was not finite or rows are missing. */
const float *scores_end(struct scores *scores);

#endif
