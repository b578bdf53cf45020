/* The conversions, and the table of them. */
#include "support/scaled_codecs.h"

#include "base/half.h"

#include <math.h>

static void convert_q8_0(const float *x, uint16_t *scale, int *codes) {
    float most = 0;
    for (int j = 0; j < 32; j++) most = fmaxf(most, fabsf(x[j]));
    float d = most / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    *scale = half_from_float(d);
    for (int j = 0; j < 32; j++) codes[j] = (int)roundf(x[j] * inverse);
}

static int code_of_q8_0(enum codec_side side, const uint8_t *codes, size_t hd, size_t t, size_t c) {
    return (int8_t)codes[side == CODEC_KEYS ? c * 64 + t : t * hd + c];
}

static void convert_q4_0(const float *x, uint16_t *scale, int *codes) {
    int at = 0;
    for (int j = 1; j < 32; j++)
        if (fabsf(x[j]) > fabsf(x[at])) at = j;
    float d = x[at] / -8.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    *scale = half_from_float(d);
    for (int j = 0; j < 32; j++) {
        int code = (int)truncf(fmaf(x[j], inverse, 8.5f));
        codes[j] = (code < 15 ? code : 15) - 8;
    }
}

static int code_of_q4_0(enum codec_side side, const uint8_t *codes, size_t hd, size_t t, size_t c) {
    size_t byte = c / 32 * 16 + c % 16;
    uint8_t pair = codes[side == CODEC_KEYS ? byte * 64 + t : t * hd / 2 + byte];
    return (c % 32 < 16 ? pair & 15 : pair >> 4) - 8;
}

static const struct scaled_codec codecs[] = {
    {&codec_q8_0, convert_q8_0, code_of_q8_0},
    {&codec_q4_0, convert_q4_0, code_of_q4_0},
};

const struct scaled_codec *scaled_codec_of(const struct codec *codec) {
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++)
        if (codecs[i].codec == codec) return &codecs[i];
    return NULL;
}

void scaled_codec_round(const struct scaled_codec *own, float *x, size_t n) {
    for (size_t b = 0; b < n; b += 32) {
        uint16_t scale;
        int codes[32];
        own->convert(x + b, &scale, codes);
        for (size_t j = 0; j < 32; j++) x[b + j] = (float)codes[j] * half_to_float(scale);
    }
}
