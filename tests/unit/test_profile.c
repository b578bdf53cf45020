/* A profile against its definition in double precision: means, metrics, uncorrelated components, gains and importance from the rows and
 * hidden states that a forward pass delivers; the same bits for any number of threads; interruption. */
#include "backend/cpu/vector.h"
#include "backend/cpu/weight_moments.h"
#include "backend/cpu/weight_profile.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "format/transform.h"
#include "method/policy.h"
#include "support/fixture_model.h"
#include "train/backward.h"
#include "train/profile.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WINDOW = 300, WINDOWS = 2, TOKENS = WINDOW * WINDOWS + 7, MOST_HD = 128 };

static int32_t *random_tokens(const struct terse_model *model) {
    int32_t *tokens = malloc(TOKENS * sizeof *tokens);
    uint64_t seed = 1;
    assert_non_null(tokens);
    for (size_t i = 0; i < TOKENS; i++) tokens[i] = (int32_t)((random_next(&seed) >> 32) % model->vocabulary);
    return tokens;
}

/* ---- The profile */

struct learned {
    const struct terse_model *model;
    const int32_t *tokens;
    struct profile_options options;
    float *parameters[2];
    uint64_t seen;
    enum terse_status status;
    struct terse_error error;
};

static void learn(void *user) {
    struct learned *l = user;
    l->status = profile_learn(l->model, &l->options, l->tokens, TOKENS, l->parameters, &l->seen, &l->error);
}

static size_t floats_of(const struct terse_model *m) {
    return (size_t)m->layers * m->kv_heads * transform_parameter_floats(m->head_dim);
}

static struct learned learn_with(const struct terse_model *m, const int32_t *tokens, uint32_t threads,
                                 struct terse_progress progress) {
    struct learned l = {.model = m, .tokens = tokens};
    struct thread_pool *pool;
    l.options = (struct profile_options){.window = WINDOW, .budget = (size_t)1 << 40, .progress = progress};
    for (int side = 0; side < 2; side++) assert_non_null(l.parameters[side] = calloc(floats_of(m), sizeof(float)));
    assert_int_equal(thread_pool_new(threads, &pool, NULL), TERSE_OK);
    thread_pool_run(pool, learn, &l);
    thread_pool_free(pool);
    return l;
}

static void release(struct learned *l) {
    free(l->parameters[0]);
    free(l->parameters[1]);
}

/* ---- What a forward pass delivers, of all windows: [layers][WINDOWS][WINDOW][heads][hd], of hidden states [width] */

enum { K, V, HIDDEN, KINDS };

struct delivered {
    const struct terse_model *model;
    size_t window;
    float *rows[KINDS];
};

static size_t width_of(const struct terse_model *m, int kind) {
    return kind == HIDDEN ? m->width : (size_t)m->kv_heads * m->head_dim;
}

static const float *row_of(const struct delivered *d, int kind, size_t layer, size_t window, size_t t, size_t head) {
    return d->rows[kind] + ((layer * WINDOWS + window) * WINDOW + t) * width_of(d->model, kind) + head * d->model->head_dim;
}

static void keep_layer(void *user, uint32_t layer, const struct captured *rows) {
    struct delivered *d = user;
    const float *from[KINDS] = {rows->k, rows->v, rows->hidden};
    for (int kind = 0; kind < KINDS; kind++) {
        size_t n = WINDOW * width_of(d->model, kind);
        memcpy(d->rows[kind] + (layer * WINDOWS + d->window) * n, from[kind], n * sizeof(float));
    }
}

static struct delivered deliver(const struct terse_model *m, const int32_t *tokens) {
    struct delivered d = {.model = m};
    struct backward_sink sink = {keep_layer, &d};
    int32_t window[WINDOW], bos;
    bool add_bos;
    struct backward *backward;
    for (int kind = 0; kind < KINDS; kind++)
        assert_non_null(d.rows[kind] = calloc(m->layers * (size_t)WINDOWS * WINDOW * width_of(m, kind), sizeof(float)));
    bos = terse_token_bos(m, &add_bos);
    assert_int_equal(backward_new(NULL, m, WINDOW, false, NULL, &backward, NULL), TERSE_OK);
    for (d.window = 0; d.window < WINDOWS; d.window++) {
        memcpy(window, tokens + d.window * WINDOW, sizeof window);
        if (add_bos) window[0] = bos;
        assert_int_equal(backward_run(backward, window, WINDOW, &sink, NULL, NULL, NULL), TERSE_OK);
    }
    backward_free(backward);
    return d;
}

