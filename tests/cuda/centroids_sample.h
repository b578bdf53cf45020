/* Codebooks of random centroids, for the CPU's codecs and the GPU's. */
#ifndef TERSE_TESTS_CUDA_CENTROIDS_SAMPLE_H
#define TERSE_TESTS_CUDA_CENTROIDS_SAMPLE_H

#include "backend/cpu/codec/codec.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/centroids.h"
#include "base/half.h"
#include "base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct centroids_sample {
    struct coding coding;
    float *parameters; /* [codec_parameters], as in a file: halves */
    void *learned;     /* the CPU's */
    void *device;
    struct centroid_view view;
};

static inline double centroids_normal(uint64_t *state) {
    double u = random_uniform(random_next(state)) + 0x1p-54, v = random_uniform(random_next(state));
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* Where it is not 0, random centroids are small multiples of it, so that several are equal and more are equally near. */
static float centroids_grid;

/* How a sub-vector's centroids lie: where `period` is not 0, a centroid is that of so many before it again, every other time with a number moved by
 * a last place of a half; where `flat` is set, each has one number in all channels, 1 and 1/4 once and else less than 0. Where `size` is not 0, random
 * centroids are that much as large. */
static struct {
    size_t period;
    bool flat;
    float size;
} centroids_form;

static inline void centroids_arrange(const struct coding *coding, size_t hd, float *parameters) {
    const size_t k = (size_t)1 << coding->bits, d = coding->width, period = centroids_form.period;
    for (size_t i = 0; i < hd / d * k; i++) {
        float *own = parameters + i * d;
        const size_t j = i % k, times = period ? j / period : 0;
        if (times) memcpy(own, own - period * d, d * sizeof *own);
        if (times && times % 2 == 0) own[times % d] = half_to_float((uint16_t)(half_from_float(own[times % d]) ^ 1));
        if (!centroids_form.flat) continue;
        own[0] = j == k / 3 ? 1 : j == k / 2 ? 0.25f : own[0] > 0 ? -0.5f : -0.75f;
        for (size_t c = 1; c < d; c++) own[c] = own[0];
    }
}

static inline float centroids_number(uint64_t *state) {
    float x = (float)centroids_normal(state) * (centroids_form.size > 0 ? centroids_form.size : 1);
    return centroids_grid > 0 ? centroids_grid * roundf(2 * x) : x;
}

/* `shape`: of head_dim and group; its width, bits and learned are set. */
static inline void centroids_make(struct centroids_sample *sample, struct coding coding, enum codec_side side, uint64_t *state,
                                  struct codec_shape *shape) {
    struct terse_error error;
    shape->width = coding.width, shape->bits = coding.bits;
    size_t n = codec_parameters(coding.codec, *shape), normalization = codec_normalization_floats(coding.codec, *shape);
    *sample = (struct centroids_sample){.coding = coding, .parameters = calloc(n, sizeof(float))};
    assert_non_null(sample->parameters);
    for (size_t i = 0; i < n; i++) sample->parameters[i] = half_to_float(half_from_float(centroids_number(state)));
    centroids_arrange(&coding, shape->head_dim, sample->parameters);
    if (normalization) sample->parameters[n - 1] = 1.5f; /* the scale of gains */
    const struct cpu_codec *codec = cpu_codec_of(coding.codec);
    assert_int_equal(codec->learned->make(*shape, side, sample->parameters, &sample->learned, &error), TERSE_OK);
    shape->learned = sample->learned;
    sample->device = device_alloc(NULL, centroid_bytes(&coding, shape->head_dim), "a codebook", &error);
    assert_non_null(sample->device);
    assert_int_equal(centroid_send(&coding, shape->head_dim, sample->parameters, sample->device, &sample->view, &error), TERSE_OK);
}

static inline void centroids_free_sample(struct centroids_sample *sample) {
    cpu_codec_of(sample->coding.codec)->learned->free(sample->learned);
    device_free(NULL, sample->device, 0);
    free(sample->parameters);
}

#endif
