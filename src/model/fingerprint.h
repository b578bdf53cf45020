/* Computes a model's fingerprint, which ties a codebook to the weights that it was learned from. */
#ifndef TERSE_MODEL_FINGERPRINT_H
#define TERSE_MODEL_FINGERPRINT_H

#include "model/model.h"

/* Hashes the architecture, all of its metadata and every tensor's name, type, shape and samples of its bytes, but not the model's name, its
 * tokenizer, or the order of things in the file. The number is the same wherever the file lies and whatever the machine. At most 20 KiB are
 * read of each tensor; docs/codebook-format.md defines it. */
uint64_t model_fingerprint(const struct terse_model *model);

/* Does the same without the types and bytes of tensors that are not vectors. Quantization leaves vectors (norms, biases) alone, so
 * all files of a model have this number in common, whatever they are quantized to, and a model trained further has another. */
uint64_t model_norms_fingerprint(const struct terse_model *model);

/* Returns the fingerprint of the rotation, which is added to both where the rotation is not the file's (struct
 * terse_model_options). */
uint64_t model_rotation_fingerprint(const struct terse_model *model);

#endif