/* A row in the frame of a run; rotated channels are multiplied by `magnitude`. */
static void to_frame(const struct rope *rope, size_t t, double magnitude, const float *row, double *out) {
    size_t pairs = rope->n_rot / 2;
    for (size_t c = 0; c < rope->head_dim; c++) out[c] = (double)row[c];
    for (size_t i = 0; i < pairs; i++) {
        size_t a = rope->pairing == ROPE_ADJACENT ? 2 * i : i, b = rope->pairing == ROPE_ADJACENT ? 2 * i + 1 : i + pairs;
        double angle = (double)(t % 256) * (double)rope->frequency[i];
        out[a] = magnitude * ((double)row[a] * cos(angle) - (double)row[b] * sin(angle));
        out[b] = magnitude * ((double)row[a] * sin(angle) + (double)row[b] * cos(angle));
    }
}

/* ---- One layer, KV head and side */

static double metric[MOST_HD][MOST_HD], inverse[MOST_HD][MOST_HD], products[MOST_HD][MOST_HD];

static void find_metric(const struct delivered *d, enum codec_side side, size_t layer, size_t head) {
    const struct terse_model *m = d->model;
    const struct matrix *o = &m->layer[layer].o;
    size_t hd = m->head_dim, group = m->query_heads / m->kv_heads;
    float *weights = malloc(o->columns * sizeof *weights);
    assert_non_null(weights);
    memset(metric, 0, sizeof metric);
    for (size_t r = 0; r < o->rows && side == CODEC_VALUES; r++) {
        vector_dequantize(o->type, (const char *)o->data + r * o->row_bytes, weights, o->columns);
        for (size_t g = 0; g < group; g++) {
            const float *w = weights + (head * group + g) * hd;
            for (size_t i = 0; i < hd; i++)
                for (size_t j = 0; j < hd; j++) metric[i][j] += (double)w[i] * (double)w[j];
        }
    }
    if (side == CODEC_KEYS) {
        double power[MOST_HD];
        float *scratch = malloc(weight_moments_scratch(m) * sizeof *scratch);
        assert_non_null(scratch);
        weight_query_power(m, (uint32_t)layer, (uint32_t)head, scratch, power); /* test_weight_profile holds it to its definition */
        for (size_t c = 0; c < hd; c++) metric[c][c] = power[c];
        free(scratch);
    }
    double trace = 0;
    for (size_t c = 0; c < hd; c++) trace += metric[c][c] / (double)hd;
    for (size_t i = 0; i < hd; i++)
        for (size_t j = 0; j < hd; j++) metric[i][j] /= trace;
    free(weights);
}

/* inverse[c]: what row c of the coefficients z reads of a row: sum_c z_c basis_c = row. */
static void invert(const float *basis, size_t hd) {
    static double a[MOST_HD][2 * MOST_HD];
    for (size_t i = 0; i < hd; i++) {
        for (size_t c = 0; c < hd; c++) a[i][c] = (double)basis[c * hd + i];
        for (size_t c = 0; c < hd; c++) a[i][hd + c] = i == c;
    }
    for (size_t k = 0; k < hd; k++) {
        size_t most = k;
        for (size_t i = k + 1; i < hd; i++)
            if (fabs(a[i][k]) > fabs(a[most][k])) most = i;
        for (size_t j = 0; j < 2 * hd; j++) {
            double upper = a[k][j];
            a[k][j] = a[most][j];
            a[most][j] = upper;
        }
        assert_true(fabs(a[k][k]) > 1e-6);
        for (size_t j = 2 * hd; j-- > k;) a[k][j] /= a[k][k];
        for (size_t i = 0; i < hd; i++) {
            double factor = a[i][k];
            for (size_t j = k; j < 2 * hd && i != k; j++) a[i][j] -= factor * a[k][j];
        }
    }
    for (size_t i = 0; i < hd; i++)
        for (size_t c = 0; c < hd; c++) inverse[i][c] = a[i][hd + c];
}

