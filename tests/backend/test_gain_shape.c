/* The codec gain-shape: frames, what encoding gives by its definition in double precision, and reading equal to decoded rows. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/pq.h"
#include "base/half.h"
#include "train/codec_learning.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 1;

static float uniform(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(random_state >> 11) * 0x1p-52 - 1);
}

/* Rows of very different sizes about a mean that is not 0; one of them the mean itself. */
enum { N = 64 };
static void make_rows(float *rows, const float *mean, size_t hd) {
    for (size_t t = 0; t < N; t++) {
        float size = expf(3 * uniform());
        for (size_t c = 0; c < hd; c++) rows[t * hd + c] = mean[c] + (t == 5 ? 0 : size * uniform());
    }
}

struct setup {
    struct codec_shape shape;
    float *parameters, *rows;
    void *learned;
    uint8_t *page;
};

static struct setup setup_new(uint32_t hd, uint32_t width, uint32_t bits, enum codec_side side) {
    struct setup s = {.shape = {.head_dim = hd, .group = 3, .width = width, .bits = bits}};
    const struct codec *codec = &codec_gain_shape;
    struct terse_error error;
    size_t n = codec_parameters(codec, s.shape), centroids = codec_parameters(&codec_vq, s.shape);
    assert_int_equal(codec_check(codec, s.shape, side, &error), TERSE_OK);
    assert_int_equal(n, centroids + hd + 1);
    assert_int_equal(codec_page_bytes(codec, s.shape, side), 64 + codec_page_bytes(&codec_vq, s.shape, side));
    s.parameters = malloc(n * sizeof(float));
    s.rows = malloc(N * hd * sizeof(float));
    for (size_t i = 0; i < n; i++) s.parameters[i] = half_to_float(half_from_float(1.5f * uniform()));
    s.parameters[n - 1] = 0.75f;
    make_rows(s.rows, s.parameters + centroids, hd);
    if (cpu_codec_of(codec)->learned->make(s.shape, side, s.parameters, &s.learned, &error)) fail_msg("%s", error.message);
    s.shape.learned = s.learned;
    assert_int_equal(posix_memalign((void **)&s.page, 64, codec_page_bytes(codec, s.shape, side)), 0);
    cpu_codec_of(codec)->encode(s.shape, side, s.rows, N, s.page);
    return s;
}

static void setup_free(struct setup *s) {
    cpu_codec_gain_shape.learned->free(s->learned);
    free(s->parameters);
    free(s->rows);
    free(s->page);
}

static const struct { uint32_t hd, width, bits; } shapes[] = {{32, 2, 8}, {64, 8, 8}, {64, 16, 12}, {128, 4, 5}, {96, 32, 10}};

/* The nearest centroids of (row - mean) / rms, brought back to size by the side's gain. */
static void decoding_is_what_the_definition_says(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int side = 0; side < 2; side++) {
            uint32_t hd = shapes[i].hd, width = shapes[i].width, n = 1u << shapes[i].bits;
            struct setup s = setup_new(hd, width, shapes[i].bits, (enum codec_side)side);
            const float *mean = s.parameters + (size_t)n * hd;
            float decoded[64 * 128];
            cpu_codec_gain_shape.decode(s.shape, (enum codec_side)side, s.page, decoded);
            for (size_t t = 0; t < N; t++) {
                const float *row = s.rows + t * hd, *got = decoded + t * hd;
                double size = 0, square = 0, product = 0, shape[128], apart = 0, kept = 0;
                for (size_t c = 0; c < hd; c++) size += pow((double)row[c] - (double)mean[c], 2);
                for (size_t c = 0; c < hd; c += width) {
                    const float *from = s.parameters + c / width * n * width, *best = from;
                    double least = INFINITY;
                    for (size_t k = 0; k < n; k++) {
                        double distance = 0;
                        for (size_t j = 0; j < width; j++) {
                            double x = size > 0 ? ((double)row[c + j] - (double)mean[c + j]) / sqrt(size / hd) : 0;
                            distance += pow(x - (double)from[k * width + j], 2);
                        }
                        if (distance < least) least = distance, best = from + k * width;
                    }
                    for (size_t j = 0; j < width; j++) shape[c + j] = (double)best[j];
                }
                for (size_t c = 0; c < hd; c++) {
                    square += shape[c] * shape[c];
                    product += shape[c] * ((double)row[c] - (double)mean[c]);
                }
                double gain = side ? product / square : sqrt(size / square), code = round(128 + 20 * log2(gain / 0.75));
                double rounded = gain > 0 ? 0.75 * exp2((code < 1 ? 1 : code > 255 ? 255 : code) / 20 - 6.4) : 0;
                assert_true(!(gain > 0) || fabs(rounded / gain - 1) < 0.018); /* no code was clipped here */
                for (size_t c = 0; c < hd; c++) {
                    apart = fmax(apart, fabs((double)got[c] - (double)mean[c] - rounded * shape[c]));
                    kept += pow((double)got[c] - (double)mean[c], 2);
                }
                assert_true(apart <= 1e-5 * (sqrt(size) + 1));
                if (!side) assert_true(fabs(sqrt(kept) - sqrt(size)) <= 0.018 * sqrt(size)); /* keys keep their size */
            }
            setup_free(&s);
        }
    }
}

