/* Pages that the GPU writes and reads, and the same on the host: rows of some page sets, layers and heads, a chunk that they go to, and what a
 * launch is told of them. */
#ifndef TERSE_TESTS_CUDA_ENCODE_SAMPLE_H
#define TERSE_TESTS_CUDA_ENCODE_SAMPLE_H

#include "backend/cpu/codec/codec.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kv/encode.h"
#include "base/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SAMPLE_LAYERS 2
#define SAMPLE_HEADS 3
#define SAMPLE_ITEMS 3
#define SAMPLE_SETS 5 /* of the chunk; items are 1, 2, ... of them */
#define SAMPLE_HEADS_ALL ((size_t)SAMPLE_LAYERS * SAMPLE_HEADS)
#define UNTOUCHED 0xa5 /* bytes that are not written */

static uint64_t sample_state = 7;

static inline double sample_unit(void) {
    sample_state = sample_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(sample_state >> 11) + 0.5) * 0x1p-53;
}
static inline double sample_normal(void) { return sqrt(-2 * log(sample_unit())) * cos(2 * M_PI * sample_unit()); }

static inline void assert_cuda(cudaError_t result) {
    if (result != cudaSuccess) fail_msg("%s", cudaGetErrorString(result));
}

/* A copy on the device. */
static inline void *sample_send(const void *from, size_t bytes) {
    struct terse_error error;
    void *to = device_alloc(NULL, bytes, "a sample", &error);
    assert_non_null(to);
    assert_cuda(device_send(to, from, bytes));
    return to;
}

struct encode_sample {
    size_t hd;
    struct codec_shape shape[SAMPLE_LAYERS * SAMPLE_HEADS][2]; /* as the CPU's codec sees them */
    const struct codec *codec[2];
    struct encode encode; /* of all layers */
    struct encode_item items[SAMPLE_ITEMS];
    uint16_t *rows, *rows_device; /* [layers][Hk][2][items * 64][hd] */
    size_t row_bytes;
    struct place_view places[SAMPLE_LAYERS * SAMPLE_HEADS], *places_device;
    uint8_t *chunk, *chunk_device; /* the host's has UNTOUCHED where there are no items' pages */
    size_t chunk_bytes;
};

static inline uint16_t *sample_row(const struct encode_sample *s, size_t place, int side, size_t item, size_t t) {
    return s->rows + ((place * 2 + (size_t)side) * SAMPLE_ITEMS * PAGE_TOKENS + item * PAGE_TOKENS + t) * s->hd;
}

static inline uint8_t *sample_page(const struct encode_sample *s, size_t place, int side, size_t item) {
    struct page_set_view set = s->items[item].set;
    set.chunk = s->chunk;
    return page_address(&set, &s->places[place], side);
}

/* A side of a page as floats, [end][hd]. */
static inline size_t sample_floats(const struct encode_sample *s, size_t place, int side, size_t item, float *floats) {
    size_t n = s->items[item].set.count;
    for (size_t i = 0; i < n * s->hd; i++) floats[i] = half_to_float(sample_row(s, place, side, item, 0)[i]);
    return n;
}

static inline void sample_set_items(struct encode_sample *s) {
    static const uint32_t ends[SAMPLE_ITEMS] = {64, 17, 63};
    static const uint32_t firsts[SAMPLE_ITEMS] = {0, 64 * 1000 + 7, 64 * 1001 + 7};
    size_t side_halves = SAMPLE_ITEMS * PAGE_TOKENS * s->hd;
    for (uint32_t i = 0; i < SAMPLE_ITEMS; i++) {
        device_half *keys = (device_half *)s->rows_device + i * PAGE_TOKENS * s->hd;
        s->items[i] = (struct encode_item){
            .set = {.chunk = s->chunk_device, .sets = SAMPLE_SETS, .index = i + 1, .first = firsts[i], .count = ends[i]},
            .rows = {keys, keys + side_halves}};
    }
}

static inline void sample_set_places(struct encode_sample *s) {
    uint64_t offset = 0;
    for (size_t place = 0; place < SAMPLE_HEADS_ALL; place++) {
        s->places[place].offset = offset;
        for (int side = 0; side < 2; side++) {
            size_t bytes = codec_page_bytes(s->codec[side], s->shape[place][side], (enum codec_side)side);
            s->places[place].bytes[side] = (uint32_t)bytes;
            offset += bytes;
        }
    }
    s->chunk_bytes = SAMPLE_SETS * offset;
}

