/* Gives a codebook's parameters in the CPU's prepared form to tests that call codecs themselves. */
#ifndef TERSE_TESTS_PREPARED_H
#define TERSE_TESTS_PREPARED_H

#include "backend/cpu/codec/prepared.h"

#include <stdlib.h>

/* Returns the value for codec_shape.learned, and prepares the codebook if that was not done. NULL where the side learns nothing or `codebook`
 * is NULL. */
static inline const void *prepared_learned(const struct terse_codebook *codebook, enum codec_side side, uint32_t layer,
                                           uint32_t head) {
    const struct cpu_codebook *prepared = NULL;
    if (codebook && cpu_codebook_prepare(codebook, &prepared, NULL) != TERSE_OK) abort();
    return cpu_codebook_learned(prepared, side, layer, head);
}

#endif
