/* The half-float and vector functions of every tier against integer and double-precision arithmetic, at odd lengths, between
 * inaccessible pages and with extreme inputs; and the choice of the tier by TERSE_CPU. Products in 16 bits and
 * scores of positions are in test_kernels_multiply.c, the weight functions in test_kernels_weights.c, those of the cache in the other
 * files of this folder.
 *
 *     test_kernels --bench     time of each function in each tier
 */
#include "support/kernel_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define EPSILON 0x1p-24 /* half a unit in the last place of 1: the error of one rounding */
#define TINIEST 0x1p-149

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Runs `check` for each tier, length, fill and side of the guard page. */
typedef void vector_check(const struct tier *k, struct random *random, size_t n, enum fill fill, enum guard_side side);

static void for_all_lengths(vector_check *check) {
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        struct random random = {11};
        for (size_t length = 0; length < n_odd_lengths; length++) {
            for (int fill = 0; fill < FILLS; fill++) {
                for (int side = GUARD_END; side <= GUARD_START; side++) {
                    check(k, &random, odd_lengths[length], (enum fill)fill, (enum guard_side)side);
                    guard_release();
                }
            }
        }
    }
}

/* ---- Half floats --------------------------------------------------------------------------------------------------------- */

static double value_of_half(uint16_t half) {
    int exponent = half >> 10 & 31;
    double fraction = half & 1023;
    double magnitude = exponent == 31 ? (fraction != 0 ? NAN : INFINITY)
                       : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                      : ldexp(fraction, -24);
    return half >> 15 ? -magnitude : magnitude;
}

static void test_every_half_becomes_its_float(void **state) {
    (void)state;
    enum { ALL = 65536 };
    uint16_t *half = malloc(ALL * sizeof *half);
    float *got = malloc(ALL * sizeof *got);
    for (size_t i = 0; i < ALL; i++) half[i] = (uint16_t)i;
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        k->vector->half_to_float(half, got, ALL);
        for (size_t i = 0; i < ALL; i++) {
            double want = value_of_half((uint16_t)i);
            if (isnan(want)) { /* quiet, sign and payload kept */
                uint32_t bits = (uint32_t)(i & 0x8000) << 16 | 0x7fc00000 | (uint32_t)(i & 0x3ff) << 13;
                if (bits_of(got[i]) != bits) fail_msg("%s: NaN %04zx became %08x", k->name, i, bits_of(got[i]));
            } else if (got[i] != want || (signbit(got[i]) != 0) != (i >> 15 != 0)) {
                fail_msg("%s: half %04zx became %g, not %g", k->name, i, (double)got[i], want);
            }
        }
    }
    free(half);
    free(got);
}

/* The nearest half by arithmetic on doubles: a multiple of the step at that magnitude, ties to even by the rounding mode. */
static double rounded_to_half(double x) {
    int exponent;
    frexp(x, &exponent);
    double step = ldexp(1, exponent - 11 < -24 ? -24 : exponent - 11);
    double rounded = nearbyint(x / step) * step;
    return fabs(rounded) >= 65536 ? copysign(INFINITY, x) : rounded;
}

static void check_to_half(const float *in, size_t n) {
    uint16_t *got = malloc(n * sizeof *got), *scalar = malloc(n * sizeof *scalar);
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        uint16_t *out = tier ? got : scalar;
        k->vector->float_to_half(in, out, n);
        for (size_t i = 0; i < n; i++) {
            if (out[i] != scalar[i]) fail_msg("%s: %08x became %04x, scalar %04x", k->name, bits_of(in[i]), out[i], scalar[i]);
            if (tier) continue;
            double want = isfinite(in[i]) ? rounded_to_half(in[i]) : in[i], have = value_of_half(out[i]);
            bool right = isnan(want) ? isnan(have) && (out[i] & 0x200) : have == want;
            if (!right || out[i] >> 15 != bits_of(in[i]) >> 31)
                fail_msg("%08x (%g) became %04x", bits_of(in[i]), (double)in[i], out[i]);
        }
    }
    free(got);
    free(scalar);
}

