/* Defines the sums of weights/tiles_template.h where one instruction multiplies unsigned bytes by bytes with signs and adds each four
 * products to a dword: add_bytes of the file that includes this. Codes with signs get 128 added, so that they are unsigned. */
#ifndef TERSE_BACKEND_CPU_KERNELS_WEIGHTS_VNNI_SUMS_H
#define TERSE_BACKEND_CPU_KERNELS_WEIGHTS_VNNI_SUMS_H

INLINE ints start_bytes(int32_t zero) { return MM(set1_epi32)(zero); }
INLINE floats end_bytes(const ints sum[1]) { return MM(cvtepi32_ps)(sum[0]); }

#define SIGNED_ZERO 128
#define start_signed start_bytes
#define add_signed add_bytes
#define end_signed end_bytes

#define start_planes start_bytes
#define add_planes add_bytes
INLINE floats end_planes(const ints sum[2]) {
    return MM(fmadd_ps)(MM(cvtepi32_ps)(sum[0]), MM(set1_ps)(255), MM(cvtepi32_ps)(sum[1]));
}

#endif
