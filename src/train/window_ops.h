/* Declares the operations of a window's passes on the CPU (backend/learning.h). */
#ifndef TERSE_TRAIN_WINDOW_OPS_H
#define TERSE_TRAIN_WINDOW_OPS_H

#include "backend/learning.h"

extern const struct learning_ops window_ops_cpu;

/* Returns scratch that suffices for linear_scratch() and linear_backward_scratch() of all matrices of a learner of this table. */
float *window_scratch(struct learner *learner);

#endif