static void test_floats_round_to_the_nearest_half(void **state) {
    (void)state;
    enum { MANY = 1 << 20 };
    float *in = malloc(MANY * sizeof *in);
    for (uint32_t i = 0; i < MANY; i++)
        in[i] = float_of(i * 4093); /* every 4093rd float, NaNs, infinities and subnormals among them */
    check_to_half(in, MANY);
    size_t n = 0;
    for (uint32_t half = 0; half < 0x7c00; half++) { /* each half, the middle between it and the next, and their neighbours */
        float low = (float)value_of_half((uint16_t)half),
              high = half == 0x7bff ? 65536 : (float)value_of_half((uint16_t)(half + 1));
        float points[2] = {low, (low + high) / 2};
        for (int p = 0; p < 2; p++) {
            in[n++] = points[p];
            in[n++] = nextafterf(points[p], INFINITY);
            in[n++] = -nextafterf(points[p], -INFINITY);
        }
    }
    const float ends[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, float_of(0xff800001), 0x1p-149f, -3e38f};
    memcpy(in + n, ends, sizeof ends);
    check_to_half(in, n + sizeof ends / sizeof *ends);
    free(in);
}

static void check_half_lengths(const struct tier *k, struct random *random, size_t n, enum fill fill, enum guard_side side) {
    uint16_t *half = guard_bytes(n * sizeof *half, side), *back = guard_bytes(n * sizeof *back, side);
    float *x = guard_floats(n, side);
    fill_halves(random, fill, half, n);
    k->vector->half_to_float(half, x, n);
    for (size_t i = 0; i < n; i++) assert_true(x[i] == value_of_half(half[i]));
    k->vector->float_to_half(x, back, n);
    assert_memory_equal(half, back, n * sizeof *half);
}

static void test_halves_at_odd_lengths(void **state) {
    (void)state;
    for_all_lengths(check_half_lengths);
}

/* ---- Sums ---------------------------------------------------------------------------------------------------------------- */

static void check_dot(const struct tier *k, struct random *random, size_t n, enum fill fill, enum guard_side side) {
    float *a = guard_floats(n, side), *b = guard_floats(n, side);
    fill_floats(random, fill, a, n);
    fill_floats(random, fill == FILL_CANCEL ? FILL_ZERO : fill, b, n);
    for (size_t i = 0; i < n && fill == FILL_CANCEL; i++) b[i] = 1;
    double want = 0, terms = 0;
    for (size_t i = 0; i < n; i++) {
        want += (double)a[i] * b[i];
        terms += fabs((double)a[i] * b[i]);
    }
    check_close(k->vector->dot(a, b, n), want, terms, EPSILON * (double)(n + 1), TINIEST * (double)n, "%s dot of %zu, %s", k->name,
                n, fill_name(fill));
}

static void check_rotation(const struct tier *k, struct random *random, size_t pairs, size_t n, bool adjacent,
                           enum guard_side side) {
    size_t row = 2 * pairs + n % 3, length = n ? (n - 1) * row + 2 * pairs : 0;
    float *rows = guard_floats(length, side), *before = guard_floats(length, side), *cosine = guard_floats(pairs, side),
          *sine = guard_floats(pairs, side);
    fill_floats(random, FILL_NORMAL, before, length);
    for (size_t i = 0; i < pairs; i++) {
        double angle = 7 * random_unit(random);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    memcpy(rows, before, length * sizeof *rows);
    k->vector->rotate(rows, n, row, cosine, sine, pairs, adjacent);
    for (size_t m = 0; m < n; m++) {
        for (size_t i = 0; i < pairs; i++) {
            size_t a = m * row + (adjacent ? 2 * i : i), b = a + (adjacent ? 1 : pairs);
            double x = (double)before[a], y = (double)before[b], c = (double)cosine[i], s = (double)sine[i];
            check_close(rows[a], x * c - y * s, fabs(x) + fabs(y), 2 * EPSILON, 0, "%s rotation of %zu pairs at %zu", k->name,
                        pairs, i);
            check_close(rows[b], x * s + y * c, fabs(x) + fabs(y), 2 * EPSILON, 0, "%s rotation of %zu pairs at %zu", k->name,
                        pairs, i);
        }
        for (size_t i = m * row + 2 * pairs; m + 1 < n && i < (m + 1) * row; i++) assert_true(rows[i] == before[i]);
    }
    guard_release();
}

static void rotations(void **state) {
    (void)state;
    struct random random = {11};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++)
        for (size_t pairs = 0; pairs <= 70; pairs++)
            for (size_t n = 0; n <= 5; n++)
                for (int form = 0; form < 4; form++)
                    check_rotation(k, &random, pairs, n, form & 1, form & 2 ? GUARD_START : GUARD_END);
}

