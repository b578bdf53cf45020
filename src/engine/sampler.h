/* Chooses a token from logits. */
#ifndef TERSE_ENGINE_SAMPLER_H
#define TERSE_ENGINE_SAMPLER_H

#include "backend/backend.h"
#include "engine/candidate.h"

#define SAMPLE_HISTORY 4096 /* most tokens that a repeat penalty can look at */

struct constraint; /* engine/constraint.h */

struct sampler {
    struct terse_sampling settings;
    struct terse_logit_bias *biases; /* [settings.n_biases] */
    uint64_t random;                 /* state */
    uint32_t vocabulary;
    struct candidate *candidates; /* [vocabulary] scratch */
    int32_t history[SAMPLE_HISTORY];
    uint64_t seen;                       /* tokens ever added; history is a ring */
    const struct constraint *constraint; /* what the next token must fit, or NULL; its owner's */
};

enum terse_status sampler_init(struct sampler *sampler, uint32_t vocabulary, struct terse_error *error);
void sampler_destroy(struct sampler *sampler);
/* Sets the settings. TERSE_E_ARGUMENT names the one that is out of range. */
enum terse_status sampler_set(struct sampler *sampler, const struct terse_sampling *settings, struct terse_error *error);
/* Makes one more sampler in the same state, without a JSON text. */
enum terse_status sampler_fork(const struct sampler *from, struct sampler *sampler, struct terse_error *error);
void sampler_forget(struct sampler *sampler);
/* Adds a token of the sequence, for the penalty. */
void sampler_add(struct sampler *sampler, int32_t token);
/* Chooses by the filters of struct terse_sampling, in their order, and then a draw. Equal logits rank by token id, so the result is
 * determined by logits, settings and seed. -1 where no token fits the JSON text. */
int32_t sampler_choose(struct sampler *sampler, const float *logits);
/* Does the same from the likeliest tokens of a row of logits alone, as struct device_logits has them, where they suffice. Returns
 * false where sampler_choose must be called with all logits. */
bool sampler_choose_top_logits(struct sampler *sampler, const struct token_logit *top_logits, size_t n, int32_t *token);
/* Returns whether, with these settings, the likeliest tokens mostly suffice. */
bool sampler_needs_few(const struct sampler *sampler);
/* Computes what terse_session_logprobs returns; the token and n are within the vocabulary. */
void sampler_logprobs(struct sampler *sampler, const float *logits, int32_t token, float *logprob, struct terse_logprob *top,
                      size_t n);

#endif
