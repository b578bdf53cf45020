/* Holds numbers of the codec transform as initializers, for transform.c and for kernels that compile them in. */
#ifndef TERSE_FORMAT_TRANSFORM_LEVELS_H
#define TERSE_FORMAT_TRANSFORM_LEVELS_H

/* clang-format off */
/* transform_distortion[TRANSFORM_BITS_MAX + 1] */
#define TRANSFORM_DISTORTION {1, 0.3634f, 0.1188f, 0.03744f, 0.01154f, 0.003495f, 0.001041f, 0.000564f, 0.0000877f}
/* transform_row_scale[TRANSFORM_ROW_SCALES] */
#define TRANSFORM_ROW_SCALE {1.5f, 2, 3, 4, 6}
/* transform_row_trial[TRANSFORM_ROW_TRIALS] */
#define TRANSFORM_ROW_TRIAL {1, 0.7f, 0.8f, 0.9f, 1.11f, 1.25f, 1.4f}
/* clang-format on */

#endif
