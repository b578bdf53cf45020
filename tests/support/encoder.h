/* The learned encoder of CommVQ's values (Li et al. 2025, section 4.1), what the search of backend/cpu/codec/binary_code_search.h is compared with
 * (bench/experiments/value_codes.c): a small network computes the code of a row, and is trained together with the codebook.
 *
 *     u = x / scale, at a norm of sqrt(d)            scale: mean |x| of each channel, of the rows to learn from; frozen
 *     a = LayerNorm(u);   b = GELU(W1 a + b1);   z = W2 b + b2, four numbers for each pair of bits
 *     training    y = softmax((z + Gumbel noise) / 1), the largest taken for 1 on the way forward and y for what it depends on on
 *                 the way back (straight through, Jang et al. 2016)
 *     encoding    the largest of z
 *     bits        (1,0), (0,1), (1,1), (0,0) for the first to the fourth;   x is about s C, the channel scale in C
 *
 * AdamW, rate 1e-3 with warm-up and cosine, decay 0.1, betas 0.9 and 0.95, as the paper's release has them. */
#ifndef TESTS_SUPPORT_ENCODER_H
#define TESTS_SUPPORT_ENCODER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct encoder; /* owns its memory and its optimizer's */

/* hidden 0: the paper's, 2 for each bit, at most 4096. `scale`[channels] as above, > 0. The codebook begins as C[codes][channels] or,
 * NULL, with normal numbers. NULL when memory is refused or codes are odd. */
struct encoder *encoder_new(size_t channels, size_t codes, size_t hidden, const float *scale, const float *C, uint64_t seed);
void encoder_free(struct encoder *encoder);

/* All that is learned, in one array: LayerNorm's gain and bias, W1 and b1, W2 and b2, last C. The gradient of the last call of
 * encoder_loss lies likewise. */
float *encoder_numbers(struct encoder *encoder, size_t *n);
const float *encoder_gradient(const struct encoder *encoder);
const float *encoder_codebook(const struct encoder *encoder);
/* Returns how many of these numbers are the network's, which encoding would need besides the codebook. */
size_t encoder_network_numbers(const struct encoder *encoder);

enum encoder_mode {
    ENCODER_SOFT,    /* sums of y itself: what gradients are exact for */
    ENCODER_STRAIGHT /* straight through */
};

/* Rows of one step. */
struct encoder_batch {
    const float *rows; /* [n][channels], at a size of about 1 */
    size_t n;
    const float *weights; /* [n], NULL: ones */
    uint64_t noise;       /* seed; 0: no noise */
    /* A second loss of errors[n][channels] = rows - s C, or NULL: returns it and adds its gradient to gradient[n][channels]. */
    double (*loss)(void *user, const float *errors, size_t n, float *gradient);
    void *user;
};

/* Half the mean of w |x - s C|^2, per channel, and the second loss; with its gradient. */
double encoder_loss(struct encoder *encoder, const struct encoder_batch *batch, enum encoder_mode mode);
/* One step along it: the step-th of so many, from 0. */
void encoder_step(struct encoder *encoder, size_t step, size_t steps);

/* bits[n][codes / 8] as additive_search_find gives them. */
void encoder_find(struct encoder *encoder, const float *rows, size_t n, uint8_t *bits);

#endif
