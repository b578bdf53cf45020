/* The name that a file gives to the mixture of types of its weights. */
#ifndef TERSE_MODEL_FILE_TYPE_H
#define TERSE_MODEL_FILE_TYPE_H

#include "gguf/gguf.h"

/* Returns "Q4_K_M" of metadata general.file_type; NULL where that is missing, unknown, or a single type, which the tensors say better. */
const char *file_type_mixture(const struct gguf *gguf);

#endif
