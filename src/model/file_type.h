/* Names the mixture of types that a file has for its weights. */
#ifndef TERSE_MODEL_FILE_TYPE_H
#define TERSE_MODEL_FILE_TYPE_H

#include "gguf/gguf.h"

/* Returns the mixture's name of metadata general.file_type, such as "Q4_K_M"; NULL where that is missing, unknown, or a single
 * type, which the tensors say better. */
const char *file_type_mixture(const struct gguf *gguf);

#endif
