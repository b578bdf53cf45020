/* Converts half and bfloat16 scalars, on any machine. Arrays go through the kernels. */
#ifndef TERSE_BASE_HALF_H
#define TERSE_BASE_HALF_H

#include <stdint.h>
#include <string.h>

/* Converts IEEE binary16 to binary32: exactly, subnormals, infinities and NaN included. It is here since the scalar kernels spend much of their time on it. */
static inline float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    uint32_t bits = sign | (exponent + 112) << 23 | fraction << 13;
    if (exponent == 31) bits = sign | 0x7f800000 | (fraction ? 0x400000 | fraction << 13 : 0);
    float value, subnormal = (float)fraction * 0x1p-24f; /* which is a multiple of 2^-24 */
    memcpy(&value, &bits, sizeof value);
    if (exponent) return value;
    return sign ? -subnormal : subnormal;
}
/* Rounds to nearest even; overflows to infinity; NaN stays NaN. */
uint16_t half_from_float(float value);

static inline float bfloat_to_float(uint16_t bfloat) {
    uint32_t bits = (uint32_t)bfloat << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
