/* Compares the text that a cache writes after a prompt, reading the tokens that it wrote itself (free-running), with the text that
 * an f16 cache of the same model and device writes after the same prompt. Six sequences go on from each prompt together:
 *
 *   written   the cache writes tokens, drawn at temperature 1; f16 reads the same tokens and scores them
 *   given     f16 writes tokens with the same random numbers; the cache reads them: the same divergence, of a text that its errors did not touch
 *   greedy    both write their likeliest tokens, to be compared
 *
 * A token that ends a text is a token like others, so that all texts are of one length. */
#ifndef TERSE_TOOLS_FREE_RUNNING_H
#define TERSE_TOOLS_FREE_RUNNING_H

#include "setup.h"

struct free_running;

/* Makes the caches' sessions: of *options, and of f16 with the same context and progress. A prompt has n_prompt tokens, n_tokens are written after
 * each, n_prompt + n_tokens <= options->context; `windows` prompts come at most. Complains where all that must be held at a time goes beyond
 * --kv-budget. Returns an exit status. */
int free_running_new(const struct setup *setup, const struct terse_session_options *options, size_t n_prompt, size_t n_tokens,
                     uint32_t windows, struct free_running **free_running);
void free_running_free(struct free_running *free_running);

/* Reads prompt[n_prompt] with both caches, writes and scores, and prints a line on it. Returns an exit status. */
int free_running_window(struct free_running *free_running, const int32_t *prompt);

/* Prints the figures of all windows. */
void free_running_print(const struct free_running *free_running);

#endif