static void check_axpy(const struct tier *k, struct random *random, size_t n, enum fill fill, enum guard_side side) {
    float *x = guard_floats(n, side), *y = guard_floats(n, side), before[1000];
    fill_floats(random, fill, x, n);
    fill_floats(random, fill, y, n);
    if (n) memcpy(before, y, n * sizeof *y);
    float scale = random_normal(random);
    k->vector->axpy(scale, x, y, n);
    for (size_t i = 0; i < n; i++) {
        double want = before[i] + (double)scale * x[i], terms = fabs((double)before[i]) + fabs((double)scale * x[i]);
        check_close(y[i], want, terms, 2 * EPSILON, TINIEST, "%s axpy of %zu, %s, at %zu", k->name, n, fill_name(fill), i);
    }
}

static void check_rms_norm(const struct tier *k, struct random *random, size_t n, enum fill fill, enum guard_side side) {
    float *x = guard_floats(n, side), *gain = guard_floats(n, side), *out = guard_floats(n, side);
    fill_floats(random, fill, x, n);
    fill_floats(random, FILL_NORMAL, gain, n);
    const float epsilon = 1e-6f;
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    double scale = 1 / sqrt(squares / (double)n + epsilon);
    k->vector->rms_norm(x, gain, epsilon, out, n);
    for (size_t i = 0; i < n; i++) {
        double want = x[i] * scale * gain[i];
        check_close(out[i], want, fabs(want), EPSILON * ((double)n / 2 + 6), 2 * TINIEST + TINIEST * fabs((double)gain[i]),
                    "%s rms_norm of %zu, %s, at %zu", k->name, n, fill_name(fill), i);
    }
    k->vector->rms_norm(x, gain, epsilon, x, n); /* in place */
    assert_memory_equal(x, out, n * sizeof *x);
}

static void test_dot_at_odd_lengths(void **state) {
    (void)state;
    for_all_lengths(check_dot);
}

static void test_axpy_at_odd_lengths(void **state) {
    (void)state;
    for_all_lengths(check_axpy);
}

static void test_rms_norm_at_odd_lengths(void **state) {
    (void)state;
    for_all_lengths(check_rms_norm);
}

static void check_max(const struct tier *k, struct random *random, size_t n, enum fill fill, enum guard_side side) {
    float *x = guard_floats(n, side);
    fill_floats(random, fill, x, n);
    if (n > 2) x[random_bits(random) % n] = NAN; /* passed over */
    for (size_t i = 0; i < n && random_bits(random) % 4 == 0; i++) x[i] = -INFINITY;
    float want = -INFINITY;
    for (size_t i = 0; i < n; i++) want = fmaxf(want, x[i]);
    if (k->vector->max(x, n) != want) fail_msg("%s max of %zu, %s", k->name, n, fill_name(fill));
    for (size_t i = 0; i < n; i++) { /* wherever it lies */
        float kept = x[i];
        x[i] = INFINITY;
        if (k->vector->max(x, n) != INFINITY) fail_msg("%s max of %zu misses element %zu", k->name, n, i);
        x[i] = kept;
    }
}

/* Exact but for the sum of the weights. */
static void test_gains_of_64_tokens(void **state) {
    (void)state;
    struct random random = {8};
    const struct tier *k;
    for (int side = 0; side < 2; side++) {
        enum guard_side guard = side ? GUARD_END : GUARD_START;
        float *table = guard_floats(256, guard), *gains = guard_floats(64, guard), *weights = guard_floats(64, guard);
        float *scaled = guard_floats(64, guard);
        uint8_t *codes = guard_bytes(64, guard);
        double sum = 0, sizes = 0;
        for (size_t i = 0; i < 256; i++) table[i] = random_normal(&random);
        for (size_t t = 0; t < 64; t++) {
            weights[t] = random_normal(&random);
            sum += (double)weights[t];
            sizes += fabs((double)weights[t]);
        }
        for (size_t tier = 0; (k = tier_at(tier)); tier++) {
            for (size_t first = 0; first < 256; first += 64) {
                for (size_t t = 0; t < 64; t++) codes[t] = (uint8_t)(first + t * 29 % 64);
                k->vector->look_up_gains(table, codes, gains);
                float got = k->vector->scale_weights(weights, gains, scaled);
                if (!(fabs((double)got - sum) <= 1e-6 * sizes)) fail_msg("%s: the weights come to %g, not %g", k->name, got, sum);
                for (size_t t = 0; t < 64; t++) {
                    if (gains[t] != table[codes[t]]) fail_msg("%s: the gain of code %u is %g", k->name, codes[t], gains[t]);
                    if (scaled[t] != weights[t] * gains[t])
                        fail_msg("%s: token %zu has the scaled weight %g", k->name, t, scaled[t]);
                }
            }
        }
        guard_release();
    }
}

