/* Computes rotation frequencies from metadata. Linear: Chen et al. 2023; yarn: Peng et al. 2023, eq. 19 to 23, with the defaults
 * that GGUF files leave out (beta_fast 32, beta_slow 1); llama-3: a factor per pair, computed by the converter; longrope: Ding et
 * al. 2024, two searched ones per pair. */
#include "model/rope_scaling.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct scaling {
    float base, factor;   /* factor: how many times longer than trained */
    bool yarn, unrounded; /* unrounded: struct architecture's */
    uint32_t original_context;
    float extrapolation, attention_factor, magnitude, beta_fast, beta_slow; /* yarn; magnitude 0: not given */
    float log_multiplier; /* of yarn with latents: all logits grow by (1 + log_multiplier ln factor)^2; 0: rotated channels do */
};

static bool is(struct gguf_string string, const char *text) {
    return string.size == strlen(text) && !memcmp(string.data, text, string.size);
}

static enum terse_status read_f32(const struct gguf *gguf, const char *prefix, const char *name, float *value,
                                  struct terse_error *error) {
    char key[128];
    bool found;
    snprintf(key, sizeof key, "%s.rope.%s", prefix, name);
    return gguf_get_f32(gguf, key, value, &found, error);
}

/* Applies what the caller asks for, where that is possible. */
static enum terse_status check_options(const struct terse_model_options *o, struct terse_error *error) {
    const char *type = o->rope_scaling;
    if (type && strcmp(type, "none") != 0 && strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return status_fail(error, TERSE_E_ARGUMENT, "RoPE scaling \"%.40s\": use none, linear or yarn", type);
    bool scales = o->rope_scale >= 1 && isfinite(o->rope_scale), based = o->rope_freq_base > 1 && isfinite(o->rope_freq_base);
    if (!(scales || (o->rope_scale >= 0 && o->rope_scale <= 0)))
        return status_fail(error, TERSE_E_ARGUMENT, "RoPE scale %g: use 1 or more, or 0 for the file's", (double)o->rope_scale);
    if (!(based || (o->rope_freq_base >= 0 && o->rope_freq_base <= 0)))
        return status_fail(error, TERSE_E_ARGUMENT, "RoPE frequency base %g: use more than 1, or 0 for the file's",
                           (double)o->rope_freq_base);
    return TERSE_OK;
}

static void apply_options(const struct terse_model_options *o, struct scaling *s) {
    if (o->rope_scaling) s->yarn = strcmp(o->rope_scaling, "yarn") == 0;
    if (o->rope_scale > 0) s->factor = o->rope_scale;
    if (o->rope_scaling && strcmp(o->rope_scaling, "none") == 0) s->factor = 1;
    if (o->rope_freq_base > 0) s->base = o->rope_freq_base;
}

static enum terse_status read_scaling(const struct gguf *gguf, const char *prefix, const struct terse_model_options *asked,
                                      struct scaling *s, struct terse_error *error) {
    enum terse_status status;
    char key[128];
    bool found = false;
    struct gguf_string type = {0};

    /* scale_linear is the older name of a linear factor. */
    if ((status = read_f32(gguf, prefix, "freq_base", &s->base, error))) return status;
    if ((status = read_f32(gguf, prefix, "scale_linear", &s->factor, error))) return status;
    if ((status = read_f32(gguf, prefix, "scaling.factor", &s->factor, error))) return status;
    if ((status = read_f32(gguf, prefix, "scaling.yarn_ext_factor", &s->extrapolation, error))) return status;
    if ((status = read_f32(gguf, prefix, "scaling.attn_factor", &s->attention_factor, error))) return status;
    if ((status = read_f32(gguf, prefix, "scaling.yarn_attn_factor", &s->magnitude, error))) return status;
    if ((status = read_f32(gguf, prefix, "scaling.yarn_log_multiplier", &s->log_multiplier, error))) return status;
    if ((status = read_f32(gguf, prefix, "scaling.yarn_beta_fast", &s->beta_fast, error))) return status;
    if ((status = read_f32(gguf, prefix, "scaling.yarn_beta_slow", &s->beta_slow, error))) return status;
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", prefix);
    if ((status = gguf_get_u32(gguf, key, &s->original_context, &found, error))) return status;

