/* Computes the tables of angles and applies them. */
#include "backend/cpu/kv/rotary.h"

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

static float *entry(float *table, size_t pairs, size_t i) { return table + i * 2 * pairs; }

enum terse_status rotary_init(struct rotary *rotary, const struct rope *rope, struct terse_error *error) {
    *rotary = (struct rotary){.rope = rope, .pairs = rope->n_rot / 2};
    size_t numbers = 2 * rotary->pairs;
    rotary->slots = memory_array(PAGE_TOKENS, numbers * sizeof *rotary->slots);
    rotary->by_pair = memory_array(PAGE_TOKENS, numbers * sizeof *rotary->by_pair);
    rotary->by_pair_i16 = memory_array(PAGE_TOKENS, numbers * sizeof *rotary->by_pair_i16);
    if (!rotary->slots || !rotary->by_pair || !rotary->by_pair_i16)
        return status_no_memory(error, PAGE_TOKENS * numbers * (2 * sizeof(float) + sizeof *rotary->by_pair_i16),
                                "rotation tables");
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        float *cosine = entry(rotary->slots, rotary->pairs, t);
        rope_angles(rope, (int64_t)t, cosine, cosine + rotary->pairs);
        for (size_t i = 0; i < numbers; i++) {
            size_t pair = i % rotary->pairs, sine = i / rotary->pairs;
            rotary->by_pair[i * PAGE_TOKENS + t] = rope->magnitude * cosine[i];
            rotary->by_pair_i16[(pair * 2 + sine) * PAGE_TOKENS + t] = (int16_t)lrintf(32767 * cosine[i]);
        }
    }
    return TERSE_OK;
}

void rotary_destroy(struct rotary *rotary) {
    memory_free(rotary->slots);
    memory_free(rotary->by_pair);
    memory_free(rotary->by_pair_i16);
    memory_free(rotary->bases);
    memory_free(rotary->positions);
}

/* Returns a copy of array[used] with room for n; NULL when there is no memory. */
static void *copy_larger(const void *array, size_t used, size_t n, size_t bytes) {
    void *memory = memory_array(n, bytes);
    if (memory && used) memcpy(memory, array, used * bytes);
    return memory;
}

enum terse_status rotary_reserve(struct rotary *rotary, size_t n, struct terse_error *error) {
    size_t angles = 2 * rotary->pairs * sizeof(float), used = rotary->capacity;
    if (n <= used) return TERSE_OK;
    float *bases = copy_larger(rotary->bases, used, n, angles);
    int64_t *positions = copy_larger(rotary->positions, used, n, sizeof *positions);
    if (!bases || !positions) {
        memory_free(bases);
        memory_free(positions);
        return status_no_memory(error, n * (angles + sizeof *positions), "rotation tables");
    }
    for (size_t i = used; i < n; i++) positions[i] = INT64_MIN;
    memory_free(rotary->bases);
    memory_free(rotary->positions);
    rotary->bases = bases;
    rotary->positions = positions;
    rotary->capacity = n;
    return TERSE_OK;
}

void rotary_set_base(struct rotary *rotary, size_t base, int64_t position) {
    float *cosine = entry(rotary->bases, rotary->pairs, base);
    if (rotary->positions[base] == position) return;
    rotary->positions[base] = position;
    rope_angles(rotary->rope, position, cosine, cosine + rotary->pairs);
}

/* Computes angles[cosine, sine][pairs] of the position of `base` plus slot t. */
static void compose(const struct rotary *rotary, size_t base, size_t t, float *angles) {
    size_t pairs = rotary->pairs;
    const float *a = entry(rotary->bases, pairs, base), *b = entry(rotary->slots, pairs, t);
    for (size_t i = 0; i < pairs; i++) {
        angles[i] = a[i] * b[i] - a[pairs + i] * b[pairs + i];
        angles[pairs + i] = a[i] * b[pairs + i] + a[pairs + i] * b[i];
    }
}

/* Rotates by angles, as rope_rotate does; multiplies the magnitude into them. */
static void rotate(const struct rotary *rotary, float magnitude, float *cosine, float *sine, float *rows, uint32_t n,
                   uint32_t stride) {
    for (size_t i = 0; magnitude != 1 && i < rotary->pairs; i++) {
        cosine[i] *= magnitude;
        sine[i] *= magnitude;
    }
    vector_ops()->rotate(rows, n, stride, cosine, sine, rotary->pairs, rotary->rope->pairing == ROPE_ADJACENT);
}

void rotary_advance_base(const struct rotary *rotary, size_t base, float *rows, uint32_t n, uint32_t stride) {
    const float *cosine = entry(rotary->bases, rotary->pairs, base);
    vector_ops()->rotate(rows, n, stride, cosine, cosine + rotary->pairs, rotary->pairs, rotary->rope->pairing == ROPE_ADJACENT);
}

void rotary_rotate(const struct rotary *rotary, size_t base, size_t t, float *rows, uint32_t n, uint32_t stride) {
    float angles[CODEC_HEAD_DIM_MAX];
    compose(rotary, base, t, angles);
    rotate(rotary, rotary->rope->magnitude, angles, angles + rotary->pairs, rows, n, stride);
}

void rotary_rotate_back(const struct rotary *rotary, size_t base, float *rows, uint32_t n, uint32_t stride) {
    const float *cosine = entry(rotary->bases, rotary->pairs, base);
    float sine[CODEC_HEAD_DIM_MAX / 2];
    for (size_t i = 0; i < rotary->pairs; i++) sine[i] = -cosine[rotary->pairs + i];
    vector_ops()->rotate(rows, n, stride, cosine, sine, rotary->pairs, rotary->rope->pairing == ROPE_ADJACENT);
}

static void rotate_by(const struct rotary *rotary, int64_t position, float magnitude, float *rows, uint32_t n, uint32_t stride) {
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2];
    rope_angles(rotary->rope, position, cosine, sine);
    rotate(rotary, magnitude, cosine, sine, rows, n, stride);
}

void rotary_rotate_at(const struct rotary *rotary, int64_t position, float *rows, uint32_t n, uint32_t stride) {
    rotate_by(rotary, position, rotary->rope->magnitude, rows, n, stride);
}

void rotary_undo(const struct rotary *rotary, int64_t position, float *rows, uint32_t n, uint32_t stride) {
    rotate_by(rotary, -position, 1 / rotary->rope->magnitude, rows, n, stride);
}

void rotary_advance(const struct rotary *rotary, int64_t position, float *rows, uint32_t n, uint32_t stride) {
    rotate_by(rotary, position, 1, rows, n, stride);
}