/* mean[hd] of the keys before rotation, of the pairs that turn by half a radian or more within a run of 256 tokens; else 0. */
static void mean_of_keys(const struct delivered *d, const struct rope *rope, size_t layer, size_t head, double *mean) {
    const size_t hd = d->model->head_dim, pairs = rope->n_rot / 2;
    for (size_t c = 0; c < hd; c++) {
        const size_t pair = rope->pairing == ROPE_ADJACENT ? c / 2 : c < pairs ? c : c - pairs;
        mean[c] = 0;
        if (c >= rope->n_rot || 256 * (double)rope->frequency[pair] < 0.5) continue;
        for (size_t i = 0; i < WINDOWS * WINDOW; i++)
            if (i % WINDOW >= SINKS)
                mean[c] += (double)row_of(d, K, layer, i / WINDOW, i % WINDOW, head)[c] / (WINDOWS * (WINDOW - SINKS));
    }
}

/* A row that is coded, in the frame of a run: a key is less `mean` before rotation. */
static void coded_row(const struct delivered *d, enum codec_side side, const struct rope *rope, size_t layer, size_t head, size_t i,
                      const double *mean, double *out) {
    const float *row = row_of(d, side == CODEC_KEYS ? K : V, layer, i / WINDOW, i % WINDOW, head);
    float less[MOST_HD];
    for (size_t c = 0; c < d->model->head_dim; c++) less[c] = (float)((double)row[c] - mean[c]);
    to_frame(rope, i % WINDOW, (double)rope->magnitude, less, out);
}

static void check_set(const struct delivered *d, const struct learned *l, enum codec_side side, size_t layer, size_t head) {
    const struct terse_model *m = d->model;
    size_t hd = m->head_dim, set = layer * m->kv_heads + head, n = WINDOWS * (WINDOW - SINKS);
    struct transform_parameters p =
        transform_parameters_at(l->parameters[side] + set * transform_parameter_floats(m->head_dim), m->head_dim);
    double mean[MOST_HD] = {0}, turning[MOST_HD] = {0}, x[MOST_HD], z[MOST_HD], least = INFINITY, most = 0, gains = 0;
    struct rope still = m->sliding_rope.n_rot && model_slides(m, (uint32_t)layer) ? m->sliding_rope : m->rope;
    if (side == CODEC_VALUES) still.n_rot = 0;
    if (side == CODEC_KEYS) mean_of_keys(d, &still, layer, head, turning);
    find_metric(d, side, layer, head);
    invert(p.basis, hd);
    memset(products, 0, sizeof products);
    for (size_t i = 0; i < WINDOWS * WINDOW; i++) {
        if (i % WINDOW < SINKS) continue;
        coded_row(d, side, &still, layer, head, i, turning, x);
        for (size_t c = 0; c < hd; c++) mean[c] += x[c] / (double)n;
    }
    for (size_t i = 0; i < WINDOWS * WINDOW; i++) {
        double cost = 0, gain = 0;
        if (i % WINDOW < SINKS) continue;
        coded_row(d, side, &still, layer, head, i, turning, x);
        for (size_t c = 0; c < hd; c++) x[c] -= mean[c];
        for (size_t c = 0; c < hd; c++) {
            z[c] = 0;
            for (size_t j = 0; j < hd; j++) z[c] += inverse[c][j] * x[j];
            for (size_t j = 0; j < hd; j++) cost += x[c] * metric[c][j] * x[j];
            gain += z[c] * z[c] / (double)hd;
        }
        if (!(fabs(gain * (double)hd / cost - 1) < 5e-3))
            fail_msg("side %d, set %zu: cost %g, squares %g", side, set, cost, gain * (double)hd);
        least = fmin(least, sqrt(gain));
        most = fmax(most, sqrt(gain));
        gains += gain / (double)n;
        for (size_t c = 0; c < hd; c++)
            for (size_t j = 0; j < hd; j++) products[c][j] += z[c] * z[j] / gain / (double)n;
    }
    for (size_t c = 0; c < hd; c++) {
        double size = (double)p.size[c];
        if (!(fabs((double)p.mean[c] - mean[c]) < 1e-3 * most))
            fail_msg("side %d set %zu c %zu mean %g not %g; most %g", side, set, c, (double)p.mean[c], mean[c], most);
        for (size_t j = 0; j < hd; j++)
            if (!(fabs(products[c][j] - (c == j) * size * size) < 5e-3 * (double)p.size[0] * (double)p.size[0]))
                fail_msg("side %d, set %zu: components %zu and %zu, %g, size %g", side, set, c, j, products[c][j], size);
    }
    for (size_t c = 0; c < hd; c++)
        if (!(fabs((double)p.pre_rope_mean[c] - (double)still.magnitude * turning[c]) < 1e-3 * most))
            fail_msg("side %d set %zu c %zu mean before rotation %g", side, set, c, (double)p.pre_rope_mean[c]);
    assert_true(fabs((double)p.gain / sqrt(gains) - 1) < 5e-3);
    assert_true(fabs((double)p.gain_least / least * 1.5 - 1) < 5e-3 && fabs((double)p.gain_most / most / 1.5 - 1) < 5e-3);
}

