/* Forward: passes through the model, piece by piece. */
#ifndef TERSE_BACKEND_CUDA_FORWARD_H
#define TERSE_BACKEND_CUDA_FORWARD_H

#include "backend/cuda/pass.h"

/* Rows of a part of n tokens, after `length` others, that pass through a layer at a time. */
size_t pass_panel(const struct terse_model *model, uint64_t length, size_t n);

/* Before the first piece: everything but the state of the pass is there. */
void pass_begin(struct pass *pass);
/* executor_ops.advance and progress. */
enum terse_status pass_advance(struct pass *pass, struct terse_error *error);
struct step_progress pass_progress(const struct pass *pass);

/* Before the first pass: numbers were not finite nowhere yet. */
cudaError_t pass_forget_not_finite(struct executor *executor);

/* After activations have moved. */
void pass_drop_graphs(struct executor *executor);

#endif
