/* Independent conversions of the codecs that make of 32 channels of a token codes and a scale, written from their definitions, for all tests that
 * need one: of pages (test_codec) and of whole caches (cache_oracle.h). */
#ifndef TESTS_SCALED_CODECS_H
#define TESTS_SCALED_CODECS_H

#include "format/codec.h"

struct scaled_codec {
    const struct codec *codec;
    /* The half that x[32] share as their scale, and codes[32], which are 0 where the number is. */
    void (*convert)(const float *x, uint16_t *scale, int *codes);
    /* Reads the code of channel c of token t from where page_layout.h puts it; `codes` is what follows a page's scales. */
    int (*code_at)(enum codec_side side, const uint8_t *codes, size_t hd, size_t t, size_t c);
};

/* NULL: the codec is none of them. */
const struct scaled_codec *scaled_codec_of(const struct codec *codec);

/* x[n] become what the codec makes of them; n is a multiple of 32. */
void scaled_codec_round(const struct scaled_codec *own, float *x, size_t n);

#endif