static void test_max_of_pages(void **state) {
    (void)state;
    struct random random = {7};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        assert_true(k->vector->max_pages(NULL, 0, 64) == -INFINITY);
        for (size_t n = 1; n < 4; n++) {
            for (size_t stride = 64; stride < 200; stride += 67) {
                size_t all = (n - 1) * stride + 64, at = random_bits(&random) % 64 + random_bits(&random) % n * stride;
                float *x = guard_floats(all, n % 2 ? GUARD_END : GUARD_START);
                for (size_t i = 0; i < all; i++) x[i] = i % stride < 64 ? -random_normal(&random) : 1e9f; /* what lies between */
                x[at] = 100;
                x[(at + 1) % 64] = NAN;
                x[at] = 100;
                if (k->vector->max_pages(x, n, stride) != 100) fail_msg("%s max of %zu pages, %zu apart", k->name, n, stride);
            }
        }
        guard_release();
    }
}

static void test_max_at_odd_lengths(void **state) {
    (void)state;
    for_all_lengths(check_max);
}

/* ---- Exponentials -------------------------------------------------------------------------------------------------------- */

#define EXP_RELATIVE 1e-7 /* the contract of vector/ops.h */
#define EXP_ABSOLUTE 1.4e-45

/* Every `stride`-th float between +-0 and `end`. */
static void check_exp_range(const struct tier *k, float end, uint32_t stride) {
    enum { CHUNK = 4096 };
    static float x[CHUNK], d[CHUNK];
    uint32_t sign = bits_of(end) & 0x80000000;
    for (uint32_t at = 0; at <= (bits_of(end) & 0x7fffffff);) {
        for (size_t i = 0; i < CHUNK; i++, at += stride) x[i] = d[i] = float_of(at | sign);
        float sum = k->vector->exp_sum(x, 0, CHUNK);
        double total = 0;
        for (size_t i = 0; i < CHUNK; i++) {
            double want = exp(d[i]);
            total += x[i];
            if (want > 3.4028235e38) {
                if (x[i] != INFINITY && x[i] < 3.4028e38f) fail_msg("%s exp(%.9g) = %.9g", k->name, (double)d[i], (double)x[i]);
                continue;
            }
            check_close(x[i], want, want, EXP_RELATIVE, EXP_ABSOLUTE, "%s exp(%.9g)", k->name, (double)d[i]);
        }
        check_close(sum, total, total, EPSILON * CHUNK, 0, "%s sum of exp", k->name);
    }
}

static void test_exp_over_the_whole_range(void **state) {
    (void)state;
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        check_exp_range(k, -88, 389);    /* normal results, down to tiny arguments */
        check_exp_range(k, -1e30f, 997); /* subnormal results and zero */
        check_exp_range(k, 88.7f, 997);
    }
}

/* Bytes between pages are not touched. */
static void test_exp_of_pages(void **state) {
    (void)state;
    struct random random = {11};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        assert_true(k->vector->exp_pages(NULL, 0, 0, 64) == 0);
        for (size_t n = 1; n < 40; n += 12) {
            for (size_t stride = 64; stride < 300; stride += 67) {
                size_t all = (n - 1) * stride + 64;
                float *x = guard_floats(all, n % 8 == 1 ? GUARD_END : GUARD_START), *before = malloc(all * sizeof *before);
                for (size_t i = 0; i < all; i++) before[i] = x[i] = 9 * random_normal(&random);
                double sum = k->vector->exp_pages(x, 3, n, stride), total = 0;
                for (size_t i = 0; i < all; i++) {
                    double want = i % stride < 64 ? exp(before[i] - 3.0f) : before[i];
                    if (i % stride < 64) total += x[i];
                    check_close(x[i], want, fabs(want), i % stride < 64 ? 2e-7 + 8e-8 * fabs(before[i] - 3) : 0, 0x1p-125,
                                "%s %zu of %zu pages", k->name, i, n);
                }
                check_close(sum, total, total, EPSILON * (double)(64 * n), 0, "%s sum of %zu pages", k->name, n);
                for (size_t i = 0; i < all; i++) x[i] = -INFINITY;
                assert_true(k->vector->exp_pages(x, -INFINITY, n, stride) == 0);
                free(before);
            }
        }
        guard_release();
    }
}

