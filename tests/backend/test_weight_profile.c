/* The profile that weights imply, against its definition in double precision, over models with and without biases, QK norm, LayerNorm, grouped
 * queries and the two ways to pair RoPE's channels: bases that undo the metric, sizes that make up the covariance, importances; the same
 * bits for any number of threads. */
#include "backend/cpu/vector.h"
#include "backend/cpu/weight_moments.h"
#include "backend/cpu/weight_profile.h"
#include "base/thread_pool.h"
#include "format/transform.h"
#include "support/fixture_model.h"
#include "terse.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_HD = 64 };

struct making {
    const struct terse_model *model;
    struct terse_codebook *profile;
    enum terse_status status;
    struct terse_error error;
};

static void make(void *user) {
    struct making *m = user;
    m->status = weight_profile_new(m->model, &m->profile, &m->error);
}

static struct making make_with(const struct terse_model *model, uint32_t threads) {
    struct making m = {.model = model};
    struct thread_pool *pool;
    assert_int_equal(thread_pool_new(threads, &pool, NULL), TERSE_OK);
    thread_pool_run(pool, make, &m);
    thread_pool_free(pool);
    return m;
}

/* ---- The oracle */

static double gain_of(const float *gain, size_t i) { return gain ? (double)gain[i] : 1; }

/* A projection's weight times the gain of the norm before it. */
static double *projection(const struct matrix *w, const struct norm *norm) {
    double *out = malloc((size_t)w->rows * w->columns * sizeof *out);
    float *row = malloc(w->columns * sizeof *row);
    for (size_t r = 0; r < w->rows; r++) {
        vector_dequantize(w->type, (const char *)w->data + r * w->row_bytes, row, w->columns);
        for (size_t j = 0; j < w->columns; j++) out[r * w->columns + j] = (double)row[j] * (norm ? gain_of(norm->gain, j) : 1);
    }
    free(row);
    return out;
}

/* Mean squares of queries, then of the two channels of a pair together. */
static void query_power(const struct terse_model *m, const struct layer *l, uint32_t head, double *power) {
    size_t hd = m->head_dim, group = m->query_heads / m->kv_heads, width = m->width;
    double *w = projection(&l->q, &l->attention_norm), *plain = projection(&l->q, NULL);
    for (size_t c = 0; c < hd; c++) power[c] = 0;
    for (size_t q = head * group; q < (head + 1) * group; q++) {
        double own[MOST_HD], sum = 0;
        for (size_t c = 0; c < hd; c++) {
            size_t row = q * hd + c;
            double mean = l->q.bias ? (double)l->q.bias[row] : 0;
            for (size_t j = 0; j < width && l->attention_norm.bias; j++)
                mean += plain[row * width + j] * (double)l->attention_norm.bias[j];
            own[c] = mean * mean;
            for (size_t j = 0; j < width; j++) own[c] += w[row * width + j] * w[row * width + j];
            sum += own[c] / (double)hd;
        }
        for (size_t c = 0; c < hd; c++)
            power[c] += own[c] / (double)group * (l->q_norm.gain ? pow((double)l->q_norm.gain[c], 2) / sum : 1);
    }
    for (size_t i = 0; i < m->rope.n_rot / 2; i++) {
        bool adjacent = m->rope.pairing == ROPE_ADJACENT;
        size_t a = adjacent ? 2 * i : i, b = adjacent ? 2 * i + 1 : i + m->rope.n_rot / 2;
        power[a] = power[b] = (power[a] + power[b]) / 2;
    }
    free(w);
    free(plain);
}

static void value_metric(const struct terse_model *m, const struct layer *l, uint32_t head, double *metric) {
    size_t hd = m->head_dim, group = m->query_heads / m->kv_heads;
    double *o = projection(&l->o, NULL);
    memset(metric, 0, hd * hd * sizeof *metric);
    for (size_t row = 0; row < l->o.rows; row++)
        for (size_t q = head * group; q < (head + 1) * group; q++)
            for (size_t i = 0; i < hd; i++)
                for (size_t j = 0; j < hd; j++)
                    metric[i * hd + j] += o[row * l->o.columns + q * hd + i] * o[row * l->o.columns + q * hd + j];
    free(o);
}

