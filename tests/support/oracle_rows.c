/* Computes what codecs make of an oracle's rows, by their definitions. */
#include "support/oracle_rows.h"

#include "backend/cpu/codec/codec.h"
#include "base/half.h"
#include "format/transform.h"
#include "kv/anchor_random.h"
#include "support/oracle_codebook.h"
#include "support/prepared.h"
#include "support/scaled_codecs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void oracle_round_row(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = half_to_float(half_from_float(x[i]));
}

static void quantize_row(const struct codec *codec, float *x, size_t n) {
    const struct scaled_codec *own = scaled_codec_of(codec);
    if (codec == &codec_f16)
        oracle_round_row(x, n);
    else if (own)
        scaled_codec_round(own, x, n);
    else
        fail_msg("no conversion for %s: tests/support/scaled_codecs.c has to learn it", codec->name);
}

/* Codes by kivi: 32 numbers, `apart` from each other, share a scale and a zero. */
static void quantize_affine(float levels, float *x, size_t n, size_t apart) {
    float least = x[0], most = x[0];
    for (size_t i = 1; i < n; i++) least = fminf(least, x[i * apart]), most = fmaxf(most, x[i * apart]);
    float zero = half_to_float(half_from_float(least)), scale = half_to_float(half_from_float((most - least) / levels));
    float inverse = scale > 0 ? 1 / scale : 0;
    for (size_t i = 0; i < n; i++) {
        float code = floorf((x[i * apart] - zero) * inverse + 0.5f);
        x[i * apart] = zero + scale * fminf(fmaxf(code, 0), levels);
    }
}

/* Codes rows[n][hd] that are sealed together, the first of them the first of a page. */
static void quantize_kivi(const struct codec *codec, bool keys, float *rows, size_t n, size_t hd) {
    float levels = codec == &codec_kivi_4 ? 15 : 3;
    for (size_t t = 0; t < n; t += keys ? 32 : 1)
        for (size_t c = 0; c < hd; c += keys ? 1 : 32)
            quantize_affine(levels, rows + t * hd + c, keys && n - t < 32 ? n - t : 32, keys ? hd : 1);
}

float *oracle_stored(const struct oracle *o, float *side, uint32_t layer, size_t token) {
    return side + (layer * o->capacity + token) * o->setup.kv_heads * o->setup.head_dim;
}

bool *oracle_dropped(const struct oracle *o, uint32_t layer, uint32_t head, size_t token) {
    return o->dropped + ((layer * o->capacity + token) * o->setup.kv_heads + head);
}

/* Distances nearer to each other than this, relative to what they are differences of, are told apart by rounding. */
#define TIE 1e-6
#define GAIN_TIE 2e-5 /* the same for steps of a gain's code, a logarithm */

/* Finds the nearest centroids by brute force. */
static void replace_by_centroids(const struct coding *coding, const float *centroids, float *x, size_t hd, bool *tied) {
    size_t width = coding->width, n = (size_t)1 << coding->bits;
    for (size_t m = 0; m < hd / width; m++, x += width, centroids += n * width) {
        size_t nearest = 0;
        double least = INFINITY, second = INFINITY, square = 0;
        for (size_t c = 0; c < n; c++) {
            double distance = 0;
            for (size_t i = 0; i < width; i++) distance += pow((double)x[i] - (double)centroids[c * width + i], 2);
            if (distance < least)
                second = least, least = distance, nearest = c;
            else if (distance < second)
                second = distance;
        }
        for (size_t i = 0; i < width; i++) square += (double)x[i] * (double)x[i];
        *tied |= second - least < TIE * (square + least);
        memcpy(x, centroids + nearest * width, width * sizeof *x);
    }
}

const struct coding *oracle_coding(const struct oracle *o, int side) { return side ? &o->method.value : &o->method.key; }

/* Codes a row by the definition of gain-shape: the centroids describe (x - mean) / rms, and a gain brings the size back. */
static void replace_by_shape(const struct coding *coding, int side, const float *parameters, float *x, size_t hd, bool *tied) {
    const float *mean = parameters + (hd << coding->bits), scale = mean[hd];
    double size = 0, square = 0, product = 0;
    float shape[CODEC_ROW_MAX];
    for (size_t c = 0; c < hd; c++) size += pow((double)x[c] - (double)mean[c], 2);
    for (size_t c = 0; c < hd; c++) shape[c] = (float)(((double)x[c] - (double)mean[c]) / sqrt(size / (double)hd));
    replace_by_centroids(coding, parameters, shape, hd, tied);
    for (size_t c = 0; c < hd; c++) {
        square += (double)shape[c] * (double)shape[c];
        product += (double)shape[c] * ((double)x[c] - (double)mean[c]);
    }
    double gain = side ? product / square : sqrt(size / square);
    double exact = 128 + 20 * log2(gain / (double)scale), code = fmin(fmax(round(exact), 1), 255);
    *tied |= fabs(fabs(exact - floor(exact)) - 0.5) < GAIN_TIE;
    gain = gain > 0 ? (double)scale * exp2((code - 128) / 20) : 0;
    for (size_t c = 0; c < hd; c++) x[c] = (float)((double)mean[c] + gain * (double)shape[c]);
}

