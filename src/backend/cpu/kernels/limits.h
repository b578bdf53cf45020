/* Defines sizes that all kernels of the cache share. */
#ifndef TERSE_BACKEND_CPU_KERNELS_LIMITS_H
#define TERSE_BACKEND_CPU_KERNELS_LIMITS_H

#define KERNELS_MOST_CHANNELS 256 /* the largest head_dim; it is a multiple of 32 */
#define KERNELS_MOST_ROW 576      /* the same of keys that end with latents, which f16, q8_0, q4_0 and kivi score */

#endif
