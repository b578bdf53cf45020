/* The dense double-precision attention that tests hold the cache to. */
#include "support/cache_oracle.h"

#include "base/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sums of three uniform numbers, standard deviation 1. */
float oracle_random(struct oracle *o) {
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        o->random = o->random * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(o->random >> 11) * 0x1p-52 - 1;
    }
    return (float)sum;
}

struct oracle *oracle_new(const struct oracle_setup *setup, size_t capacity) {
    struct oracle *o = calloc(1, sizeof *o);
    struct terse_error error;
    o->setup = *setup;
    o->random = setup->seed + 1;
    o->capacity = capacity;
    uint32_t hd = setup->head_dim;
    o->rope = (struct rope){setup->pairing, hd, setup->n_rot ? setup->n_rot : hd, o->frequency,
                            setup->magnitude != 0 ? setup->magnitude : 1};
    for (uint32_t i = 0; i < o->rope.n_rot / 2; i++) o->frequency[i] = (float)pow(10000.0, -2.0 * i / o->rope.n_rot);
    o->shape = (struct cache_shape){setup->layers, setup->query_heads, setup->kv_heads, hd, 1 / sqrtf((float)hd), &o->rope};
    struct terse_cache_options options = {setup->method, setup->key, setup->value, setup->tail};
    if (method_resolve(&options, &o->method, &error)) fail_msg("%s", error.message);
    if (cache_new(&o->shape, &o->method, &o->cache, &error)) fail_msg("%s", error.message);
    size_t floats = setup->layers * capacity * setup->kv_heads * hd;
    o->k = calloc(floats, sizeof *o->k);
    o->v = calloc(floats, sizeof *o->v);
    return o;
}

void oracle_free(struct oracle *o) {
    cache_free(o->cache);
    free(o->k);
    free(o->v);
    free(o);
}

/* ---- Which tokens are where */

static bool streaming(const struct oracle *o) { return o->method.policy == &policy_streaming; }

size_t oracle_sinks(const struct oracle *o) {
    if (!streaming(o)) return 0;
    return o->length < o->method.parameters.sinks ? o->length : o->method.parameters.sinks;
}

size_t oracle_first(const struct oracle *o) {
    size_t recent = o->method.parameters.budget - o->method.parameters.sinks, sinks = oracle_sinks(o);
    return streaming(o) && o->length > sinks + recent ? o->length - recent : sinks;
}

/* ---- Numbers as they are stored */

static void round_row(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = half_to_float(half_from_float(x[i]));
}

static void quantize_row(const char *codec, float *x, size_t n) {
    bool four = strcmp(codec, "q4_0") == 0;
    if (strcmp(codec, "f16") == 0) {
        round_row(x, n);
        return;
    }
    for (size_t b = 0; b < n; b += 32) {
        float extreme = 0;
        for (size_t j = b; j < b + 32; j++)
            if (fabsf(x[j]) > fabsf(extreme)) extreme = x[j];
        float d = four ? extreme / -8 : fabsf(extreme) / 127, inverse = d != 0 ? 1 / d : 0,
              scale = half_to_float(half_from_float(d));
        for (size_t j = b; j < b + 32; j++) {
            float code = four ? fminf(15, truncf(fmaf(x[j], inverse, 8.5f))) - 8 : roundf(x[j] * inverse);
            x[j] = code * scale;
        }
    }
}

static float *stored(const struct oracle *o, float *side, uint32_t layer, size_t token) {
    return side + (layer * o->capacity + token) * o->setup.kv_heads * o->setup.head_dim;
}

/* Applies `codec` to tokens [first, last) of a layer. */
static void store_tokens(struct oracle *o, uint32_t layer, size_t first, size_t last, const char *key, const char *value) {
    size_t width = o->setup.kv_heads * o->setup.head_dim;
    for (size_t t = first; t < last; t++) {
        quantize_row(key, stored(o, o->k, layer, t), width);
        quantize_row(value, stored(o, o->v, layer, t), width);
    }
}