static void test_exp_where_there_is_no_number(void **state) {
    (void)state;
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (size_t length = 0; length < n_odd_lengths; length++) {
            size_t n = odd_lengths[length];
            float x[1000];
            for (size_t i = 0; i < n; i++) x[i] = -INFINITY;
            assert_true(k->vector->exp_sum(x, k->vector->max(x, n), n) == 0); /* an empty partial must not become NaN */
            for (size_t i = 0; i < n; i++) assert_true(x[i] == 0 && !signbit(x[i]));

            for (size_t i = 0; i < n; i++) x[i] = i % 3 == 0 ? -INFINITY : 5; /* a masked row with some left */
            assert_true(k->vector->exp_sum(x, 5, n) == (float)(n - (n + 2) / 3));

            for (size_t i = 0; i < n; i++) { /* each lane keeps its own NaN and overflow */
                for (size_t j = 0; j < n; j++) x[j] = j == i ? NAN : j == (i + 1) % n ? 100 : 0;
                float sum = k->vector->exp_sum(x, 0, n);
                assert_true(isnan(sum));
                for (size_t j = 0; j < n; j++) assert_true(j == i ? isnan(x[j]) : x[j] == (j == (i + 1) % n ? INFINITY : 1));
                if (n > 100) break;
            }
        }
        float huge[2] = {3e38f, -3e38f}; /* the difference overflows */
        assert_true(k->vector->exp_sum(huge, 3e38f, 2) == 1 && huge[0] == 1 && huge[1] == 0);
    }
}

static void check_exp_lengths(const struct tier *k, struct random *random, size_t n, enum fill fill, enum guard_side side) {
    float *x = guard_floats(n, side), before[1000];
    fill_floats(random, fill, x, n);
    if (n) memcpy(before, x, n * sizeof *x);
    float max = k->vector->max(x, n);
    double sum = k->vector->exp_sum(x, max, n), total = 0;
    for (size_t i = 0; i < n; i++) {
        double want = exp(before[i] - max); /* the difference as a float */
        total += x[i];
        check_close(x[i], want, want, EXP_RELATIVE, EXP_ABSOLUTE, "%s exp_sum of %zu, %s, at %zu", k->name, n, fill_name(fill), i);
    }
    check_close(sum, total, total, EPSILON * (double)n, 0, "%s exp_sum of %zu, %s", k->name, n, fill_name(fill));
}

static void test_exp_sum_at_odd_lengths(void **state) {
    (void)state;
    for_all_lengths(check_exp_lengths);
}

static void check_silu(const struct tier *k, float gate, float up, float got) {
    double want = gate / (1 + exp(-(double)gate)) * up;
    check_close(got, want, fabs(want), 5e-7, 1e-36 * fabs((double)up) + TINIEST, "%s silu(%.9g) * %g", k->name, (double)gate,
                (double)up);
}

static void check_silu_lengths(const struct tier *k, struct random *random, size_t n, enum fill fill, enum guard_side side) {
    float *gate = guard_floats(n, side), *up = guard_floats(n, side), before[1000];
    fill_floats(random, fill, gate, n);
    fill_floats(random, fill, up, n);
    if (n) memcpy(before, gate, n * sizeof *gate);
    k->vector->silu_mul(gate, up, n);
    for (size_t i = 0; i < n; i++) check_silu(k, before[i], up[i], gate[i]);
}

static void test_silu_mul_at_odd_lengths(void **state) {
    (void)state;
    for_all_lengths(check_silu_lengths);
}

static void test_silu_mul_over_the_whole_range(void **state) {
    (void)state;
    enum { MANY = 1 << 16 };
    static float gate[MANY], x[MANY], up[MANY];
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        for (size_t i = 0; i < MANY; i++) {
            gate[i] = x[i] = -120 + 240 * (float)i / MANY;
            up[i] = i % 2 ? 1.5f : -1e17f;
        }
        k->vector->silu_mul(x, up, MANY);
        for (size_t i = 0; i < MANY; i++) check_silu(k, gate[i], up[i], x[i]);
    }
}

