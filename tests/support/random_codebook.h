/* Codebooks of random numbers, as learning would leave them: for benchmarks, since reading and encoding cost the same whatever they
 * say. */
#ifndef TESTS_RANDOM_CODEBOOK_H
#define TESTS_RANDOM_CODEBOOK_H

#include "method/method.h"

/* Gives a method that learns a codebook of its own, which lives as long as the program; `fingerprint` of the model, `adjacent` of its
 * RoPE. Methods that learn nothing stay as they are. */
enum terse_status random_codebook(struct method *method, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                                  uint64_t fingerprint, bool adjacent, struct terse_error *error);

#endif