static void covariance_of(const struct terse_model *m, const struct layer *l, enum codec_side side, uint32_t head,
                          double *covariance) {
    const struct matrix *w = side == CODEC_KEYS ? &l->k : &l->v;
    size_t hd = m->head_dim, width = w->columns;
    double *weights = projection(w, &l->attention_norm), trace = 0;
    const float *gain = side == CODEC_KEYS ? l->k_norm.gain : NULL;
    for (size_t i = 0; i < hd; i++)
        for (size_t j = 0; j < hd; j++) {
            double sum = 0;
            for (size_t c = 0; c < width; c++) sum += weights[(head * hd + i) * width + c] * weights[(head * hd + j) * width + c];
            covariance[i * hd + j] = sum;
            trace += i == j ? sum : 0;
        }
    for (size_t i = 0; i < hd * hd && gain; i++) covariance[i] *= (double)hd / trace * (double)gain[i / hd] * (double)gain[i % hd];
    free(weights);
}

/* The mean over a run's offsets of R C R^T, R by the library's own rotation of the unit vectors. */
static void rotate_in_run(const struct terse_model *m, uint32_t layer, double *covariance) {
    const struct rope *rope = m->sliding_rope.n_rot && model_slides(m, layer) ? &m->sliding_rope : &m->rope;
    size_t hd = m->head_dim;
    static double mean[MOST_HD * MOST_HD], half[MOST_HD * MOST_HD];
    float rotation[MOST_HD * MOST_HD], cosine[MOST_HD], sine[MOST_HD];
    if (!rope->n_rot) return;
    memset(mean, 0, sizeof mean);
    for (int64_t t = 0; t < ROPE_RUN_TOKENS; t++) {
        for (size_t i = 0; i < hd * hd; i++) rotation[i] = i % (hd + 1) == 0; /* row i becomes column i of R */
        rope_angles(rope, t, cosine, sine);
        rope_rotate(rope, cosine, sine, rotation, (uint32_t)hd, (uint32_t)hd);
        memset(half, 0, sizeof half); /* half = C R^T */
        for (size_t i = 0; i < hd; i++)
            for (size_t k = 0; k < hd; k++)
                for (size_t j = 0; j < hd; j++) half[i * hd + j] += covariance[i * hd + k] * (double)rotation[k * hd + j];
        for (size_t i = 0; i < hd; i++)
            for (size_t k = 0; k < hd; k++)
                if (rotation[k * hd + i] != 0)
                    for (size_t j = 0; j < hd; j++)
                        mean[i * hd + j] += (double)rotation[k * hd + i] * half[k * hd + j] / ROPE_RUN_TOKENS;
    }
    memcpy(covariance, mean, hd * hd * sizeof *mean);
}

static double cost(const double *metric, const double *covariance, size_t hd) {
    double sum = 0;
    for (size_t i = 0; i < hd * hd; i++) sum += metric[i] * covariance[i];
    return sum / (double)hd;
}

