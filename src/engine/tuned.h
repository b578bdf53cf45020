/* Reads the file of a model's tuned method (terse_choice.h). */
#ifndef TERSE_ENGINE_TUNED_H
#define TERSE_ENGINE_TUNED_H

#include "terse_choice.h"

/* A tuned_file holds what tuned.method and tuned.corpus point to. */
struct tuned_file {
    struct terse_tuned tuned;
    char method[64], corpus[128];
};

/* Reads the file at `path`. TERSE_E_IO: there is none, or it cannot be read; TERSE_E_FORMAT: it is no such file, or another model's;
 * TERSE_E_UNSUPPORTED: of another version. */
enum terse_status tuned_load(const struct terse_model *model, const char *path, struct tuned_file *file, struct terse_error *error);

#endif