/* ---- Importance */

/* What is kept of a set, but for arrays. */
static struct transform_parameters kept(const struct terse_codebook *weights, const struct learned *l, enum codec_side side,
                                        size_t set) {
    const size_t n = transform_parameter_floats(l->model->head_dim);
    float *own = malloc(n * sizeof *own);
    assert_non_null(own);
    memcpy(own, l->parameters[side] + set * n, n * sizeof *own);
    if (weights) codebook_parameters(weights, side, set, own);
    const struct transform_parameters parameters = transform_parameters_at(own, l->model->head_dim);
    free(own);
    return parameters;
}

/* log2 of how much larger squares of the text's rows are than those that the weights imply. */
static double grown(const struct terse_codebook *weights, const struct learned *l, enum codec_side side, size_t set) {
    return 2 * log2((double)kept(NULL, l, side, set).gain / (double)kept(weights, l, side, set).gain);
}

static double residual_of(const struct delivered *d, size_t layer) {
    double sum = 0;
    for (size_t i = 0; i < WINDOWS * WINDOW; i++) {
        const float *hidden = d->rows[HIDDEN] + (layer * WINDOWS * WINDOW + i) * d->model->width;
        double square = 0;
        for (size_t c = 0; c < d->model->width; c++) square += (double)hidden[c] * (double)hidden[c];
        sum += log2(square / d->model->width);
    }
    return sum / (WINDOWS * WINDOW);
}

/* What the weights imply, times the squares of the text's rows, over the residual stream; where that goes through a norm, the part of a layer's
 * values. */
static void check_importance(const struct delivered *d, const struct learned *l) {
    const struct terse_model *m = d->model;
    struct terse_codebook *weights;
    assert_int_equal(weight_profile_new(m, &weights, NULL), TERSE_OK);
    for (size_t set = 0; set < (size_t)m->layers * m->kv_heads; set++) {
        const size_t first = set - set % m->kv_heads;
        double residual = residual_of(d, set / m->kv_heads), of_weights = 0, of_text = 0;
        for (size_t own = first; own < first + m->kv_heads; own++) {
            const double part = exp2((double)kept(weights, l, CODEC_VALUES, own).importance);
            of_weights += part;
            of_text += part * exp2(grown(weights, l, CODEC_VALUES, own));
        }
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            const struct transform_parameters own = kept(NULL, l, side, set), before = kept(weights, l, side, set);
            double wanted = (double)before.importance + (double)before.residual - residual + grown(weights, l, CODEC_VALUES, set);
            if (side == CODEC_KEYS) wanted += grown(weights, l, CODEC_KEYS, set);
            if (m->layer[0].attention_post_norm.gain) wanted -= log2(of_text / of_weights);
            if (!(fabs((double)own.residual - residual) < 1e-3 && fabs((double)own.importance - wanted) < 0.01))
                fail_msg("side %d, set %zu: residual %g, not %g, importance %g, not %g", side, set, (double)own.residual, residual,
                         (double)own.importance, wanted);
        }
    }
    terse_codebook_free(weights);
}

