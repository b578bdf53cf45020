/* Holds numbers of the codec transform as initializers, for transform.c and for kernels that compile them in. */
#ifndef TERSE_FORMAT_TRANSFORM_LEVELS_H
#define TERSE_FORMAT_TRANSFORM_LEVELS_H

/* These are transform_levels[TRANSFORM_TABLES][16], by enum transform_table. GAUSSIAN_4 has Max 1960's levels in such units that
 * whole numbers come close, with 2 % more distortion than his. TRELLIS and PAIR were found by alternating between best paths and
 * the means of the numbers that took each window, from random beginnings, and then by trying whole numbers. A level of LOWER_b is n -
 * 2^b, where each bit of n is a sum of bits of the window, modulo 2; of all such sums these err least. */
/* clang-format off */
#define TRANSFORM_LEVELS { \
    /* GAUSSIAN_4 */ {-20, -15, -12, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 12, 15, 20}, \
    /* UNIFORM_4 */ {-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15}, \
    /* LOWER_1 */ {-2, 0, 0, -2, -1, 1, 1, -1, 0, -2, -2, 0, 1, -1, -1, 1}, \
    /* LOWER_2 */ {-4, -2, 0, 2, 2, 0, -2, -4, -1, -3, 3, 1, 1, 3, -3, -1}, \
    /* LOWER_3 */ {-8, -4, 4, 0, -6, -2, 6, 2, -3, -7, 1, 5, -1, -5, 3, 7}, \
    /* TRELLIS_1 */ {3, -3, 7, -1, -3, 3, 1, -7, -3, 3, -1, 5, 2, -3, -5, 2}, \
    /* TRELLIS_2 */ {1, 4, -2, -8, -2, 1, -5, 8, 5, -4, 3, 0, -5, -1, 1, 4}, \
    /* TRELLIS_3 */ {2, -1, 0, 4, -5, 1, -3, 7, -7, 0, 5, -2, -1, -4, 3, 2}, \
    /* PAIR_FIRST */ {2, -6, 6, -1, 8, -3, 1, 1, 0, 5, -8, -3, -5, 3, -3, 4}, \
    /* PAIR_SECOND */ {7, -5, -3, 0, -1, 1, 3, -8, -3, 3, 1, 8, 3, -4, -4, 3}, \
}

/* transform_distortion[TRANSFORM_BITS_MAX + 1] */
#define TRANSFORM_DISTORTION {1, 0.3107f, 0.0924f, 0.0293f, 0.00967f, 0.00274f, 0.000895f, 0.000292f, 0.000087f}
/* transform_row_scale[TRANSFORM_ROW_SCALES] */
#define TRANSFORM_ROW_SCALE {1.5f, 2, 3, 4, 6}
/* clang-format on */

#endif
