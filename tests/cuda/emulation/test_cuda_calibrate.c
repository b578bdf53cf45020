/* terse_calibrate on the device "cuda", by the plug-in: values are coded as well by its codebook as by the CPU's, and gradients weigh samples
 * as much. */
#include "format/codebook.h"
#include "support/fixture_model.h"
#include "terse_calibrate.h"
#include "train/capture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WINDOW = 100, WINDOWS = 6, TOKENS = WINDOW * WINDOWS };

static struct terse_codebook *learn(const struct terse_model *model, const char *method, const char *device,
                                    const int32_t *tokens) {
    struct terse_calibration options = terse_calibration_defaults();
    struct terse_codebook *codebook;
    struct terse_error error;
    options.method = method;
    options.device = device;
    options.window = WINDOW;
    options.threads = 2;
    if (terse_calibrate(model, &options, tokens, TOKENS, &codebook, &error)) fail_msg("%s: %s", device, error.message);
    return codebook;
}

/* Returns the sum of the squared distances of all values' sub-vectors from the nearest of the codebook's centroids. */
static double distortion(const struct terse_model *m, const struct capture *samples, const struct terse_codebook *codebook) {
    const struct coding coding = codebook_info(codebook)->value;
    const size_t width = coding.width, k = (size_t)1 << coding.bits, parts = m->head_dim / width, n = capture_samples(samples);
    float *parameters = malloc(parts * k * width * sizeof *parameters), *rows = malloc(n * width * sizeof *rows);
    double sum = 0;
    for (size_t set = 0; set < (size_t)m->layers * m->kv_heads; set++) {
        codebook_parameters(codebook, CODEC_VALUES, set, parameters);
        for (size_t part = 0; part < parts; part++) {
            const float *centroids = parameters + part * k * width;
            capture_rows(
                samples,
                &(struct capture_reading){CODEC_VALUES, (uint32_t)(set / m->kv_heads), (uint32_t)(set % m->kv_heads), 0, 1, n},
                part * width, width, rows);
            for (size_t r = 0; r < n; r++) {
                double least = INFINITY;
                for (size_t c = 0; c < k; c++) {
                    double square = 0;
                    for (size_t i = 0; i < width; i++)
                        square += pow((double)rows[r * width + i] - (double)centroids[c * width + i], 2);
                    least = fmin(least, square);
                }
                sum += least;
            }
        }
    }
    free(parameters);
    free(rows);
    return sum;
}

static void codebooks_are_as_good_as_the_cpus(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("llama");
    int32_t *tokens = fixture_tokens(model, TOKENS);
    struct terse_codebook *codebooks[] = {learn(model, "million-2", "cpu", tokens), learn(model, "million-2", "cuda", tokens)};
    const struct capture_options options = {
        .side = {{0}, {.kept = true}}, .window = WINDOW, .positions = model->context, .skip = 4, .budget = (size_t)1 << 30};
    struct capture *samples;
    struct terse_error error;
    if (capture_new(model, &options, tokens, TOKENS, &samples, &error)) fail_msg("%s", error.message);
    const double cpu = distortion(model, samples, codebooks[0]), gpu = distortion(model, samples, codebooks[1]);
    print_message("distortion %g, the CPU's %g\n", gpu, cpu);
    assert_true(cpu > 0 && gpu <= cpu * 1.01);
    for (int i = 0; i < 2; i++) terse_codebook_free(codebooks[i]);
    capture_free(samples);
    free(tokens);
    terse_model_free(model);
}

static void samples_weigh_as_much(void **state) {
    (void)state;
    struct terse_model *model = fixture_model("llama");
    int32_t *tokens = fixture_tokens(model, TOKENS);
    struct terse_codebook *codebooks[] = {learn(model, "antkv-2", "cpu", tokens), learn(model, "antkv-2", "cuda", tokens)};
    const double cpu = codebook_info(codebooks[0])->effective_samples, gpu = codebook_info(codebooks[1])->effective_samples;
    print_message("effective samples %g, the CPU's %g\n", gpu, cpu);
    assert_true(fabs(gpu / cpu - 1) <= 0.05);
    for (int i = 0; i < 2; i++) terse_codebook_free(codebooks[i]);
    free(tokens);
    terse_model_free(model);
}

int main(void) {
    if (setenv("TERSE_PLUGIN_PATH", PLUGINS, 1)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(codebooks_are_as_good_as_the_cpus),
                                       cmocka_unit_test(samples_weigh_as_much)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
