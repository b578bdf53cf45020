/* Checks what the kernels of codec sign and index sign learn from keys beside the CPU, number for number: of two layers at once, each head by
 * itself, from less than a page to more rows than a block takes at a time; of one channel all keys are alike, which has the least alpha. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/index.h"
#include "backend/cuda/kv/encode_kernels.h"
#include "base/half.h"
#include "base/random.h"
#include "no_device.h"
#include "sent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIRST = 1, LAYERS = 2, HEADS = 3, ALIKE = 5 };

static void check_head(const uint16_t *rows, size_t n, size_t stride, uint32_t hd, size_t floats, bool alpha, const float *found) {
    float *own = malloc(n * hd * sizeof *own), *expected = calloc(floats, sizeof *expected);
    const struct index_options options = {.median = false};
    assert_true(own && expected);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < hd; c++) own[t * hd + c] = half_to_float(rows[t * stride + c]);
    if (alpha)
        cpu_codec_sign.fit((struct codec_shape){.head_dim = hd}, CODEC_KEYS, own, n, hd, &options, expected);
    else
        cpu_index_sign.fit(hd, own, n, hd, &options, expected);
    for (size_t i = 0; i < floats; i++)
        if (memcmp(&found[i], &expected[i], sizeof *found) != 0)
            fail_msg("%u channels, %zu rows, number %zu: %.9g, not %.9g", hd, n, i, (double)found[i], (double)expected[i]);
    free(own);
    free(expected);
}

static void check(uint32_t hd, size_t n, bool alpha) {
    const size_t floats = index_learned_bytes(&index_sign, hd) / sizeof(float) + (alpha ? hd : 0), stride = HEADS * hd,
                 rows_of_layer = n * stride, all = (FIRST + LAYERS) * HEADS * floats;
    uint16_t *rows = malloc(LAYERS * rows_of_layer * sizeof *rows);
    float *found = calloc(all, sizeof *found);
    uint64_t state = hd + n;
    assert_true(rows && found);
    for (size_t i = 0; i < LAYERS * rows_of_layer; i++) /* from 1/8 to 1, times a channel's power of two, more of them positive */
        rows[i] = (uint16_t)(0x3000 + (i % hd % 4 << 10) +
                             (random_next(&state) & (random_next(&state) & 1 ? 0x8bff : 0x0bff))); /* signs are the highest bits */
    for (size_t i = ALIKE; i < LAYERS * rows_of_layer; i += hd) rows[i] = 0x3c00;
    float *const there = sent(found, all * sizeof *found);
    const struct fit_sign fit = {.kv_heads = HEADS,
                                 .head_dim = hd,
                                 .layer = FIRST,
                                 .n_layers = LAYERS,
                                 .rows = sent(rows, LAYERS * rows_of_layer * sizeof *rows),
                                 .n = n,
                                 .layer_stride = rows_of_layer,
                                 .head_stride = hd,
                                 .token_stride = stride,
                                 .own_learned = there,
                                 .learned_floats = (uint32_t)floats,
                                 .alpha = alpha};
    assert_int_equal(fit_sign(&fit, device_stream()), cudaSuccess);
    assert_int_equal(device_fetch(found, there, all * sizeof *found), cudaSuccess);
    for (size_t i = 0; i < FIRST * HEADS * floats; i++) assert_true(found[i] == 0); /* other layers' */
    for (size_t i = 0; i < LAYERS * HEADS; i++)
        check_head(rows + i / HEADS * rows_of_layer + i % HEADS * hd, n, stride, hd, floats, alpha,
                   found + (FIRST * HEADS + i) * floats);
    free_sent();
    free(rows);
    free(found);
}

static void what_is_learned_is_the_cpus(void **unused) {
    (void)unused;
    static const uint32_t head_dims[] = {64, 96, 128, 256};
    static const size_t lengths[] = {1, 64, 513, 2048};
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 4; k++) check(head_dims[i], lengths[k], (i + k) % 2);
}

static void a_block_takes_more_rows_in_turn(void **unused) {
    (void)unused;
    check(64, 70000, true);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_learned_is_the_cpus),
                                       cmocka_unit_test(a_block_takes_more_rows_in_turn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