/* RoPE of neighbours, with a magnitude, of halves; none; several queries to a head; norms of heads; layers that turn apart. */
static void profiles_are_what_they_are_defined_to_be(void **state) {
    const char *name = *state;
    struct terse_model *m = fixture_model(name);
    int32_t *tokens = random_tokens(m);
    struct learned l = learn_with(m, tokens, 2, (struct terse_progress){0});
    struct delivered d = deliver(m, tokens);
    assert_true(m->head_dim <= MOST_HD);
    if (l.status) fail_msg("%s: %s", name, l.error.message);
    assert_int_equal(l.seen, WINDOWS * WINDOW);
    for (size_t i = 0; i < 2 * (size_t)m->layers * m->kv_heads; i++)
        check_set(&d, &l, i % 2 ? CODEC_VALUES : CODEC_KEYS, i / 2 / m->kv_heads, i / 2 % m->kv_heads);
    check_importance(&d, &l);
    for (int kind = 0; kind < KINDS; kind++) free(d.rows[kind]);
    release(&l);
    free(tokens);
    terse_model_free(m);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    int32_t *tokens = random_tokens(m);
    struct learned one = learn_with(m, tokens, 1, (struct terse_progress){0});
    for (uint32_t threads = 2; threads < 5; threads++) {
        struct learned l = learn_with(m, tokens, threads, (struct terse_progress){0});
        for (int side = 0; side < 2; side++)
            assert_memory_equal(l.parameters[side], one.parameters[side], floats_of(m) * sizeof(float));
        release(&l);
    }
    release(&one);
    free(tokens);
    terse_model_free(m);
}

struct watch {
    uint64_t calls, allowed;
    int stages;
    char what[64];
};

static bool watch_report(void *user, const char *what, uint64_t done, uint64_t total) {
    struct watch *watch = user;
    assert_true(done <= total);
    watch->stages += strcmp(what, watch->what) != 0;
    snprintf(watch->what, sizeof watch->what, "%s", what);
    return ++watch->calls <= watch->allowed;
}

static void every_report_may_stop_it(void **state) {
    (void)state;
    struct terse_model *m = fixture_model("llama");
    int32_t *tokens = random_tokens(m);
    struct watch whole = {.allowed = UINT64_MAX};
    struct learned l = learn_with(m, tokens, 1, (struct terse_progress){watch_report, &whole});
    assert_int_equal(l.status, TERSE_OK);
    assert_int_equal(whole.stages, 2);
    release(&l);
    for (uint64_t allowed = 0; allowed < whole.calls; allowed++) {
        struct watch watch = {.allowed = allowed};
        l = learn_with(m, tokens, 1, (struct terse_progress){watch_report, &watch});
        assert_int_equal(l.status, TERSE_E_INTERRUPTED);
        assert_int_equal(watch.calls, allowed + 1);
        release(&l);
    }
    free(tokens);
    terse_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(profiles_are_what_they_are_defined_to_be, "llama"),
        cmocka_unit_test_prestate(profiles_are_what_they_are_defined_to_be, "llama-yarn"),
        cmocka_unit_test_prestate(profiles_are_what_they_are_defined_to_be, "qwen2"),
        cmocka_unit_test_prestate(profiles_are_what_they_are_defined_to_be, "qwen3"),
        cmocka_unit_test_prestate(profiles_are_what_they_are_defined_to_be, "mpt"),
        cmocka_unit_test_prestate(profiles_are_what_they_are_defined_to_be, "qwen2moe"),
        cmocka_unit_test_prestate(profiles_are_what_they_are_defined_to_be, "command-r-norms"),
        cmocka_unit_test_prestate(profiles_are_what_they_are_defined_to_be, "gemma2"),
        cmocka_unit_test_prestate(profiles_are_what_they_are_defined_to_be, "gemma3"),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(every_report_may_stop_it),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
