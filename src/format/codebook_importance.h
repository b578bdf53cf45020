/* Computes how much errors in the rows of a text matter: what a codebook of transforms says of its own rows, corrected for those of
 * the text. A cache that fits itself to its sequence finds importance so, and a profile's importance is learned so. Therefore the
 * correction from the weights to a profile's text and the one from that text to a sequence multiply to the one from the weights to
 * the sequence. */
#ifndef TERSE_FORMAT_CODEBOOK_IMPORTANCE_H
#define TERSE_FORMAT_CODEBOOK_IMPORTANCE_H

#include "format/codebook.h"

/* A codebook_rows describes the rows of a text, of one set, by numbers of a fit (struct transform_fitted, struct
 * transform_parameters). */
struct codebook_rows {
    const float *size; /* [head_dim]; NULL: there are no rows of the set */
    float gain, residual;
};

/* Computes the importance[side][sets] of rows[side][sets], of sides of codec transform. It is the codebook's, times the ratio of
 * the rows' squares to those of the codebook's rows, and divided by that of the residual stream, to which errors are added: an
 * error of values is in proportion to their size, and one of keys to theirs and, since it moves weight from one value to another,
 * to that of the values. `normalized`: what a layer's attention adds to the residual stream goes through a norm, so that values
 * count by their part of it. A side without rows, NULL, and sets without any have the codebook's own. TERSE_E_MEMORY. */
enum terse_status codebook_importance(const struct terse_codebook *codebook, const struct codebook_rows *const rows[2],
                                      bool normalized, float *const importance[2], struct terse_error *error);

#endif
