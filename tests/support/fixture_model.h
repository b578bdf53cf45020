/* The small models of tests/fixtures/models. */
#ifndef TESTS_SUPPORT_FIXTURE_MODEL_H
#define TESTS_SUPPORT_FIXTURE_MODEL_H

#include "terse.h"

/* NAME.gguf; the running cmocka test fails where it cannot be loaded. Released by terse_model_free. */
struct terse_model *fixture_model(const char *name);

#endif
