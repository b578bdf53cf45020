/* Angles from two tables, and their application. Owns the tables. */
#include "backend/cpu/kv/rotary.h"

#include "base/memory.h"
#include "backend/cpu/codec/codec.h"

#include <math.h>

static float *entry(float *table, size_t pairs, size_t i) { return table + i * 2 * pairs; }

enum terse_status turns_init(struct turns *turns, const struct rope *rope, struct terse_error *error) {
    *turns = (struct turns){.rope = rope, .plain = *rope, .pairs = rope->n_rot / 2};
    turns->plain.magnitude = 1;
    size_t numbers = 2 * turns->pairs;
    turns->within = memory_array(BLOCK_TOKENS, numbers * sizeof *turns->within);
    turns->slots = memory_array(BLOCK_TOKENS, numbers * sizeof *turns->slots);
    turns->words = memory_array(BLOCK_TOKENS, numbers * sizeof *turns->words);
    if (!turns->within || !turns->slots || !turns->words)
        return status_no_memory(error, BLOCK_TOKENS * numbers * (2 * sizeof(float) + sizeof *turns->words), "rotation tables");
    for (size_t t = 0; t < BLOCK_TOKENS; t++) {
        float *cosine = entry(turns->within, turns->pairs, t);
        rope_angles(rope, (int64_t)t, cosine, cosine + turns->pairs);
        for (size_t i = 0; i < numbers; i++) {
            size_t pair = i % turns->pairs, sine = i / turns->pairs;
            turns->slots[i * BLOCK_TOKENS + t] = rope->magnitude * cosine[i];
            turns->words[(pair * 2 + sine) * BLOCK_TOKENS + t] = (int16_t)lrintf(32767 * cosine[i]);
        }
    }
    return TERSE_OK;
}

void turns_destroy(struct turns *turns) {
    memory_free(turns->within);
    memory_free(turns->slots);
    memory_free(turns->words);
    memory_free(turns->bases);
}

enum terse_status turns_reserve(struct turns *turns, size_t n, struct terse_error *error) {
    if (n <= turns->capacity) return TERSE_OK;
    memory_free(turns->bases);
    turns->capacity = 0;
    turns->bases = memory_array(n, 2 * turns->pairs * sizeof(float));
    if (!turns->bases) return status_no_memory(error, n * 2 * turns->pairs * sizeof(float), "rotation tables");
    turns->capacity = n;
    return TERSE_OK;
}

void turns_set_base(struct turns *turns, size_t base, int64_t position) {
    float *cosine = entry(turns->bases, turns->pairs, base);
    rope_angles(turns->rope, position, cosine, cosine + turns->pairs);
}

void turns_rotate(const struct turns *turns, size_t base, size_t t, float *rows, uint32_t n, uint32_t stride) {
    size_t pairs = turns->pairs;
    const float *a = entry(turns->bases, pairs, base), *b = entry(turns->within, pairs, t);
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2];
    for (size_t i = 0; i < pairs; i++) {
        cosine[i] = a[i] * b[i] - a[pairs + i] * b[pairs + i];
        sine[i] = a[i] * b[pairs + i] + a[pairs + i] * b[i];
    }
    rope_rotate(turns->rope, cosine, sine, rows, n, stride);
}

void turns_rotate_back(const struct turns *turns, size_t base, float *rows, uint32_t n, uint32_t stride) {
    const float *cosine = entry(turns->bases, turns->pairs, base);
    float sine[CODEC_HEAD_DIM_MAX / 2];
    for (size_t i = 0; i < turns->pairs; i++) sine[i] = -cosine[turns->pairs + i];
    rope_rotate(&turns->plain, cosine, sine, rows, n, stride);
}

static void turn_by(const struct rope *rope, int64_t position, float *rows, uint32_t n, uint32_t stride) {
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2];
    rope_angles(rope, position, cosine, sine);
    rope_rotate(rope, cosine, sine, rows, n, stride);
}

void turns_turn(const struct turns *turns, int64_t position, float *rows, uint32_t n, uint32_t stride) {
    turn_by(turns->rope, position, rows, n, stride);
}

void turns_unturn(const struct turns *turns, int64_t position, float *rows, uint32_t n, uint32_t stride) {
    struct rope inverse = *turns->rope;
    inverse.magnitude = 1 / turns->rope->magnitude;
    turn_by(&inverse, -position, rows, n, stride);
}

void turns_move(const struct turns *turns, int64_t position, float *rows, uint32_t n, uint32_t stride) {
    turn_by(&turns->plain, position, rows, n, stride);
}
