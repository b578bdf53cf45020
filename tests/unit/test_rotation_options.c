/* Tests the rotation that the caller gives instead of the model's file: frequencies against the formulas, and against files that say the same. */
#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MODELS TESTS_DIR "/fixtures/models/"

static struct terse_model *load(const char *path, const char *scaling, double scale, double base) {
    struct terse_model_options options = terse_model_options_defaults();
    struct terse_model *model;
    struct terse_error error;
    options.rope_scaling = scaling;
    options.rope_scale = (float)scale;
    options.rope_freq_base = (float)base;
    if (terse_model_load_with(path, &options, &model, &error)) fail_msg("%s", error.message);
    return model;
}

static void check_frequencies(const struct terse_model *model, double base, double scale) {
    assert_true(model->rope.n_rot >= 8);
    for (uint32_t i = 0; i < model->rope.n_rot / 2; i++) {
        double wanted = pow(base, -2.0 * i / model->rope.n_rot) / scale;
        assert_true(fabs((double)model->rope.frequency[i] / wanted - 1) < 1e-6);
    }
    assert_true(fabs((double)model->rope.magnitude - 1) < 1e-6);
}

static void test_base_and_scale(void **state) {
    (void)state;
    struct terse_model *own = load(MODELS "llama.gguf", NULL, 0, 0);
    static const struct {
        const char *scaling;
        double scale, base, wanted_scale;
    } cases[] = {{NULL, 0, 5000, 1}, {NULL, 4, 5000, 4}, {"linear", 4, 5000, 4}, {"none", 4, 5000, 1}, {"yarn", 0, 5000, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct terse_model *model = load(MODELS "llama.gguf", cases[i].scaling, cases[i].scale, cases[i].base);
        check_frequencies(model, cases[i].base, cases[i].wanted_scale);
        assert_true(model->fingerprint != own->fingerprint);
        assert_true(model->norms_fingerprint != own->norms_fingerprint);
        terse_model_free(model);
    }
    terse_model_free(own);
}

/* The file of gpt-oss says yarn: asked for in as many words it is the same rotation, and there is none without. */
static void test_yarn_as_a_file_has_it(void **state) {
    (void)state;
    struct terse_model *file = load(MODELS "gpt-oss.gguf", NULL, 0, 0);
    assert_true((double)file->rope.magnitude > 1.01);
    double scale = exp(((double)file->rope.magnitude - 1) / 0.1); /* eq. 22 of the paper */
    struct terse_model *asked = load(MODELS "gpt-oss.gguf", "yarn", scale, 0),
                       *linear = load(MODELS "gpt-oss.gguf", "linear", scale, 5000);
    for (uint32_t i = 0; i < file->rope.n_rot / 2; i++)
        assert_true(fabs((double)asked->rope.frequency[i] / (double)file->rope.frequency[i] - 1) < 1e-5);
    assert_true(fabs((double)asked->rope.magnitude - (double)file->rope.magnitude) < 1e-5);
    check_frequencies(linear, 5000, (double)(float)scale);
    terse_model_free(file);
    terse_model_free(asked);
    terse_model_free(linear);
}

static void refused(const char *path, const char *scaling, double scale, double base, const char *part) {
    struct terse_model_options options = terse_model_options_defaults();
    struct terse_model *model = (struct terse_model *)&options;
    struct terse_error error;
    options.rope_scaling = scaling;
    options.rope_scale = (float)scale;
    options.rope_freq_base = (float)base;
    assert_int_equal(terse_model_load_with(path, &options, &model, &error), TERSE_E_ARGUMENT);
    assert_null(model);
    if (!strstr(error.message, part)) fail_msg("'%s' does not speak of '%s'", error.message, part);
}

static void test_bad_options(void **state) {
    (void)state;
    refused(MODELS "llama.gguf", "longer", 0, 0, "use none, linear or yarn");
    refused(MODELS "llama.gguf", NULL, 0.5, 0, "RoPE scale 0.5");
    refused(MODELS "llama.gguf", NULL, -1, 0, "RoPE scale -1");
    refused(MODELS "llama.gguf", NULL, (double)INFINITY, 0, "RoPE scale inf");
    refused(MODELS "llama.gguf", NULL, 0, 1, "RoPE frequency base 1");
    refused(MODELS "llama.gguf", NULL, 0, (double)NAN, "RoPE frequency base");
    refused(MODELS "gpt2.gguf", NULL, 2, 0, "gpt2 has no RoPE to change");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_and_scale),
        cmocka_unit_test(test_yarn_as_a_file_has_it),
        cmocka_unit_test(test_bad_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
