/* Loading models by their names. */
#include "support/fixture_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

struct terse_model *fixture_model(const char *name) {
    struct terse_model *model;
    struct terse_error error;
    char path[512];
    snprintf(path, sizeof path, TESTS_DIR "/fixtures/models/%s.gguf", name);
    if (terse_model_load(path, &model, &error)) fail_msg("%s", error.message);
    return model;
}