/* ---- The choice of the tier ------------------------------------------------------------------------------------------------ */

/* Reads the line that another process of this program prints, started with TERSE_CPU as given. */
static void say_with(const char *cpu, char *line, int size) {
    char self[4000], command[4200];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = 0;
    snprintf(command, sizeof command, "TERSE_CPU='%s' " TESTS_EMULATOR " '%s' --cpu", cpu, self);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(line, size, pipe));
    assert_int_equal(pclose(pipe), 0);
}

static int say_cpu(void) {
    struct terse_error error = {0};
    enum terse_status status = cpu_check(&error);
    printf("%s %s %s %s\n", terse_cpu_name(), cpu_isa_name(cpu_isa()), terse_status_name(status), error.message);
    return 0;
}

static void test_the_environment_lowers_the_tier(void **state) {
    (void)state;
    char line[1024], want[64];
    const struct tier *k, *best = NULL;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        say_with(k->name, line, sizeof line);
        snprintf(want, sizeof want, "%s %s TERSE_OK", k->name, k->name);
        if (strncmp(line, want, strlen(want)) != 0) fail_msg("TERSE_CPU=%s: %s", k->name, line);
        best = k;
    }
    say_with("", line, sizeof line);
    snprintf(want, sizeof want, "%s %s TERSE_OK", best->name, best->name);
    assert_true(strncmp(line, want, strlen(want)) == 0);
}

static void test_an_unknown_tier_is_refused_by_name(void **state) {
    (void)state;
    const char *const wrong[] = {"avx-512", "AVX2", "scalar ", "sse2\n\033[31m", cpu_has(CPU_NEON) ? "avx2" : "neon"};
    char line[1024];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        say_with(wrong[i], line, sizeof line);
        if (!strstr(line, " TERSE_E_ARGUMENT TERSE_CPU=\"") || !strstr(line, "use one of scalar"))
            fail_msg("%s: %s", wrong[i], line);
        assert_null(strchr(line, '\033'));
    }
}

static void test_every_tier_sets_every_function(void **state) {
    (void)state;
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++) {
        assert_true(k->vector->half_to_float && k->vector->float_to_half && k->vector->dot && k->vector->axpy &&
                    k->vector->rotate && k->vector->multiply_i16 && k->vector->columns_to_float && k->vector->score_positions &&
                    k->vector->score_position_slots && k->vector->rms_norm && k->vector->silu_mul && k->vector->exp_sum &&
                    k->vector->exp_pages && k->vector->max_pages && k->vector->max && k->vector->look_up_gains &&
                    k->vector->scale_weights);
        assert_true(k->commvq->add_bytes && k->select->add_anchors && k->scaled->score_f16 && k->scaled->accumulate_f16 &&
                    k->scaled->score_q8_0 && k->scaled->accumulate_q8_0 && k->scaled->score_q4_0 && k->scaled->accumulate_q4_0 &&
                    k->scaled->prepare_q8_0 && k->scaled->prepare_q4_0 && k->scaled->score_kivi_4 && k->scaled->accumulate_kivi_4 &&
                    k->scaled->score_kivi_2 && k->scaled->accumulate_kivi_2 && k->scaled->accumulate_int8_q4_0 &&
                    k->scaled->accumulate_int8_kivi_4 && k->scaled->accumulate_int8_kivi_2 && k->pq->accumulate_int8);
        const struct pq_ops *pq = k->pq;
        assert_true(pq->decode_channels && pq->decode_rows && pq->score && pq->accumulate && pq->prepare && pq->look_up &&
                    pq->accumulate_by_code && pq->finish_code_sums && pq->score_rotated_channels && pq->nearest);
        assert_true(!(pq->has_register_lut || pq->reads_rows_i16) || (pq->quantize_query && pq->score_i16));
        assert_true(!pq->has_register_lut || k->commvq->score_rotated);
        const struct commvq_ops *commvq = k->commvq;
        assert_true(commvq->multiply_panel && commvq->nearest && commvq->within && commvq->local_search && commvq->decode &&
                    commvq->prepare && commvq->look_up && commvq->accumulate_by_code);
        const struct select_ops *select = k->select;
        assert_true(select->scores_sign && select->scores_quest && select->count_scores && select->list_scores &&
                    select->gather_codes && k->scaled->prepare_sign && k->scaled->score_sign);
        assert_true(k->transform->gains && k->transform->score && k->transform->quantize_weights && k->transform->weigh &&
                    k->transform->accumulate);
        for (uint32_t type = 0; type < TENSOR_TYPES; type++) {
            assert_true((tensor_type_info(type) != NULL) == (k->weights->dequantize[type] != NULL));
            assert_true((tensor_type_info(type) != NULL) == (k->weights->matmul[type] != NULL));
            assert_true((tensor_type_info(type) != NULL) == (k->weights->gemm_rows[type] > 1));
        }
    }
    assert_true(cpu_has(CPU_SCALAR));
}