/* Fills a sample whose shapes are set already; `number` gives each number of a row. */
static inline void sample_fill(struct encode_sample *s, float (*number)(size_t t, size_t c)) {
    s->row_bytes = SAMPLE_HEADS_ALL * 2 * SAMPLE_ITEMS * PAGE_TOKENS * s->hd * sizeof *s->rows;
    assert_non_null(s->rows = malloc(s->row_bytes));
    for (size_t i = 0; i < s->row_bytes / sizeof *s->rows; i++)
        s->rows[i] = half_from_float(number(i / s->hd % PAGE_TOKENS, i % s->hd));
    sample_set_places(s);
    s->chunk = aligned_alloc(64, s->chunk_bytes);
    assert_non_null(s->chunk);
    memset(s->chunk, UNTOUCHED, s->chunk_bytes);
    s->rows_device = sample_send(s->rows, s->row_bytes);
    s->chunk_device = sample_send(s->chunk, s->chunk_bytes);
    s->places_device = sample_send(s->places, sizeof s->places);
    sample_set_items(s);
    size_t side_halves = SAMPLE_ITEMS * PAGE_TOKENS * s->hd;
    s->encode = (struct encode){
        .heads = {.layers = SAMPLE_LAYERS, .query_heads = SAMPLE_HEADS, .kv_heads = SAMPLE_HEADS, .head_dim = (uint32_t)s->hd},
        .n_layers = SAMPLE_LAYERS,
        .codec = {s->codec[0]->id, s->codec[1]->id},
        .centroid = {{s->shape[0][0].width, s->shape[0][0].bits}, {s->shape[0][1].width, s->shape[0][1].bits}},
        .places = s->places_device,
        .items = sample_send(s->items, sizeof s->items),
        .n = SAMPLE_ITEMS,
        .layer_stride = SAMPLE_HEADS * 2 * side_halves,
        .head_stride = 2 * side_halves,
        .token_stride = s->hd};
    assert_true(encode_supports(&s->encode.heads, s->encode.codec));
}

static inline void sample_free(struct encode_sample *s) {
    free(s->rows);
    free(s->chunk);
    device_free(NULL, s->rows_device, 0);
    device_free(NULL, s->chunk_device, 0);
    device_free(NULL, s->places_device, 0);
    device_free(NULL, (void *)s->encode.items, 0);
}

/* Copies bytes from the device after all launches have ended; free the result. */
static inline void *sample_fetch(const void *from, size_t bytes) {
    void *to = malloc(bytes);
    assert_non_null(to);
    assert_cuda(cudaStreamSynchronize(device_stream()));
    assert_cuda(device_fetch(to, from, bytes));
    return to;
}

/* Rows that decode_pages writes over rows of UNTOUCHED bytes, on the host. */
static inline uint16_t *sample_decode(struct encode_sample *s) {
    assert_cuda(cudaMemsetAsync(s->rows_device, UNTOUCHED, s->row_bytes, device_stream()));
    assert_cuda(decode_pages(&s->encode, device_stream()));
    return sample_fetch(s->rows_device, s->row_bytes);
}

/* Rotates the keys of an item's rows back from their positions, or to them, as far as the codec stores them so. */
typedef void sample_turn(const void *user, int side, size_t item, bool back, float *rows);

/* Checks rows that are decoded of pages which the host's chunk holds, too, against those that the CPU decodes. */
static inline void sample_check_decoded(struct encode_sample *s, sample_turn *turn, const void *user) {
    static float rows[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    uint16_t *decoded = sample_decode(s);
    for (size_t place = 0; place < SAMPLE_HEADS_ALL; place++)
        for (int side = 0; side < 2; side++)
            for (size_t item = 0; item < SAMPLE_ITEMS; item++) {
                const uint16_t *own = decoded + (sample_row(s, place, side, item, 0) - s->rows);
                cpu_codec_of(s->codec[side])
                    ->decode(s->shape[place][side], (enum codec_side)side, sample_page(s, place, side, item), rows);
                turn(user, side, item, false, rows);
                for (size_t i = 0; i < PAGE_TOKENS * s->hd; i++) {
                    if (i / s->hd >= s->items[item].set.count) {
                        assert_int_equal(own[i], UNTOUCHED << 8 | UNTOUCHED);
                    } else { /* within a last place of a half, or of the channel that it is rotated with */
                        float x = half_to_float(own[i]);
                        assert_true(fabsf(x - rows[i]) <= 0x1p-10f * (fabsf(rows[i]) + 1));
                    }
                }
            }
    free(decoded);
}

#endif
