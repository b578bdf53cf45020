/* Rotary embedding: angles against long double, rotation against complex multiplication, and the properties that the cache
 * builds on: relative positions, inverse rotation, channels that pass through. */
#include "model/rope.h"
#include "support/kernel_check.h"

#include <complex.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MOST_HD 256

/* theta^(-2 i / n_rot), as models have it. */
static void make_frequencies(float *frequency, uint32_t n_rot, double theta) {
    for (uint32_t i = 0; i < n_rot / 2; i++) frequency[i] = (float)pow(theta, -2.0 * i / n_rot);
}

static void test_angles_at_far_positions(void **state) {
    (void)state;
    float frequency[MOST_HD / 2], cosine[MOST_HD / 2], sine[MOST_HD / 2];
    const double thetas[] = {1e4, 5e5, 1e6};
    struct random random = {1};
    for (size_t f = 0; f < 3; f++) {
        make_frequencies(frequency, MOST_HD, thetas[f]);
        frequency[1] = 3.1415927f; /* half rotations: the reduction needs an accurate pi */
        struct rope rope = {ROPE_ADJACENT, MOST_HD, MOST_HD, frequency, 1};
        for (int sample = 0; sample < 400; sample++) {
            int64_t position = sample < 50 ? sample : (int64_t)(random_bits(&random) % 1000000001u);
            if (sample == 50) position = 1000000000;
            if (sample % 2) position = -position;
            rope_angles(&rope, position, cosine, sine);
            for (uint32_t i = 0; i < MOST_HD / 2; i++) {
                long double angle = (long double)position * frequency[i]; /* exact: 30 + 24 bits */
                /* half a unit in the last place of a float below 1 */
                check_close(cosine[i], (double)cosl(angle), 1, 0x1.001p-25, 0, "cos of %lld * %.9g", (long long)position,
                            (double)frequency[i]);
                check_close(sine[i], (double)sinl(angle), 1, 0x1.001p-25, 0, "sin of %lld * %.9g", (long long)position,
                            (double)frequency[i]);
            }
        }
    }
}

static void check_rotation(struct random *random, const struct rope *rope, int64_t position, uint32_t n, uint32_t stride) {
    uint32_t pairs = rope->n_rot / 2;
    float *cosine = guard_floats(pairs, GUARD_END), *sine = guard_floats(pairs, GUARD_END);
    size_t floats = n ? (size_t)(n - 1) * stride + rope->head_dim : 0;
    float *rows = guard_floats(floats, GUARD_END), *before = guard_floats(floats, GUARD_END);
    fill_floats(random, FILL_NORMAL, rows, floats);
    memcpy(before, rows, floats * sizeof *rows);
    rope_angles(rope, position, cosine, sine);
    rope_rotate(rope, cosine, sine, rows, n, stride);
    for (uint32_t r = 0; r < n; r++) {
        float *was = before + (size_t)r * stride, *is = rows + (size_t)r * stride;
        for (uint32_t i = 0; i < pairs; i++) {
            uint32_t a = rope->pairing == ROPE_ADJACENT ? 2 * i : i, b = rope->pairing == ROPE_ADJACENT ? 2 * i + 1 : i + pairs;
            double complex z = (was[a] + I * was[b]) * cexp(I * (double)position * rope->frequency[i]) * rope->magnitude;
            check_close(is[a], creal(z), fabs((double)was[a]) + fabs((double)was[b]), 4e-7, 0, "row %u channel %u", r, a);
            check_close(is[b], cimag(z), fabs((double)was[a]) + fabs((double)was[b]), 4e-7, 0, "row %u channel %u", r, b);
            was[a] = is[a];
            was[b] = is[b];
        }
    }
    assert_memory_equal(rows, before, floats * sizeof *rows); /* the rest is untouched, the gaps between rows too */
    guard_release();
}

static void test_rotation_is_complex_multiplication(void **state) {
    (void)state;
    float frequency[MOST_HD / 2];
    struct random random = {2};
    const struct { uint32_t head_dim, n_rot; } heads[] = {{64, 64}, {128, 128}, {256, 64}, {96, 32}, {80, 20}, {64, 2}, {64, 0}};
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
        make_frequencies(frequency, heads[h].n_rot, 1e4);
        for (int pairing = ROPE_ADJACENT; pairing <= ROPE_HALF_SPLIT; pairing++) {
            for (int scaled = 0; scaled < 2; scaled++) {
                struct rope rope = {(enum rope_pairing)pairing, heads[h].head_dim, heads[h].n_rot, frequency,
                                    scaled ? 1.2079442f : 1};
                for (uint32_t n = 0; n < 4; n++) {
                    check_rotation(&random, &rope, 0, n, heads[h].head_dim);
                    check_rotation(&random, &rope, 12345, n, heads[h].head_dim + 7);
                    check_rotation(&random, &rope, -77, n, 3 * heads[h].head_dim);
                }
            }
        }
    }
}

static double inner(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

static void rotate_to(const struct rope *rope, int64_t position, const float *from, float *to) {
    float cosine[MOST_HD / 2], sine[MOST_HD / 2];
    memcpy(to, from, rope->head_dim * sizeof *to);
    rope_angles(rope, position, cosine, sine);
    rope_rotate(rope, cosine, sine, to, 1, rope->head_dim);
}

static void test_products_depend_only_on_the_distance(void **state) {
    (void)state;
    float frequency[32], q[64], k[64], rotated_q[64], rotated_k[64];
    struct random random = {3};
    make_frequencies(frequency, 64, 1e4);
    const int64_t shifts[] = {1, 63, 32768, 131072, 999990000};
    for (int pairing = ROPE_ADJACENT; pairing <= ROPE_HALF_SPLIT; pairing++) {
        struct rope rope = {(enum rope_pairing)pairing, 64, 64, frequency, 1};
        fill_floats(&random, FILL_NORMAL, q, 64);
        fill_floats(&random, FILL_NORMAL, k, 64);
        rotate_to(&rope, 100, q, rotated_q);
        rotate_to(&rope, 42, k, rotated_k);
        double near = inner(rotated_q, rotated_k, 64);
        for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++) {
            rotate_to(&rope, 100 + shifts[s], q, rotated_q);
            rotate_to(&rope, 42 + shifts[s], k, rotated_k);
            check_close(inner(rotated_q, rotated_k, 64), near, 64, 1e-6, 0, "shifted by %lld", (long long)shifts[s]);
        }
        rotate_to(&rope, 58, q, rotated_q); /* only the query, by the distance */
        check_close(inner(rotated_q, k, 64), near, 64, 1e-6, 0, "query moved");
    }
}

static void test_a_negative_position_rotates_back(void **state) {
    (void)state;
    float frequency[64], x[128], there[128], back[128];
    struct random random = {4};
    make_frequencies(frequency, 128, 5e5);
    struct rope rope = {ROPE_HALF_SPLIT, 128, 128, frequency, 1};
    fill_floats(&random, FILL_NORMAL, x, 128);
    rotate_to(&rope, 1000000, x, there);
    rotate_to(&rope, -1000000, there, back);
    for (size_t i = 0; i < 128; i++) check_close(back[i], x[i], 4, 1e-6, 0, "channel %zu", i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_angles_at_far_positions),
        cmocka_unit_test(test_rotation_is_complex_multiplication),
        cmocka_unit_test(test_products_depend_only_on_the_distance),
        cmocka_unit_test(test_a_negative_position_rotates_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
