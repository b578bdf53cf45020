/* Half and bfloat16 scalars, portable. Arrays go through the kernels. */
#ifndef TERSE_BASE_HALF_H
#define TERSE_BASE_HALF_H

#include <stdint.h>
#include <string.h>

/* IEEE binary16 to binary32: exact, subnormals, infinities and NaN included. */
float half_to_float(uint16_t half);
/* Round to nearest even; overflow to infinity; NaN stays NaN. */
uint16_t half_from_float(float value);

static inline float bfloat_to_float(uint16_t bfloat) {
    uint32_t bits = (uint32_t)bfloat << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