    snprintf(key, sizeof key, "%s.rope.scaling.type", prefix);
    if ((status = gguf_get_string(gguf, key, &type, &found, error))) return status;
    s->yarn = found && is(type, "yarn");
    if (found && is(type, "none")) {
        s->factor = 1;
    } else if (found && !s->yarn && !is(type, "linear") && !is(type, "longrope")) {
        char shown[48];
        struct text_line line = text_line_begin(shown, sizeof shown);
        text_line_string(&line, type.data, type.size, true);
        text_line_end(&line);
        return status_fail(
            error, TERSE_E_UNSUPPORTED,
            "RoPE scaling %s is not supported; supported are none, linear, yarn, longrope and llama-3's rope_freqs tensor", shown);
    }
    apply_options(asked, s);
    if (found && is(type, "longrope") && !gguf_find_tensor(gguf, ROPE_FACTORS_LONG))
        return status_fail(error, TERSE_E_FORMAT, "tensor " ROPE_FACTORS_LONG " of longrope is missing: convert the model again");
    if (!(s->base > 1) || !isfinite(s->base) || !(s->factor > 0) || !isfinite(s->factor) || !(s->attention_factor > 0) ||
        !isfinite(s->attention_factor) || !isfinite(s->magnitude) || !(s->log_multiplier >= 0) || !isfinite(s->log_multiplier) ||
        !(s->beta_fast > 0) || !(s->beta_slow > 0) || !isfinite(s->extrapolation) || (s->yarn && !s->original_context))
        return status_fail(error, TERSE_E_FORMAT,
                           "the %s.rope.* metadata is out of range (freq_base %g, scaling factor %g): the file is damaged", prefix,
                           (double)s->base, (double)s->factor);
    return TERSE_OK;
}

/* Returns the pair (a real number) that makes `cycles` full rotations within the original context. */
static double pair_of_cycles(const struct scaling *s, uint32_t n_rot, double cycles) {
    return n_rot * log(s->original_context / (cycles * 2 * M_PI)) / (2 * log((double)s->base));
}

/* Returns 1 for fast pairs, which keep their frequency; 0 for slow ones, which are interpolated. */
static double yarn_keep(const struct scaling *s, uint32_t n_rot, uint32_t pair) {
    double first = pair_of_cycles(s, n_rot, s->beta_fast), last = pair_of_cycles(s, n_rot, s->beta_slow);
    double low = fmax(0, s->unrounded ? first : floor(first)), high = fmin(n_rot - 1, s->unrounded ? last : ceil(last));
    double ramp = (pair - low) / fmax(0.001, high - low);
    return (1 - fmin(1, fmax(0, ramp))) * s->extrapolation;
}

static enum terse_status apply_factors(const struct gguf *gguf, const char *name, uint32_t n_rot, float *frequency,
                                       struct terse_error *error) {
    const struct gguf_tensor *factors = gguf_find_tensor(gguf, name);
    if (!factors) return TERSE_OK;
    if (factors->type != TENSOR_F32 || factors->n_dims != 1 || factors->dims[0] != n_rot / 2)
        return status_fail_at(error, TERSE_E_FORMAT, factors->offset, "tensor %s is not %u F32 factors: convert the model again",
                              name, n_rot / 2);
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        float factor;
        memcpy(&factor, (const char *)factors->data + i * sizeof factor, sizeof factor);
        if (!(factor > 0) || !isfinite(factor))
            return status_fail_at(error, TERSE_E_FORMAT, factors->offset, "tensor %s holds %g at %u: the file is damaged", name,
                                  (double)factor, i);
        frequency[i] /= factor;
    }
    return TERSE_OK;
}

enum terse_status rope_scaling_load(const struct gguf *gguf, const struct architecture *architecture,
                                    const struct terse_model_options *asked, const char *factors, uint32_t n_rot, uint32_t context,
                                    float *frequency, float *magnitude, float *logits, struct terse_error *error) {
    struct scaling s = {.base = 10000,
                        .factor = 1,
                        .original_context = context,
                        .extrapolation = 1,
                        .unrounded = architecture->yarn_unrounded,
                        .attention_factor = 1,
                        .beta_fast = 32,
                        .beta_slow = 1};
    enum terse_status status = check_options(asked, error);
    if (!status) status = read_scaling(gguf, architecture->name, asked, &s, error);
    if (status) return status;
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        double own = pow((double)s.base, -2.0 * i / n_rot);
        double keep = s.yarn ? yarn_keep(&s, n_rot, i) : 0;
        frequency[i] = (float)(own * keep + own / (double)s.factor * (1 - keep));
    }
    float default_magnitude = 1 + 0.1f * logf(fmaxf(s.factor, 1)); /* eq. 22 */
    *magnitude = s.attention_factor * (!s.yarn ? 1 : s.magnitude > 0 ? s.magnitude : default_magnitude);
    if (s.yarn && architecture->latents && s.log_multiplier > 0) {
        const float whole = 1 + s.log_multiplier * logf(fmaxf(s.factor, 1));
        *magnitude = s.attention_factor;
        *logits = whole * whole;
    }
    return apply_factors(gguf, factors, n_rot, frequency, error);
}