/* Holds a side's parameters to metric and covariance; returns its importance. */
static double check_side(const float *floats, size_t hd, const double *metric, const double *covariance) {
    struct transform_parameters own = transform_parameters_at(floats, (uint32_t)hd);
    double trace = 0, scale;
    for (size_t i = 0; i < hd; i++) trace += metric[i * hd + i] / (double)hd;
    scale = cost(metric, covariance, hd) / trace; /* of rows in the metric whose trace is hd */
    for (size_t i = 0; i < hd; i++) {
        for (size_t j = 0; j < hd; j++) {
            double identity = 0, made = 0;
            for (size_t c = 0; c < hd; c++) {
                double entered = 0; /* metric times the component's direction */
                for (size_t k = 0; k < hd; k++) entered += metric[i * hd + k] / trace * (double)own.basis[c * hd + k];
                identity += entered * (double)own.basis[c * hd + j];
                made += pow((double)own.size[c], 2) * scale * (double)own.basis[c * hd + i] * (double)own.basis[c * hd + j];
            }
            double allowed = 0.01 * sqrt(covariance[i * hd + i] * covariance[j * hd + j]);
            assert_true(fabs(identity - (i == j)) < 0.02);
            assert_true(fabs(made - covariance[i * hd + j]) <= allowed + 1e-12);
        }
        assert_true(own.mean[i] == 0);
    }
    assert_true(own.gain_least == 0 && (double)own.gain_most > 4 * sqrt(scale) && (double)own.gain_most < 16 * sqrt(scale));
    return (double)own.importance;
}

static void check_layer(const struct terse_model *m, const struct terse_codebook *profile, uint32_t layer, double *residual) {
    static double metric[MOST_HD * MOST_HD], covariance[MOST_HD * MOST_HD];
    const struct layer *l = &m->layer[layer];
    size_t hd = m->head_dim;
    float *floats = malloc(transform_parameter_floats((uint32_t)hd) * sizeof *floats);
    double of_heads = 0, gains = 0;
    for (uint32_t head = 0; head < m->kv_heads; head++) {
        value_metric(m, l, head, metric);
        covariance_of(m, l, CODEC_VALUES, head, covariance);
        of_heads += cost(metric, covariance, hd);
    }
    for (uint32_t c = 0; c < m->width && l->attention_post_norm.gain; c++) gains += pow((double)l->attention_post_norm.gain[c], 2);
    const double norm = l->attention_post_norm.gain ? log2(gains / of_heads) : 0; /* where their sum goes through it */
    for (uint32_t head = 0; head < m->kv_heads; head++) {
        size_t set = (size_t)layer * m->kv_heads + head;
        value_metric(m, l, head, metric);
        covariance_of(m, l, CODEC_VALUES, head, covariance);
        codebook_parameters(profile, CODEC_VALUES, set, floats);
        double value = log2(cost(metric, covariance, hd)), importance = check_side(floats, hd, metric, covariance);
        *residual = (double)transform_parameters_at(floats, (uint32_t)hd).residual;
        assert_true(fabs(value + norm - importance - *residual) < 0.05);
        double power[MOST_HD];
        query_power(m, l, head, power);
        for (size_t i = 0; i < hd * hd; i++) metric[i] = i % (hd + 1) ? 0 : power[i / hd];
        covariance_of(m, l, CODEC_KEYS, head, covariance);
        rotate_in_run(m, layer, covariance);
        codebook_parameters(profile, CODEC_KEYS, set, floats);
        double logit = log2(cost(metric, covariance, hd)), of_keys = check_side(floats, hd, metric, covariance);
        assert_true(fabs(of_keys - importance - logit - KEYS_IMPORTANCE) < 0.05);
    }
    free(floats);
}

/* Mean square of the embeddings of all tokens, at position 0. */
static double embedding_square(const struct terse_model *m) {
    double *all = projection(&m->embedding, NULL), *positions = m->positions.data ? projection(&m->positions, NULL) : NULL, sum = 0;
    for (size_t i = 0; i < (size_t)m->vocabulary * m->width; i++)
        sum += pow((double)m->embedding_scale * all[i] + (positions ? positions[i % m->width] : 0), 2) / m->vocabulary;
    free(all);
    free(positions);
    return sum;
}

