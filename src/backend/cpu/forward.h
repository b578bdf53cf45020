/* Computes forward passes through the model, piece by piece. */
#ifndef TERSE_BACKEND_CPU_FORWARD_H
#define TERSE_BACKEND_CPU_FORWARD_H

#include "backend/cpu/pass.h"

/* Returns how many tokens of a longer part of n, after `length` others, pass through a layer at a time. The number depends on the sequence alone, so
 * that its results do, too. */
size_t forward_panel(const struct terse_model *model, uint64_t length, size_t n);

/* Returns how many tokens' logits are computed together, of n tokens that pass through the layers together. */
size_t forward_logit_rows(const struct terse_model *model, size_t n);

/* Sets the state of a pass before its first piece; everything else of it is there, and its caches have begun. */
enum terse_status forward_begin(struct pass *pass, struct terse_error *error);
/* These are executor_ops.advance and progress. */
enum terse_status forward_advance(struct pass *pass, struct terse_error *error);
struct step_progress forward_progress(const struct pass *pass);

#endif
