/* Declares the inside of struct terse_codebook for codebook.c (makes it and answers questions) and codebook_file.c (its file). */
#ifndef TERSE_FORMAT_CODEBOOK_PRIVATE_H
#define TERSE_FORMAT_CODEBOOK_PRIVATE_H

#include "format/codebook.h"
#include "gguf/gguf_writer.h"

#include <pthread.h>

struct terse_codebook {
    struct codebook_info info;
    size_t sets;            /* codebook_sets */
    uint16_t *halves[2][2]; /* [side][part], each [sets][codebook_part_floats] as in the file; NULL where there is none */
    pthread_mutex_t mutex;  /* of the forms */
    struct {
        const struct codebook_form_ops *ops; /* NULL: free */
        void *form;
    } forms[CODEBOOK_MOST_FORMS];
};

/* Checks that there can be such a codebook, before anything else uses its shape: TERSE_E_FORMAT, TERSE_E_UNSUPPORTED. */
enum terse_status codebook_check_info(const struct codebook_info *info, struct terse_error *error);

/* A codebook is made in two steps: codebook_begin checks the info and allocates the halves; once the caller has filled them,
 * codebook_check_halves checks that codecs can take them. If that fails the caller releases the codebook. */
enum terse_status codebook_begin(const struct codebook_info *info, struct terse_codebook **codebook, struct terse_error *error);
enum terse_status codebook_check_halves(const struct terse_codebook *codebook, struct terse_error *error);

/* Adds the file's contents; they point into the codebook. */
void codebook_write(const struct terse_codebook *codebook, struct gguf_writer *writer);

#endif
