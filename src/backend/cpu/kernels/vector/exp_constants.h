/* Has the constants of exp(d) = 2^n exp(r), n = round(d / ln 2), r = d - n ln 2, and exp(r) = 1 + r + r^2 (c2 + c3 r + ... + c6
 * r^4), for the vector tiers. The coefficients are minimax in relative error on |r| <= ln(2)/2, found by exchange and then rounded
 * to float: 4.4e-9 off at most, so what is left is fp32 rounding. 8.5e-8 is the worst found; tests/kernels/test_kernels.c allows
 * 1e-7. */
#ifndef TERSE_BACKEND_CPU_KERNELS_VECTOR_EXP_CONSTANTS_H
#define TERSE_BACKEND_CPU_KERNELS_VECTOR_EXP_CONSTANTS_H

#define EXP_LOG2_E 1.44269502f
#define EXP_LN2_HIGH 0.693147182f /* ln 2 = high + low; each step is one FMA, so `high` may use all its bits */
#define EXP_LN2_LOW -1.90465421e-9f
#define EXP_C2 0.49999994f
#define EXP_C3 0.166665196f
#define EXP_C4 0.0416683927f
#define EXP_C5 0.00836878084f
#define EXP_C6 0.00138144672f

/* These give 2^r = 1 + r (c1 + ... + c5 r^4) on |r| <= 1/2, minimax in relative error: 9.2e-8 off at most. */
#define EXP2_C1 0.693147f
#define EXP2_C2 0.24022242f
#define EXP2_C3 0.055507336f
#define EXP2_C4 0.009671513f
#define EXP2_C5 0.0013264727f
/* These give 2^r = c0 + ... + c3 r^3 there, for results that become a byte: 7.5e-5 off at most, and 5e-6 in the mean. */
#define EXP2_SHORT_C0 0.99992807f
#define EXP2_SHORT_C1 0.693261f
#define EXP2_SHORT_C2 0.24261112f
#define EXP2_SHORT_C3 0.05517167f
#define EXP2_LOWEST -126.0f /* the least exponent of a normal number */

/* Beyond these the result is 0 and infinity in fp32, and n stays small enough to be an exponent. */
#define EXP_LOWEST -105.0f
#define EXP_HIGHEST 89.0f

#endif