static void reading_equals_decoded_rows(void **state) {
    (void)state;
    static const uint32_t groups[] = {1, 3, 16, 17, 40};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int side = 0; side < 2; side++) {
            uint32_t hd = shapes[i].hd;
            struct setup s = setup_new(hd, shapes[i].width, shapes[i].bits, (enum codec_side)side);
            static float decoded[64 * 128], channels[64 * 128], in[40 * 128], out[40 * 128];
            cpu_codec_gain_shape.decode(s.shape, (enum codec_side)side, s.page, decoded);
            if (!side) cpu_codec_gain_shape.channels(s.shape, s.page, channels);
            for (size_t t = 0; !side && t < 64; t++)
                for (size_t c = 0; c < hd; c++)
                    assert_true(fabsf(channels[c * 64 + t] - decoded[t * hd + c]) <= 1e-6f * (1 + fabsf(decoded[t * hd + c])));
            for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
                size_t inputs = side ? 64 : hd, outputs = side ? hd : 64;
                s.shape.group = groups[g];
                for (size_t j = 0; j < groups[g] * inputs; j++) in[j] = uniform();
                for (size_t j = 0; j < groups[g] * outputs; j++) out[j] = 2;
                if (side)
                    cpu_codec_gain_shape.accumulate_values(s.shape, in, s.page, out);
                else
                    cpu_codec_gain_shape.score(s.shape, in, NULL, s.page, out);
                for (size_t m = 0; m < groups[g]; m++)
                    for (size_t o = 0; o < outputs; o++) {
                        double sum = side ? 2 : 0, magnitude = 1;
                        for (size_t j = 0; j < inputs; j++) {
                            double x = (double)in[m * inputs + j] * (double)decoded[side ? j * hd + o : o * hd + j];
                            sum += x;
                            magnitude += fabs(x);
                        }
                        assert_true(fabs((double)out[m * outputs + o] - sum) <= 3e-6 * magnitude);
                    }
            }
            setup_free(&s);
        }
    }
}

static void a_frame_is_the_mean_and_the_usual_size(void **state) {
    (void)state;
    enum { HD = 32, ROWS = 500 };
    const struct codec_shape shape = {.head_dim = HD, .group = 1, .width = 8, .bits = 4};
    size_t centroids = codec_parameters(&codec_vq, shape);
    float *parameters = calloc(centroids + HD + 1, sizeof *parameters), *rows = malloc(ROWS * HD * sizeof *rows), row[HD];
    double mean[HD] = {0}, scale = 0;
    for (size_t i = 0; i < ROWS * HD; i++)
        mean[i % HD] += (double)(rows[i] = (float)(i % HD) + (float)(1 + i / HD) * uniform()) / ROWS;
    codec_fit_normalization(&codec_gain_shape, shape, rows, ROWS, parameters);
    for (size_t r = 0; r < ROWS; r++) {
        double size = 0, one = 0;
        for (size_t c = 0; c < HD; c++) size += pow((double)rows[r * HD + c] - mean[c], 2) / HD;
        memcpy(row, rows + r * HD, sizeof row);
        float factor = codec_normalize_row(&codec_gain_shape, shape, parameters, row);
        assert_true(fabs((double)factor - sqrt(size)) <= 1e-4 * sqrt(size));
        for (size_t c = 0; c < HD; c++) {
            one += (double)row[c] * (double)row[c] / HD;
            assert_true(fabs((double)(row[c] * factor) + mean[c] - (double)rows[r * HD + c]) <= 1e-3);
        }
        assert_true(fabs(one - 1) <= 1e-4);
        scale += sqrt(size) / ROWS;
    }
    for (size_t c = 0; c < HD; c++) assert_true(fabs((double)parameters[centroids + c] - mean[c]) <= 1e-3);
    assert_true(fabs((double)parameters[centroids + HD] - scale) <= 1e-3 * scale);
    free(parameters);
    free(rows);
}

static void bad_frames_are_refused(void **state) {
    (void)state;
    const struct codec_shape shape = {.head_dim = 32, .group = 1, .width = 8, .bits = 4};
    size_t n = codec_parameters(&codec_gain_shape, shape);
    float *parameters = calloc(n, sizeof *parameters);
    const float bad[] = {NAN, INFINITY, -1};
    for (size_t i = 0; i < 3; i++) {
        struct terse_error error;
        parameters[n - 1] = bad[i];
        assert_int_equal(codec_check_parameters(&codec_gain_shape, shape, parameters, &error), TERSE_E_FORMAT);
        parameters[n - 1] = 1;
        parameters[n - 4] = i < 2 ? bad[i] : 0;
        assert_int_equal(codec_check_parameters(&codec_gain_shape, shape, parameters, &error), i < 2 ? TERSE_E_FORMAT : TERSE_OK);
        parameters[n - 4] = 0;
    }
    free(parameters);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_is_what_the_definition_says),
        cmocka_unit_test(reading_equals_decoded_rows),
        cmocka_unit_test(a_frame_is_the_mean_and_the_usual_size),
        cmocka_unit_test(bad_frames_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
