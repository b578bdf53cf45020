/* Scores of the positions of one window: how well the token that follows each is predicted, and how far the prediction is from the
 * base's, which holds full precision (32-bit logits) so that a cache that changes nothing scores a divergence of exactly 0. */
#ifndef TERSE_BENCH_FIDELITY_SCORE_H
#define TERSE_BENCH_FIDELITY_SCORE_H

#include "terse.h"

/* What is known of a scored position, one array of [rows] floats after the other. nll: negative log-likelihood of the token that came,
 * in nats; delta: nll minus the base's, so that small differences keep their digits; kld: KL(base || own) over the whole vocabulary;
 * same: 1 where the most likely token is the base's, else 0. */
enum score_column { SCORE_KLD, SCORE_NLL, SCORE_DELTA, SCORE_SAME, SCORE_COLUMNS };

struct scores;

/* For windows of `rows` scored positions; NULL when memory is refused (rows * vocabulary floats, for the base). */
struct scores *scores_new(uint32_t vocabulary, size_t rows, int threads);
void scores_free(struct scores *scores);

/* The next rows of logits are those of positions 0, 1, ...; next[i] is the token that came after position i. `base`: they become what
 * later rows are compared with. */
void scores_begin(struct scores *scores, const int32_t *next, bool base);
/* A terse_logits_sink.row with the scores as user; takes rows in order and ignores those after the last scored one. */
void scores_row(void *scores, size_t i, const float *logits);
/* values[SCORE_COLUMNS][rows], valid until the next scores_begin; NULL when a logit was not finite or rows are missing. */
const float *scores_end(struct scores *scores);

#endif
