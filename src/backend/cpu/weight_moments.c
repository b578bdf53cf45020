/* Computes products of weights with themselves. */
#include "backend/cpu/weight_moments.h"

#include "backend/cpu/vector.h"
#include "base/memory.h"
#include "format/shape.h"
#include "model/architecture.h"

#include <string.h>

/* ---- Scratch: [WEIGHT_TILE][hd] rows, the products' own, then [WEIGHT_TILE][columns] of dequantized rows */

size_t weight_products_scratch(size_t hd) { return WEIGHT_TILE * hd + hd * hd; }

static size_t tile_floats(size_t hd) { return WEIGHT_TILE * hd + weight_products_scratch(hd); }

size_t weight_moments_scratch(const struct terse_model *model) {
    size_t widest = model_query_width(model) > model->width ? model_query_width(model) : model->width;
    return memory_round_up(tile_floats(model->head_dim) + WEIGHT_TILE * widest, MEMORY_ALIGN / sizeof(float));
}

static void dequantize(const struct matrix *w, size_t row, float *out) {
    vector_dequantize(w->type, (const char *)w->data + row * w->row_bytes, out, w->columns);
}

/* ---- Products */

void weight_add_products(const float *rows, size_t n, size_t hd, float *scratch, double *sums) {
    float *transposed = scratch, *products = scratch + WEIGHT_TILE * hd;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < hd; c++) transposed[c * n + i] = rows[i * hd + c];
    vector_multiply_panel(transposed, hd, n, n, rows, hd, products);
    for (size_t i = 0; i < hd * hd; i++) sums[i] += (double)products[i];
}

size_t weight_rows_scratch(size_t n, size_t columns) {
    const size_t rows = n > WEIGHT_TILE ? n : WEIGHT_TILE;
    return memory_round_up(tile_floats(WEIGHT_PADDED(n)) + rows * columns, MEMORY_ALIGN / sizeof(float));
}

void weight_output_metrics(const struct matrix *o, size_t n, size_t first, size_t heads, size_t group, float *scratch,
                           double *metric) {
    const size_t hd = WEIGHT_PADDED(n);
    float *tile = scratch, *products = tile + WEIGHT_TILE * hd, *weights = products + weight_products_scratch(hd);
    memset(metric, 0, heads / group * hd * hd * sizeof *metric);
    memset(tile, 0, WEIGHT_TILE * hd * sizeof *tile);
    for (size_t row = 0, count; row < o->rows; row += count) {
        count = o->rows - row < WEIGHT_TILE ? o->rows - row : WEIGHT_TILE;
        for (size_t i = 0; i < count; i++) dequantize(o, row + i, weights + i * o->columns);
        for (size_t q = 0; q < heads; q++) {
            const float *part = weights + (first + q) * n;
            for (size_t i = 0; i < count; i++) memcpy(tile + i * hd, part + i * o->columns, n * sizeof *tile);
            weight_add_products(tile, count, hd, products, metric + q / group * hd * hd);
        }
    }
}

void weight_value_metrics(const struct terse_model *model, uint32_t layer, uint32_t first, uint32_t heads, float *scratch,
                          double *metric) {
    const size_t group = model->query_heads / model->kv_heads;
    weight_output_metrics(&model->layer[layer].o, model->head_dim, first * group, heads * group, group, scratch, metric);
}

/* Returns the gain of a head; the norm may have one gain for all heads. */
static const float *gain_of(const struct norm *norm, uint32_t head, size_t hd) {
    return norm->heads ? norm->gain + head * hd : norm->gain;
}

/* Loads weights[hd][columns], a head's rows of a projection, from the first-th on, times the gain of the norm before it, and mean[hd], unless NULL, which
 * the biases of the norm and of the projection add up to. */
static void load_head(const struct matrix *w, const struct norm *norm, size_t first, size_t hd, float *weights, double *mean) {
    for (size_t c = 0; c < hd; c++) {
        float *row = weights + c * w->columns;
        dequantize(w, first + c, row);
        if (mean) mean[c] = w->bias ? (double)w->bias[first + c] : 0;
        for (size_t j = 0; mean && norm->bias && j < w->columns; j++) mean[c] += (double)row[j] * (double)norm->bias[j];
        for (size_t j = 0; norm->gain && j < w->columns; j++) row[j] *= norm->gain[j];
    }
}

