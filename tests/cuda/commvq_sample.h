/* Makes CommVQ's codebooks of random tables and rows, for the CPU's codecs and the GPU's. */
#ifndef TERSE_TESTS_CUDA_COMMVQ_SAMPLE_H
#define TERSE_TESTS_CUDA_COMMVQ_SAMPLE_H

#include "backend/cpu/codec/codec.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/commvq.h"
#include "base/half.h"
#include "base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

struct commvq_sample {
    float *parameters; /* [codec_parameters], as in a file: halves */
    const float *mean; /* among them */
    struct codec_shape shape;
    void *learned; /* the CPU's */
    void *device;
    union {
        struct commvq_view key;
        struct additive_view value;
    } view;
};

static double commvq_row_size = 2; /* of the sum of all rows of values */

/* `shape`: of head_dim and group; its width, bits and learned are set. Later rounds have smaller tables, as learned ones do; pairs of
 * channels are `rotated_pairs` ones of RoPE and neighbours. */
static inline void commvq_make(struct commvq_sample *sample, uint32_t bits, enum codec_side side, uint32_t rotated_pairs,
                               bool adjacent, uint64_t *state, struct codec_shape *shape) {
    const struct codec *codec = side ? &codec_additive : &codec_commvq;
    const struct coding coding = codec_coding(codec, shape->head_dim, bits);
    struct terse_error error;
    shape->width = coding.width, shape->bits = coding.bits;
    const size_t n = codec_parameters(codec, *shape), own = n - codec_normalization_floats(codec, *shape);
    *sample = (struct commvq_sample){.parameters = calloc(n, sizeof(float))};
    assert_non_null(sample->parameters);
    sample->mean = sample->parameters + own;
    for (size_t i = 0; i < n; i++) {
        const size_t round = i / ((size_t)COMMVQ_ENTRIES * shape->width) % (side ? 1 : commvq_rounds(*shape));
        const double u = random_uniform(random_next(state)) + 0x1p-54, v = random_uniform(random_next(state)),
                     normal = sqrt(-2 * log(u)) * cos(2 * M_PI * v);
        const double size = i >= own ? 1 : side ? commvq_row_size / sqrt(shape->bits) : 0.5 * pow(0.9, (double)round);
        sample->parameters[i] = half_to_float(half_from_float((float)(size * normal)));
    }
    if (!side) commvq_set_pairing(*shape, sample->parameters, rotated_pairs, adjacent);
    sample->parameters[n - 1] = 1.5f; /* the scale of gains */
    assert_int_equal(codec_check_parameters(codec, *shape, sample->parameters, &error), TERSE_OK);
    assert_int_equal(cpu_codec_of(codec)->learned->make(*shape, side, sample->parameters, &sample->learned, &error), TERSE_OK);
    shape->learned = sample->learned;
    sample->shape = *shape;
    const size_t bytes = side ? additive_bytes(&coding, shape->head_dim) : commvq_bytes(&coding, shape->head_dim);
    sample->device = device_alloc(NULL, bytes, "a codebook", &error);
    assert_non_null(sample->device);
    assert_int_equal(
        (side ? additive_send : commvq_send)(&coding, shape->head_dim, sample->parameters, sample->device, &sample->view, &error),
        TERSE_OK);
}

static inline void commvq_free_sample(struct commvq_sample *sample, enum codec_side side) {
    cpu_codec_of(side ? &codec_additive : &codec_commvq)->learned->free(sample->learned);
    device_free(NULL, sample->device, 0);
    free(sample->parameters);
}

#endif
