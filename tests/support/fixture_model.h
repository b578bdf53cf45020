/* The small models of tests/fixtures/models, and texts for them. */
#ifndef TESTS_SUPPORT_FIXTURE_MODEL_H
#define TESTS_SUPPORT_FIXTURE_MODEL_H

#include "terse.h"

#include <stddef.h>
#include <stdint.h>

/* NAME.gguf; the running cmocka test fails where it cannot be loaded. Released by terse_model_free. */
struct terse_model *fixture_model(const char *name);

/* The bytes of NAME.gguf, aligned as terse_model_load_memory wants them; released by free. fixture_set_u32 sets the u32 of a key, which its
 * metadata have. */
uint8_t *fixture_bytes(const char *name, size_t *size);
void fixture_set_u32(uint8_t *file, size_t size, const char *key, uint32_t value);

/* tokens[n] of the model's vocabulary by chance, the same at each call; the running test fails without memory. Released by free. */
int32_t *fixture_tokens(const struct terse_model *model, size_t n);

#endif
