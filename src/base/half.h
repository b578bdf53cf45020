/* Converts half and bfloat16 scalars, on any machine. Arrays go through the kernels. */
#ifndef TERSE_BASE_HALF_H
#define TERSE_BASE_HALF_H

#include <stdint.h>
#include <string.h>

/* Converts IEEE binary16 to binary32: exactly, subnormals, infinities and NaN included. */
float half_to_float(uint16_t half);
/* Rounds to nearest even; overflows to infinity; NaN stays NaN. */
uint16_t half_from_float(float value);

static inline float bfloat_to_float(uint16_t bfloat) {
    uint32_t bits = (uint32_t)bfloat << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