static void profiles_are_what_weights_imply(void **state) {
    static const char *const names[] = {"llama",      "qwen2",   "qwen3",    "gpt2",     "mpt",
                                        "llama-yarn", "mixtral", "qwen2moe", "qwen3moe", "gemma3"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct terse_model *model = fixture_model(names[i]);
        struct making one = make_with(model, 1), three = make_with(model, 3);
        if (model->head_dim % 32) {
            assert_int_equal(one.status, TERSE_E_UNSUPPORTED);
            assert_null(one.profile);
            terse_model_free(model);
            continue;
        }
        if (one.status || three.status) fail_msg("%s: %s", names[i], one.status ? one.error.message : three.error.message);
        assert_true(model->head_dim <= MOST_HD);
        double residual = 0, before = 0;
        for (uint32_t layer = 0; layer < model->layers; layer++, before = residual) {
            check_layer(model, one.profile, layer, &residual);
            if (layer)
                assert_true(residual > before - 0.05);
            else
                assert_true(fabs(residual - log2(embedding_square(model))) < 0.5); /* of 16 tokens */
        }
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++)
            assert_memory_equal(codebook_halves(one.profile, side, CODEBOOK_CENTROIDS, 0),
                                codebook_halves(three.profile, side, CODEBOOK_CENTROIDS, 0),
                                codebook_floats(codebook_info(one.profile), side) * sizeof(uint16_t));
        assert_int_equal(codebook_info(one.profile)->fingerprint, model->norms_fingerprint);
        terse_codebook_free(one.profile);
        terse_codebook_free(three.profile);
        terse_model_free(model);
    }
}

/* ---- Latents */

enum { MOST_ROWS = 64, MOST_RANK = 64 };

/* Row i of a head's key or value matrix, [channels][rank], and its channel c. */
static double of_head(const struct latents *l, const struct latent_shape *s, const double *both, const double *apart, bool value,
                      size_t head, size_t i, size_t c) {
    if (!apart) return both[(head * (s->plain + s->value) + (value ? s->plain : 0) + i) * s->rank + c];
    return value ? apart[(head * s->value + i) * s->rank + c] : apart[(head * s->rank + c) * l->key.columns + i];
}

/* Adds factor A A^T of rows A[n][columns] to sum[n][n]; n rows of the rank. */
static void add_square(const double *a, size_t n, size_t columns, double factor, double *sum) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            for (size_t c = 0; c < columns; c++) sum[i * n + j] += factor * a[i * columns + c] * a[j * columns + c];
}

/* All slices of a layer, with the whole latent's metric from products of whole matrices: an error's effect through values is O V d, through
 * keys the absorbed query times d. */
