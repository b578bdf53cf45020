/* Draws what a method would have learned. */
#include "support/oracle_codebook.h"

#include "base/half.h"
#include "format/codebook_layouts.h"
#include "train/codec_learning.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

void oracle_make_codebook(struct oracle *o) {
    struct codebook_info info = {.key = o->method.key,
                                 .value = o->method.value,
                                 .layers = o->setup.layers,
                                 .kv_heads = o->setup.kv_heads * method_slices(&o->method),
                                 .head_dim = method_slice_width(&o->method, o->setup.head_dim)};
    struct terse_error error;
    snprintf(info.method, sizeof info.method, "%s", o->method.codebook);
    if (oracle_codec_decides(o->method.key.codec) || oracle_codec_decides(o->method.value.codec)) {
        const double rate[2] = {o->method.key.rate, o->method.value.rate};
        if (codebook_random(&info, o->rope.n_rot / 2, o->rope.pairing == ROPE_ADJACENT, &o->codebook, &error) ||
            (rate[0] + rate[1] > 0 && codebook_layouts(o->codebook, rate, &o->method.layouts, &error)))
            fail_msg("%s", error.message);
        o->method.learned = o->codebook;
        return;
    }
    for (int side = 0; side < 2; side++) {
        size_t n = codebook_floats(&info, side ? CODEC_VALUES : CODEC_KEYS);
        o->centroids[side] = malloc((n + 1) * sizeof(float));
        for (size_t i = 0; i < n; i++) o->centroids[side][i] = half_to_float(half_from_float(oracle_random(o)));
        struct coding coding = side ? info.value : info.key;
        size_t sets = (size_t)info.layers * info.kv_heads, each = n / sets; /* the scale of gains is the last number of a set */
        for (size_t i = 0; coding.codec == &codec_gain_shape && i < sets; i++) o->centroids[side][(i + 1) * each - 1] = 1.5f;
        struct codec_shape shape = {.head_dim = info.head_dim, .group = 1, .width = coding.width, .bits = coding.bits};
        for (size_t i = 0; (coding.codec->learner == CODEC_LEARNS_KMEANS) && i < sets; i++)
            if (o->setup.snapped >> i & 1) codec_snap_to_grid(coding.codec, shape, o->centroids[side] + i * each);
    }
    if (codebook_new(&info, o->centroids[0], o->centroids[1], &o->codebook, &error)) fail_msg("%s", error.message);
    o->method.learned = o->codebook;
}