/* Codes a row that is cut into slices, each as a key by itself, whichever side reads it. */
static void quantize_slices(const struct oracle *o, uint32_t layer, float *x) {
    const uint32_t width = method_slice_width(&o->method, o->setup.head_dim);
    const struct codec_shape row = method_shape(&o->method, CODEC_KEYS, layer, 0, o->setup.head_dim, 1);
    for (uint32_t p = 0; p < o->method.slices; p++) {
        float rows[64 * CODEC_HEAD_DIM_MAX];
        const struct codec_shape slice = {.head_dim = width,
                                          .group = 1,
                                          .layout = row.layout + p,
                                          .learned = prepared_learned(o->codebook, CODEC_KEYS, layer, p)};
        uint8_t *page = malloc(codec_page_bytes(&codec_transform, slice, CODEC_KEYS));
        cpu_codec_transform.encode(slice, CODEC_KEYS, x + p * width, 1, page);
        cpu_codec_transform.decode(slice, CODEC_KEYS, page, rows);
        memcpy(x + p * width, rows, width * sizeof *x);
        free(page);
    }
}

/* Computes one head's row, in the codec's frame, as its side's codec gives it back. Where two codes are as good but for rounding, the codec itself decides. */
static void quantize_in_frame(const struct oracle *o, int side, uint32_t layer, uint32_t head, float *x) {
    const struct coding *coding = oracle_coding(o, side);
    enum codec_side of = side ? CODEC_VALUES : CODEC_KEYS;
    size_t hd = o->setup.head_dim, set = layer * o->setup.kv_heads + head;
    float given[CODEC_ROW_MAX];
    if (o->method.slices) {
        quantize_slices(o, layer, x);
        return;
    }
    bool tied = oracle_codec_decides(coding->codec);
    if (!coding->width && !tied) {
        quantize_row(coding->codec, x, hd);
        return;
    }
    struct codec_shape shape = method_shape(&o->method, of, layer, head, (uint32_t)hd, 1);
    const float *parameters = tied ? NULL : o->centroids[side] + set * codec_parameters(coding->codec, shape);
    memcpy(given, x, hd * sizeof *x);
    if (coding->codec == &codec_gain_shape)
        replace_by_shape(coding, side, parameters, x, hd, &tied);
    else if (parameters)
        replace_by_centroids(coding, parameters, x, hd, &tied);
    if (!tied) return;
    uint8_t *page = malloc(codec_page_bytes(coding->codec, shape, of));
    float *rows = malloc(64 * hd * sizeof *rows);
    shape.learned = prepared_learned(o->codebook, of, layer, head);
    cpu_codec_of(coding->codec)->encode(shape, of, given, 1, page);
    cpu_codec_of(coding->codec)->decode(shape, of, page, rows);
    memcpy(x, rows, hd * sizeof *x);
    free(page);
    free(rows);
}

void oracle_rotate_by(const struct oracle *o, double position, double *x) {
    uint32_t n_rot = o->rope.n_rot;
    bool adjacent = o->rope.pairing == ROPE_ADJACENT;
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        uint32_t a = adjacent ? 2 * i : i, b = adjacent ? 2 * i + 1 : i + n_rot / 2;
        double angle = position * (double)o->frequency[i], re = x[a], im = x[b];
        x[a] = re * cos(angle) - im * sin(angle);
        x[b] = re * sin(angle) + im * cos(angle);
    }
}

void oracle_rotate_floats(const struct oracle *o, double position, float *x) {
    double row[CODEC_ROW_MAX];
    for (uint32_t c = 0; c < o->setup.head_dim; c++) row[c] = (double)x[c];
    oracle_rotate_by(o, position, row);
    for (uint32_t c = 0; c < o->setup.head_dim; c++) x[c] = (float)row[c];
}

