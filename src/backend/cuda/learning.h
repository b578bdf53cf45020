/* Declares how the CUDA backend does the heavy part of learning. */
#ifndef TERSE_BACKEND_CUDA_LEARNING_H
#define TERSE_BACKEND_CUDA_LEARNING_H

#include "backend/learning.h"

extern const struct learning_ops cuda_learning_ops;

#endif