void weight_row_covariance(const struct matrix *w, const struct norm *norm, size_t begin, size_t rows, float *scratch,
                           double *covariance) {
    const size_t hd = WEIGHT_PADDED(rows);
    float *tile = scratch, *products = tile + WEIGHT_TILE * hd, *weights = products + weight_products_scratch(hd);
    load_head(w, norm, begin, rows, weights, NULL);
    memset(covariance, 0, hd * hd * sizeof *covariance);
    memset(tile, 0, WEIGHT_TILE * hd * sizeof *tile);
    for (size_t first = 0, n; first < w->columns; first += n) {
        n = w->columns - first < WEIGHT_TILE ? w->columns - first : WEIGHT_TILE;
        for (size_t i = 0; i < n; i++)
            for (size_t c = 0; c < rows; c++) tile[i * hd + c] = weights[c * w->columns + first + i];
        weight_add_products(tile, n, hd, products, covariance);
    }
}

void weight_value_covariance(const struct terse_model *model, uint32_t layer, uint32_t head, float *scratch, double *covariance) {
    const struct layer *l = &model->layer[layer];
    weight_row_covariance(&l->v, &l->attention_norm, head * model->head_dim, model->head_dim, scratch, covariance);
}

void weight_key_covariance(const struct terse_model *model, uint32_t layer, uint32_t head, float *scratch, double *covariance) {
    const struct layer *l = &model->layer[layer];
    size_t hd = model->head_dim;
    double trace = 0;
    weight_row_covariance(&l->k, &l->attention_norm, head * hd, hd, scratch, covariance);
    if (!l->k_norm.gain) return;
    for (size_t c = 0; c < hd; c++) trace += covariance[c * hd + c];
    const float *gain = gain_of(&l->k_norm, head, hd);
    for (size_t i = 0; i < hd * hd && trace > 0; i++)
        covariance[i] *= (double)hd / trace * (double)gain[i / hd] * (double)gain[i % hd];
}

/* ---- Queries */

static void add_query_head(const struct terse_model *model, const struct layer *l, uint32_t head, float *weights, double *power) {
    double own[CODEC_HEAD_DIM_MAX], mean[CODEC_HEAD_DIM_MAX], sum = 0;
    size_t hd = model->head_dim;
    const size_t first = head * hd * (model->architecture->gated_heads ? 2 : 1);
    load_head(&l->q, &l->attention_norm, first, hd, weights, mean);
    for (size_t c = 0; c < hd; c++) {
        const float *row = weights + c * l->q.columns;
        own[c] = mean[c] * mean[c];
        for (size_t j = 0; j < l->q.columns; j++) own[c] += (double)row[j] * (double)row[j];
        sum += own[c];
    }
    for (size_t c = 0; c < hd; c++) {
        double gain = l->q_norm.gain ? (double)gain_of(&l->q_norm, head, hd)[c] : 1;
        power[c] += own[c] * (l->q_norm.gain && sum > 0 ? (double)hd / sum * gain * gain : 1);
    }
}

void weight_query_power(const struct terse_model *model, uint32_t layer, uint32_t head, float *scratch, double *power) {
    const struct rope *rope = &model->rope;
    size_t hd = model->head_dim, group = model->query_heads / model->kv_heads, pairs = rope->n_rot / 2;
    memset(power, 0, hd * sizeof *power);
    for (size_t g = 0; g < group; g++)
        add_query_head(model, &model->layer[layer], (uint32_t)(head * group + g), scratch + tile_floats(hd), power);
    for (size_t c = 0; c < hd; c++) power[c] /= (double)group;
    for (size_t i = 0; i < pairs; i++) {
        size_t a = rope->pairing == ROPE_ADJACENT ? 2 * i : i, b = rope->pairing == ROPE_ADJACENT ? 2 * i + 1 : i + pairs;
        power[a] = power[b] = (power[a] + power[b]) / 2;
    }
}
