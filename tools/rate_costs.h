/* Measures what each rate of terse-N costs on a model: how far a cache of so many bits moves the model's probabilities of the next token from those with
 * an f16 cache. Figures come from the real cache, and are kept in the model's profile. */
#ifndef TERSE_TOOLS_RATE_COSTS_H
#define TERSE_TOOLS_RATE_COSTS_H

#include "setup.h"

/* A rate_costs_text is the text to measure on, and says where in it a profile was learned, so that costs are measured on text that
 * the profile has not seen. */
struct rate_costs_text {
    const char *corpus; /* its name */
    const int32_t *tokens;
    size_t n;
    size_t learned_window, learned_windows; /* windows of so many tokens, taken evenly from the text (terse_calibrate) */
};

/* Measures the rates 4, 3, 2, 1.5 and 1 with the profile, and notes them in it; with progress. Notes nothing, after a remark, where the text has no
 * part of some length that was not learned from, or at an interrupt. Returns an exit status. */
int rate_costs_measure(struct setup *setup, const struct rate_costs_text *text, struct terse_codebook *profile);

/* Returns how many tokens all sessions of a measurement read together. */
uint64_t rate_costs_tokens(const struct terse_model_info *model);

/* Prints a line for each cost that the profile has. */
void rate_costs_print(const struct terse_codebook *profile);

#endif
