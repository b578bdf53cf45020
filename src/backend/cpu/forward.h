/* Forward: passes through the model, piece by piece. */
#ifndef TERSE_BACKEND_CPU_FORWARD_H
#define TERSE_BACKEND_CPU_FORWARD_H

#include "backend/cpu/pass.h"

/* Rows of a longer part of n tokens, after `length` others, that pass through a layer at a time: a matter of the sequence alone, so that its
 * results are. */
size_t forward_panel(const struct terse_model *model, uint64_t length, size_t n);

/* Rows of logits that are computed together, of n that pass through the layers so. */
size_t forward_logit_rows(const struct terse_model *model, size_t n);

/* Before the first piece: everything but the state of the pass is there. */
void forward_begin(struct pass *pass);
/* executor_ops.advance and progress. */
enum terse_status forward_advance(struct pass *pass, struct terse_error *error);
struct step_progress forward_progress(const struct pass *pass);

#endif
