/* Converts half-precision scalars in integer arithmetic, so that every machine gives the same bits; NaN becomes quiet as in the
 * hardware's conversions. */
#include "base/half.h"

uint16_t half_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520, half way past the largest half, rounds to infinity */
    uint32_t exponent = magnitude >> 23;
    if (exponent >= 113) { /* normal: drop 13 bits; a carry out of the fraction moves the exponent up, as it should */
        uint32_t kept = magnitude - (112u << 23);
        return (uint16_t)(sign | (kept + 0xfff + (kept >> 13 & 1)) >> 13);
    }
    if (exponent < 102) return (uint16_t)sign; /* below 2^-25, half of the smallest subnormal */
    uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
    uint32_t shift = 126 - exponent; /* 14 ... 24: to units of 2^-24 */
    uint32_t result = significand >> shift;
    uint32_t rest = significand & ((1u << shift) - 1), middle = 1u << (shift - 1);
    if (rest > middle || (rest == middle && (result & 1))) result++;
    return (uint16_t)(sign | result);
}