static void check_slices(const struct terse_model *m, const struct terse_codebook *profile, uint32_t layer) {
    static double metric[MOST_RANK * MOST_RANK], own[MOST_RANK * MOST_RANK], latent[MOST_RANK * MOST_RANK],
        rotated[MOST_HD * MOST_HD], power[MOST_HD * MOST_HD], slice[MOST_HD * MOST_HD], cost_of[MOST_HD * MOST_HD];
    const struct layer *l = &m->layer[layer];
    const struct latent_shape *s = &m->latent;
    const size_t rank = s->rank, w = m->rope.n_rot, row = s->plain + w, slices = rank / w;
    const struct norm *norm = s->query_rank ? &l->latents.query_norm : &l->attention_norm;
    const bool is_apart = l->latents.key.data != NULL;
    double *k = projection(&l->k, &l->attention_norm), *q = projection(&l->q, norm), *o = projection(&l->o, NULL), trace = 0;
    double *both = is_apart ? NULL : projection(&l->latents.both, NULL), *key = is_apart ? projection(&l->latents.key, NULL) : NULL,
           *value = is_apart ? projection(&l->latents.value, NULL) : NULL;
    const size_t columns = l->q.columns, width = l->k.columns, most = rank * (m->width > columns ? m->width : columns);
    double *a = malloc(most * sizeof *a);
    assert_true(rank <= MOST_RANK && w <= MOST_HD);
    memset(metric, 0, sizeof metric);
    memset(latent, 0, sizeof latent);
    memset(rotated, 0, sizeof rotated);
    memset(power, 0, sizeof power);
    add_square(k, rank, width, 1, latent);
    add_square(k + rank * width, w, width, 1, rotated);
    rotate_in_run(&(struct terse_model){.head_dim = (uint32_t)w, .rope = m->rope}, layer, rotated);
    for (size_t i = 0; i < rank; i++) trace += latent[i * rank + i];
    for (size_t i = 0; i < rank * rank; i++)
        latent[i] *= (double)rank / trace * (double)l->latents.norm.gain[i / rank] * (double)l->latents.norm.gain[i % rank];
    for (size_t head = 0; head < m->query_heads; head++) {
        double values = 0;
        memset(own, 0, sizeof own);
        memset(a, 0, most * sizeof *a);
        for (size_t c = 0; c < rank; c++)
            for (size_t i = 0; i < s->value; i++)
                for (size_t r = 0; r < m->width; r++)
                    a[c * m->width + r] +=
                        o[r * l->o.columns + head * s->value + i] * of_head(&l->latents, s, both, value, true, head, i, c);
        add_square(a, rank, m->width, 1, own);
        for (size_t i = 0; i < rank * rank; i++) {
            metric[i] += own[i];
            if (i / rank / w == i % rank / w) values += own[i] * latent[i]; /* what slices share is left out */
        }
        const double factor = values * pow((double)m->attention_scale, 2) * exp2(KEYS_IMPORTANCE);
        memset(a, 0, most * sizeof *a);
        for (size_t c = 0; c < rank; c++)
            for (size_t i = 0; i < s->plain; i++)
                for (size_t j = 0; j < columns; j++)
                    a[c * columns + j] += q[(head * row + i) * columns + j] * of_head(&l->latents, s, both, key, false, head, i, c);
        add_square(a, rank, columns, factor, metric);
        for (size_t c = 0; c < w; c++) /* adjacent channels make a pair */
            for (size_t j = 0; j < columns; j++)
                power[c * (w + 1)] += factor / 2 *
                                      (pow(q[(head * row + s->plain + c) * columns + j], 2) +
                                       pow(q[(head * row + s->plain + (c ^ 1)) * columns + j], 2));
    }
    float *floats = malloc(transform_parameter_floats((uint32_t)w) * sizeof *floats);
    for (size_t p = 0; p <= slices; p++) {
        for (size_t i = 0; p && i < w * w; i++) {
            const size_t at = ((p - 1) * w + i / w) * rank + (p - 1) * w + i % w;
            slice[i] = latent[at];
            cost_of[i] = metric[at];
        }
        codebook_parameters(profile, CODEC_KEYS, layer * (slices + 1) + p, floats);
        const double residual = (double)transform_parameters_at(floats, (uint32_t)w).residual;
        const double importance = check_side(floats, w, p ? cost_of : power, p ? slice : rotated);
        assert_true(fabs(log2(cost(p ? cost_of : power, p ? slice : rotated, w)) - importance - residual) < 0.05);
    }
    free(floats);
    free(a);
    free(k);
    free(q);
    free(o);
    free(both);
    free(key);
    free(value);
}

static void latents_count_as_keys_and_as_values(void **state) {
    static const char *const names[] = {"deepseek2", "deepseek2-groups"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct terse_model *model = fixture_model(names[i]);
        struct making one = make_with(model, 1), three = make_with(model, 3);
        if (one.status || three.status) fail_msg("%s: %s", names[i], one.status ? one.error.message : three.error.message);
        const struct codebook_info *info = codebook_info(one.profile);
        assert_int_equal(info->kv_heads, model->head_dim / model->rope.n_rot);
        assert_int_equal(info->head_dim, model->rope.n_rot);
        assert_int_equal(codebook_floats(info, CODEC_VALUES), 0);
        for (uint32_t layer = 0; layer < model->layers; layer++) check_slices(model, one.profile, layer);
        assert_int_equal(codebook_hash(one.profile), codebook_hash(three.profile));
        terse_codebook_free(one.profile);
        terse_codebook_free(three.profile);
        terse_model_free(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(profiles_are_what_weights_imply),
                                       cmocka_unit_test(latents_count_as_keys_and_as_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