void oracle_rotate_mean(const struct oracle *o, uint32_t layer, uint32_t head, double position, double *rotated) {
    const uint32_t hd = o->setup.head_dim, pairs = o->rope.n_rot / 2;
    memset(rotated, 0, CODEC_ROW_MAX * sizeof *rotated);
    if (o->method.key.codec != &codec_transform) return;
    const uint32_t slices = method_slices(&o->method), width = method_slice_width(&o->method, hd);
    float *parameters = malloc(transform_parameter_floats(width) * sizeof *parameters);
    codebook_parameters(o->codebook, CODEC_KEYS, (layer * o->setup.kv_heads + head) * slices, parameters);
    for (uint32_t c = 0; c < o->rope.n_rot; c++) {
        const uint32_t pair = o->rope.pairing == ROPE_ADJACENT ? c / 2 : c < pairs ? c : c - pairs;
        if (ROPE_RUN_TOKENS * (double)o->frequency[pair] >= 0.5)
            rotated[c] = (double)transform_parameters_at(parameters, width).pre_rope_mean[c];
    }
    oracle_rotate_by(o, position, rotated);
    free(parameters);
}

/* Computes one head's row of token t as it is read, of a page whose first token is `page`. */
static void quantize_head(const struct oracle *o, int side, uint32_t layer, uint32_t head, size_t page, size_t t, float *x) {
    size_t run = page / ROPE_RUN_TOKENS * ROPE_RUN_TOKENS;
    bool in_run = !side && o->method.key.codec->rope == CODEC_ROPE_IN_RUN;
    double rotated[CODEC_ROW_MAX];
    if (in_run) oracle_rotate_floats(o, -(double)run, x);
    if (in_run) oracle_rotate_mean(o, layer, head, (double)(t - run), rotated);
    for (uint32_t c = 0; in_run && c < o->setup.head_dim; c++) x[c] = (float)((double)x[c] - rotated[c]);
    quantize_in_frame(o, side, layer, head, x);
    for (uint32_t c = 0; in_run && c < o->setup.head_dim; c++) x[c] = (float)((double)x[c] + rotated[c]);
    if (in_run) oracle_rotate_floats(o, (double)run, x);
}

void oracle_round_tokens(const struct oracle *o, uint32_t layer, size_t first, size_t last) {
    for (size_t t = first; t < last; t++) {
        oracle_round_row(oracle_stored(o, o->k, layer, t), o->setup.kv_heads * o->setup.head_dim);
        oracle_round_row(oracle_stored(o, o->v, layer, t), o->setup.kv_heads * o->setup.head_dim);
    }
}

void oracle_seal_tokens(struct oracle *o, uint32_t layer, size_t first, size_t last, double *scores, size_t anchors) {
    size_t n = last - first, hd = o->setup.head_dim;
    float *decoded = malloc(n * hd * sizeof *decoded);
    for (uint32_t head = 0; head < o->setup.kv_heads; head++) {
        for (int side = 0; side < 2; side++) {
            double *score = scores ? scores + (2 * head + (uint32_t)side) * n : NULL;
            const struct codec *codec = oracle_coding(o, side)->codec;
            bool kivi = codec == &codec_kivi_4 || codec == &codec_kivi_2;
            for (size_t i = 0; i < n; i++)
                memcpy(decoded + i * hd, oracle_stored(o, side ? o->v : o->k, layer, first + i) + head * hd, hd * sizeof *decoded);
            if (kivi) quantize_kivi(codec, !side || o->setup.latents, decoded, n, hd);
            for (size_t i = 0; i < n; i++) {
                const float *row = oracle_stored(o, side ? o->v : o->k, layer, first + i) + head * hd;
                const enum terse_anchor_score by = o->setup.anchor_score;
                double error = 0;
                if (!kivi) quantize_head(o, side, layer, head, first + i / 64 * 64, first + i, decoded + i * hd);
                for (size_t c = 0; c < hd; c++)
                    error += pow(fabs((double)row[c] - (double)decoded[i * hd + c]), by == TERSE_ANCHORS_L1 ? 1 : 2);
                if (score && by == TERSE_ANCHORS_RANDOM)
                    score[i] = anchor_random_score(layer * o->setup.kv_heads + head, side, first + i);
                else if (score)
                    score[i] *= error;
            }
            for (size_t a = 0; a < anchors; a++) {
                size_t best = 0;
                for (size_t i = 0; i < n; i++)
                    if (score[i] > score[best]) best = i;
                memcpy(decoded + best * hd, oracle_stored(o, side ? o->v : o->k, layer, first + best) + head * hd,
                       hd * sizeof *decoded);
                oracle_round_row(decoded + best * hd, hd);
                score[best] = -1;
                o->anchors++;
            }
            for (size_t i = 0; i < n; i++)
                memcpy(oracle_stored(o, side ? o->v : o->k, layer, first + i) + head * hd, decoded + i * hd, hd * sizeof *decoded);
        }
    }
    free(decoded);
}
