/* Implements the codec transform of rows that are cut into slices, keys that end with the values (format/shape.h, codec_shape.slices). A
 * slice is coded, and read on its codes, as a KV head's key: a logit is the sum over the slices' products, and the weighted sum of values
 * is that of each slice but the first, the rotated one, which is no value.
 *
 * Pages of all slices are pages of keys. The kernels that sum values read codes in another order, in which the four tokens of a component are
 * neighbours, so each page is put into that order before it is summed, once for all queries. */
#include "backend/cpu/codec/transform.h"

#include "format/page_layout.h"

#include <stdalign.h>
#include <string.h>

/* Returns the page of the slice behind this one. */
static const uint8_t *next_page(struct codec_shape own, const uint8_t *page) {
    return page + PAGE_BYTES_TRANSFORM(own.layout->nibbles);
}

/* ---- Writing and decoding: rows[64][head_dim] */

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    float slice[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    uint8_t *to = page;
    for (size_t p = 0; p < shape.slices; p++) {
        const struct codec_shape own = transform_slice(shape, p);
        const size_t width = own.head_dim;
        for (size_t t = 0; t < n; t++) memcpy(slice + t * width, rows + t * shape.head_dim + p * width, width * sizeof *slice);
        transform_encode(own, side, slice, n, to);
        to += PAGE_BYTES_TRANSFORM(own.layout->nibbles);
    }
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    float slice[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    const uint8_t *from = page;
    for (size_t p = 0; p < shape.slices; p++) {
        const struct codec_shape own = transform_slice(shape, p);
        const size_t width = own.head_dim;
        cpu_codec_transform.decode(own, side, from, slice);
        for (size_t t = 0; t < PAGE_TOKENS; t++)
            memcpy(rows + t * shape.head_dim + p * width, slice + t * width, width * sizeof *slice);
        from = next_page(own, from);
    }
}

static const float *pre_rope_mean(struct codec_shape shape) { return transform_of(transform_slice(shape, 0)).pre_rope_mean; }

/* ---- Keys: tables are those of all slices, one after the other */

static size_t query_floats(struct codec_shape shape) {
    size_t floats = 0;
    for (size_t p = 0; p < shape.slices; p++) floats += cpu_codec_query_floats(&cpu_codec_transform, transform_slice(shape, p));
    return floats;
}

static void prepare_queries(struct codec_shape shape, const float *q, float *tables) {
    for (size_t p = 0; p < shape.slices; p++) {
        const struct codec_shape own = transform_slice(shape, p);
        transform_prepare_queries(own, q + p * own.head_dim, shape.head_dim, tables);
        tables += cpu_codec_query_floats(&cpu_codec_transform, own);
    }
}

static void score_some(struct codec_shape shape, const float *tables, const uint8_t *page, size_t first, size_t n, float *logits) {
    float slice[TRANSFORM_TOGETHER * PAGE_TOKENS];
    for (size_t p = 0; p < shape.slices; p++) {
        const struct codec_shape own = transform_slice(shape, p);
        transform_score_some(own, tables, page, first, n, p ? slice : logits);
        for (size_t i = 0; p && i < n * PAGE_TOKENS; i++) logits[i] += slice[i];
        tables += cpu_codec_query_floats(&cpu_codec_transform, own);
        page = next_page(own, page);
    }
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    (void)q;
    for (size_t first = 0, n; first < shape.group; first += n) {
        n = shape.group - first < TRANSFORM_TOGETHER ? shape.group - first : TRANSFORM_TOGETHER;
        score_some(shape, tables, page, first, n, logits + first * PAGE_TOKENS);
    }
}

/* ---- Values: sums by code of all slices but the first, one after the other */

#define MOST_NIBBLES (2 * TRANSFORM_QUADS_MAX)

/* Transposes 4 x 4 bytes: of four tokens' four components, as keys have them, to four components' tokens. */
static void transpose(const uint8_t *from, uint8_t *to) {
    uint32_t in[4], out[4];
    memcpy(in, from, sizeof in);
    const uint32_t even = 0x00ff00ff, low = 0xffff;
    const uint32_t a = (in[0] & even) | (in[1] & even) << 8, b = (in[0] >> 8 & even) | (in[1] & ~even);
    const uint32_t c = (in[2] & even) | (in[3] & even) << 8, d = (in[2] >> 8 & even) | (in[3] & ~even);
    out[0] = (a & low) | c << 16;
    out[1] = (b & low) | d << 16;
    out[2] = a >> 16 | (c & ~low);
    out[3] = b >> 16 | (d & ~low);
    memcpy(to, out, sizeof out);
}

/* Writes a slice's page as one of values. */
static void as_values(struct codec_shape own, const uint8_t *page, uint8_t *values) {
    memcpy(values, page, PAGE_TOKENS);
    for (size_t i = PAGE_TOKENS; i < PAGE_BYTES_TRANSFORM(own.layout->nibbles); i += 16) transpose(page + i, values + i);
}

/* Returns the page of the first slice that is a value. */
static const uint8_t *first_values(struct codec_shape shape, const void *page) {
    return next_page(transform_slice(shape, 0), page);
}

static size_t code_sum_floats(struct codec_shape shape) {
    size_t floats = 0;
    for (size_t p = 1; p < shape.slices; p++) floats += cpu_codec_code_sum_floats(&cpu_codec_transform, transform_slice(shape, p));
    return floats;
}

typedef void add_slice(struct codec_shape own, const float *weights, const void *page, float *code_sums);

static void add_slices(struct codec_shape shape, add_slice *add, const float *weights, const void *page, float *code_sums) {
    alignas(64) uint8_t values[PAGE_BYTES_TRANSFORM(MOST_NIBBLES)];
    const uint8_t *from = first_values(shape, page);
    for (size_t p = 1; p < shape.slices; p++) {
        const struct codec_shape own = transform_slice(shape, p);
        as_values(own, from, values);
        add(own, weights, values, code_sums);
        code_sums += cpu_codec_code_sum_floats(&cpu_codec_transform, own);
        from = next_page(own, from);
    }
}

static void add(struct codec_shape shape, const float *weights, const void *page, float *code_sums) {
    add_slices(shape, cpu_codec_transform.code_sums->add, weights, page, code_sums);
}

static void add_int8(struct codec_shape shape, const float *weights, const void *page, float *code_sums) {
    add_slices(shape, cpu_codec_transform.code_sums->integer->add, weights, page, code_sums);
}

static void add_logits(struct codec_shape shape, const float *logits, const float *largest, const void *page, float *code_sums,
                       float *sums) {
    alignas(64) uint8_t values[PAGE_BYTES_TRANSFORM(MOST_NIBBLES)];
    const uint8_t *from = first_values(shape, page);
    for (size_t p = 1; p < shape.slices; p++) {
        const struct codec_shape own = transform_slice(shape, p);
        as_values(own, from, values);
        transform_accumulate_logits(own, logits, largest, values, code_sums, p == 1 ? sums : NULL);
        code_sums += cpu_codec_code_sum_floats(&cpu_codec_transform, own);
        from = next_page(own, from);
    }
}

static bool suffice(struct codec_shape shape) {
    for (size_t p = 1; p < shape.slices; p++)
        if (!cpu_codec_transform.code_sums->integer->suffice(transform_slice(shape, p))) return false;
    return true;
}

static void finish(struct codec_shape shape, const float *code_sums, float *acc) {
    for (size_t p = 1; p < shape.slices; p++) {
        const struct codec_shape own = transform_slice(shape, p);
        transform_finish_code_sums(own, code_sums, acc + p * own.head_dim, shape.head_dim);
        code_sums += cpu_codec_code_sum_floats(&cpu_codec_transform, own);
    }
}

/* The row has no functions of codebooks: cpu_codec_transform's prepare each slice. Nothing accumulates values but by code, and models
 * with such keys choose no tokens. */
const struct cpu_codec cpu_codec_transform_slices = {
    .format = &codec_transform,
    .encode = encode,
    .decode = decode,
    .score = score,
    .pre_rope_mean = pre_rope_mean,
    .queries = &(const struct codec_queries){.floats = query_floats, .prepare = prepare_queries},
    .code_sums = &(const struct codec_code_sums){
        .floats = code_sum_floats,
        .add = add,
        .finish = finish,
        .integer = &(const struct codec_integer_sums){.suffice = suffice, .add = add_int8, .add_logits = add_logits}}};
