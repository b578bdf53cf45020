/* Calibrates: makes a codebook for a method from a model and a text. Capture gives the samples; k-means, EM and additive fits give
 * centroids and tables; calibration decides what is learned from which samples and with which weights. terse_calibrate is in
 * terse_calibrate.h. */
#ifndef TERSE_TRAIN_CALIBRATE_H
#define TERSE_TRAIN_CALIBRATE_H

#include "base/status.h"
#include "terse_calibrate.h"

/* Makes weights of the norms of gradients, in place: norm^power factor^2, scaled so that their mean is 1, none below a small part
 * of it, and none above `most` > 1. An error grows by `factors` when the samples' normalization is undone (capture_normalize);
 * NULL: ones. Weights that are all 0 become ones. */
void calibrate_weigh(float *norms, const float *factors, size_t n, uint32_t power, double most);

/* Returns the most that one of n samples may weigh, where `parts` of what a fit learns (centroids, entries of a table, rows of
 * sums) share them. */
double calibrate_most_weight(size_t n, size_t parts);

/* A calibrate_sink receives the i-th codebook, and owns it, as soon as it is learned; a status other than TERSE_OK ends the
 * work. */
struct calibrate_sink {
    enum terse_status (*put)(void *user, size_t i, struct terse_codebook *codebook, struct terse_error *error);
    void *user;
};

/* Does terse_calibrate for `count` methods with one pass over the text and at most `budget` bytes of samples: the i-th codebook by
 * options[i], in which all but method, weighting, power and `shared` must be the same. TERSE_E_UNSUPPORTED for methods that cannot
 * learn together: keys in different frames of RoPE, or normalizations of one head and of all. */
enum terse_status calibrate_together(size_t budget, const struct terse_model *model, const struct terse_calibration *options,
                                     size_t count, const int32_t *tokens, size_t n, struct calibrate_sink sink,
                                     struct terse_error *error);

#endif