/* ---- Attention */

/* Rotates by position in double precision. */
static void rotate(const struct oracle *o, const float *x, double position, double *out) {
    uint32_t hd = o->setup.head_dim, n_rot = o->rope.n_rot;
    bool adjacent = o->rope.pairing == ROPE_ADJACENT;
    for (uint32_t c = 0; c < hd; c++) out[c] = (double)x[c];
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        uint32_t a = adjacent ? 2 * i : i, b = adjacent ? 2 * i + 1 : i + n_rot / 2;
        double angle = position * (double)o->frequency[i], re = (double)x[a], im = (double)x[b], m = (double)o->rope.magnitude;
        out[a] = m * (re * cos(angle) - im * sin(angle));
        out[b] = m * (re * sin(angle) + im * cos(angle));
    }
}

/* out[hd] of query head h at the token `at`, which sees all kept tokens up to itself. Keys in o->k are rotated already unless the
 * method streams; then position = number of kept tokens before. */
static void attend_dense(const struct oracle *o, uint32_t layer, const float *q, size_t at, uint32_t h, double *out) {
    uint32_t hd = o->setup.head_dim, head = h / (o->setup.query_heads / o->setup.kv_heads);
    size_t sinks = oracle_sinks(o), first = oracle_first(o), n = 0; /* of the tokens before the step */
    double *logits = malloc((at + 1) * sizeof *logits), turned_q[256], turned_k[256], max = -INFINITY, sum = 0;
    size_t *tokens = malloc((at + 1) * sizeof *tokens);
    for (size_t t = 0; t <= at; t++)
        if (t < sinks || t >= first) tokens[n++] = t;
    rotate(o, q, streaming(o) ? (double)(n - 1) : (double)at, turned_q);
    for (size_t i = 0; i < n; i++) {
        const float *k = stored(o, o->k, layer, tokens[i]) + head * hd;
        for (uint32_t c = 0; c < hd; c++) turned_k[c] = (double)k[c];
        if (streaming(o)) rotate(o, k, (double)i, turned_k);
        logits[i] = 0;
        for (uint32_t c = 0; c < hd; c++) logits[i] += turned_q[c] * turned_k[c];
        logits[i] *= (double)o->shape.scale;
        max = fmax(max, logits[i]);
    }
    memset(out, 0, hd * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        const float *v = stored(o, o->v, layer, tokens[i]) + head * hd;
        double weight = exp(logits[i] - max);
        sum += weight;
        for (uint32_t c = 0; c < hd; c++) out[c] += weight * (double)v[c];
    }
    for (uint32_t c = 0; c < hd; c++) out[c] /= sum;
    free(logits);
    free(tokens);
}

static void compare(struct oracle *o, uint32_t layer, const float *q, const float *out, size_t first, size_t n) {
    size_t hd = o->setup.head_dim, heads = o->setup.query_heads;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t h = 0; h < heads; h++) {
            double expected[256];
            attend_dense(o, layer, q + (i * heads + h) * hd, first + i, h, expected);
            for (size_t c = 0; c < hd; c++) {
                double difference = fabs((double)out[(i * heads + h) * hd + c] - expected[c]);
                if (!(difference <= 1e-4))
                    fail_msg("%s layer %u token %zu head %u channel %zu: %g, not %g", o->method.name, layer, first + i, h, c,
                             (double)out[(i * heads + h) * hd + c], expected[c]);
                o->worst = fmax(o->worst, difference);
                o->compared++;
            }
        }
    }
}

/* ---- Steps */

/* Brings a layer's stored numbers to what they are after the step; `window` and `length` are those of the step's end. */
static void settle(struct oracle *o, uint32_t layer, size_t before, size_t window_before, size_t window, size_t sinks) {
    store_tokens(o, layer, window_before, window, o->method.key->name, o->method.value->name);
    store_tokens(o, layer, before < sinks ? before : sinks, sinks, "f16", "f16");
    store_tokens(o, layer, window > before ? window : before, o->length, "f16", "f16");
}

