/* Declares passes through the model, piece by piece. */
#ifndef TERSE_BACKEND_CUDA_FORWARD_H
#define TERSE_BACKEND_CUDA_FORWARD_H

#include "backend/cuda/pass.h"

/* Returns how many rows of a part of n tokens, after `length` others, pass through a layer at a time. */
size_t pass_panel(const struct terse_model *model, uint64_t length, size_t n);
/* Returns how many floats so many ranks exchange together of such a part; 0: they do not share it. */
size_t pass_share_floats(const struct terse_model *model, uint32_t ranks, uint64_t length, size_t n);

/* Begins a pass before its first piece: all but the state of the pass is there. */
void pass_begin(struct pass *pass);
/* These implement executor_ops.advance and progress. */
enum terse_status pass_advance(struct pass *pass, struct terse_error *error);
struct step_progress pass_progress(const struct pass *pass);

/* Forgets, before the first pass, where numbers were not finite. */
cudaError_t pass_forget_not_finite(struct executor *executor);

/* Drops all graphs, after activations have moved. */
void pass_drop_graphs(struct executor *executor);

#endif
