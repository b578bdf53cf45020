/* Declares the CUDA backend. */
#ifndef TERSE_BACKEND_CUDA_BACKEND_H
#define TERSE_BACKEND_CUDA_BACKEND_H

#include "backend/backend.h"

extern const struct backend backend_cuda;

#endif