/* ---- Speed --------------------------------------------------------------------------------------------------------------- */

#define BENCH_N 2048

struct bench_call {
    const struct tier *k;
    float x[BENCH_N], y[BENCH_N];
    uint16_t half[BENCH_N];
};

static volatile float sink;

static void bench_to_float(void *u) {
    struct bench_call *c = u;
    c->k->vector->half_to_float(c->half, c->x, BENCH_N);
}

static void bench_to_half(void *u) {
    struct bench_call *c = u;
    c->k->vector->float_to_half(c->x, c->half, BENCH_N);
}

static void bench_dot(void *u) {
    struct bench_call *c = u;
    sink = c->k->vector->dot(c->x, c->y, BENCH_N);
}

static void bench_axpy(void *u) {
    struct bench_call *c = u;
    c->k->vector->axpy(1e-9f, c->x, c->y, BENCH_N);
}

static void bench_rms_norm(void *u) {
    struct bench_call *c = u;
    c->k->vector->rms_norm(c->x, c->y, 1e-5f, c->x, BENCH_N);
}

static void bench_silu_mul(void *u) {
    struct bench_call *c = u;
    for (size_t i = 0; i < BENCH_N; i++) c->x[i] = 1;
    c->k->vector->silu_mul(c->x, c->y, BENCH_N);
}

static void bench_exp_sum(void *u) {
    struct bench_call *c = u;
    sink = c->k->vector->exp_sum(c->x, 1, BENCH_N);
}

static void bench_max(void *u) {
    struct bench_call *c = u;
    sink = c->k->vector->max(c->x, BENCH_N);
}

static int bench(void) {
    static const struct {
        const char *name;
        void (*call)(void *);
    } rows[] = {
        {"half_to_float", bench_to_float}, {"float_to_half", bench_to_half}, {"dot", bench_dot},         {"axpy", bench_axpy},
        {"rms_norm", bench_rms_norm},      {"silu_mul", bench_silu_mul},     {"exp_sum", bench_exp_sum}, {"max", bench_max}};
    static struct bench_call call;
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        printf("%-14s", rows[row].name);
        for (size_t tier = 0; (call.k = tier_at(tier)); tier++) {
            for (size_t i = 0; i < BENCH_N; i++) call.x[i] = call.y[i] = 1 + (float)(i % 64) / 64;
            printf("  %s %.3f ns", call.k->name, time_call(rows[row].call, &call) * 1e9 / BENCH_N);
        }
        printf("  per element of %d\n", BENCH_N);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (bench_wanted(argc, argv)) return bench();
    if (argc > 1 && strcmp(argv[1], "--cpu") == 0) return say_cpu();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotations),
        cmocka_unit_test(test_every_half_becomes_its_float),
        cmocka_unit_test(test_floats_round_to_the_nearest_half),
        cmocka_unit_test(test_halves_at_odd_lengths),
        cmocka_unit_test(test_dot_at_odd_lengths),
        cmocka_unit_test(test_axpy_at_odd_lengths),
        cmocka_unit_test(test_rms_norm_at_odd_lengths),
        cmocka_unit_test(test_max_of_pages),
        cmocka_unit_test(test_gains_of_64_tokens),
        cmocka_unit_test(test_exp_of_pages),
        cmocka_unit_test(test_max_at_odd_lengths),
        cmocka_unit_test(test_exp_over_the_whole_range),
        cmocka_unit_test(test_exp_where_there_is_no_number),
        cmocka_unit_test(test_exp_sum_at_odd_lengths),
        cmocka_unit_test(test_silu_mul_at_odd_lengths),
        cmocka_unit_test(test_silu_mul_over_the_whole_range),
        cmocka_unit_test(test_the_environment_lowers_the_tier),
        cmocka_unit_test(test_an_unknown_tier_is_refused_by_name),
        cmocka_unit_test(test_every_tier_sets_every_function),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