static void check_rotation(const struct oracle *o, const float *raw, const float *k, size_t token) {
    double expected[256];
    size_t hd = o->setup.head_dim;
    for (uint32_t head = 0; head < o->setup.kv_heads; head++) {
        rotate(o, raw + head * hd, (double)token, expected);
        for (size_t c = 0; c < hd; c++) assert_true(fabs((double)k[head * hd + c] - expected[c]) <= 2e-6);
    }
}

static void run_step(struct oracle *o, enum cache_step_kind kind, size_t n, size_t piece, bool ask) {
    struct terse_error error;
    size_t hd = o->setup.head_dim, k_width = o->setup.kv_heads * hd, q_width = o->setup.query_heads * hd, before = o->length;
    assert_true(before + n <= o->capacity);
    float *raw = malloc(n * k_width * sizeof *raw), *k = malloc(n * k_width * sizeof *k);
    float *q = malloc(n * q_width * sizeof *q), *out = malloc(n * q_width * sizeof *out);
    struct oracle end = *o;
    end.length += n;
    size_t sinks = oracle_sinks(&end), window = o->window > sinks ? o->window : sinks, window_before = window;
    if (kind == CACHE_STEP_PAPER)
        window = end.length;
    else
        while (end.length - window >= (size_t)o->method.tail_tokens + 64 || oracle_first(&end) >= window + 64) window += 64;
    if (cache_step_begin(o->cache, kind, n, &error)) fail_msg("%s", error.message);
    for (uint32_t layer = 0; layer < o->setup.layers; layer++) {
        float *v = stored(o, o->v, layer, before);
        for (size_t i = 0; i < n * k_width; i++) raw[i] = k[i] = oracle_random(o);
        for (size_t i = 0; i < n * k_width; i++) v[i] = oracle_random(o);
        for (size_t i = 0; i < n * q_width; i++) q[i] = 2 * oracle_random(o);
        float *v_given = malloc(n * k_width * sizeof *v_given);
        memcpy(v_given, v, n * k_width * sizeof *v);
        cache_layer_begin(o->cache, layer, k, v_given);
        for (size_t i = 0; !streaming(o) && i < n; i++) check_rotation(o, raw + i * k_width, k + i * k_width, before + i);
        memcpy(stored(o, o->k, layer, before), k, n * k_width * sizeof *k);
        struct oracle step = *o; /* tokens before the step decide what is kept during it */
        step.length = before;
        if (kind == CACHE_STEP_PAPER) settle(&end, layer, before, window_before, window, sinks);
        size_t each = piece ? piece : n;
        for (size_t first = 0; ask && first < n; first += each) {
            size_t count = n - first < each ? n - first : each;
            cache_layer_attend(o->cache, q + first * q_width, first, count, out + first * q_width);
        }
        if (ask) compare(&step, layer, q, out, before, n);
        o->worst = fmax(o->worst, step.worst);
        o->compared = step.compared;
        cache_layer_end(o->cache);
        if (kind != CACHE_STEP_PAPER) settle(&end, layer, before, window_before, window, sinks);
        free(v_given);
    }
    cache_step_end(o->cache);
    o->length = end.length;
    o->window = window;
    assert_int_equal(cache_length(o->cache), o->length);
    struct terse_cache_report report;
    cache_report(o->cache, &report);
    assert_int_equal(report.kept, oracle_sinks(o) + o->length - oracle_first(o));
    free(raw);
    free(k);
    free(q);
    free(out);
}

void oracle_step(struct oracle *o, enum cache_step_kind kind, size_t n, size_t piece) { run_step(o, kind, n, piece, true); }
void oracle_skip(struct oracle *o, enum cache_step_kind kind, size_t n) { run_step(o, kind, n, 0, false); }
