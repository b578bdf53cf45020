/* The format of the codec transform: levels, layouts, the sharing of bits, parameters that are refused. */
#include "format/codec.h"
#include "format/transform.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HD 64
#define QUADS (HD / TRANSFORM_QUAD)
#define SHARES 12

static uint64_t random_state = 3;

static double random_unit(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(random_state >> 11) + 0.5) * 0x1p-53;
}

/* Sizes that fall, some heads with few or none that count. */
static void make_shares(struct transform_share *shares, float sizes[][HD], uint8_t bits[][QUADS]) {
    for (size_t s = 0; s < SHARES; s++) {
        double size = exp(2 * random_unit()), fall = 0.8 + 0.2 * random_unit();
        for (size_t c = 0; c < HD; c++, size *= fall) sizes[s][c] = s == 3 || (s == 4 && c > 10) ? 0 : (float)size;
        shares[s] = (struct transform_share){(float)(8 * random_unit() - 4), sizes[s], bits[s]};
    }
}

/* ---- Levels */

/* Mean squared error of a Gaussian when each number becomes the nearest of levels[n], by quadrature. */
static double distortion(const double *levels, size_t n) {
    double sum = 0, step = 1e-4;
    for (double x = -8; x < 8; x += step) {
        double least = INFINITY;
        for (size_t i = 0; i < n; i++) least = fmin(least, (x - levels[i]) * (x - levels[i]));
        sum += least * exp(-x * x / 2) * step;
    }
    return sum / sqrt(2 * M_PI);
}

static void levels_have_the_distortion_that_is_claimed(void **state) {
    (void)state;
    for (int b = 1; b <= TRANSFORM_BITS_MAX; b++) {
        uint8_t quad_bits[HD / TRANSFORM_QUAD] = {(uint8_t)b};
        struct transform_layout layout;
        double levels[256] = {0};
        size_t n = 1;
        transform_layout_set(quad_bits, HD, &layout);
        for (size_t p = layout.planes; p-- > 0;) { /* the lower plane varies fastest */
            const struct transform_plane *plane = &layout.plane[p];
            double sums[256];
            for (size_t code = 0; code < (size_t)1 << plane->bits; code++)
                for (size_t i = 0; i < n; i++)
                    sums[code * n + i] = levels[i] + (double)plane->scale * transform_levels[plane->table][code];
            n <<= plane->bits;
            memcpy(levels, sums, n * sizeof *levels);
        }
        assert_int_equal(n, (size_t)1 << b);
        for (size_t i = 1; i < n; i++) assert_true(levels[i] > levels[i - 1]);
        double own = distortion(levels, n), claimed = (double)transform_distortion[b];
        assert_true(fabs(own - claimed) < 0.01 * claimed);
    }
}

/* ---- Layouts */

static void layouts_say_what_pages_take(void **state) {
    (void)state;
    static const uint8_t quad_bits[QUADS] = {8, 7, 5, 4, 4, 3, 2, 2, 1};
    struct transform_layout layout;
    transform_layout_set(quad_bits, HD, &layout);
    assert_int_equal(layout.quads, 9);
    assert_int_equal(layout.planes, 12);
    assert_int_equal(layout.bits, 4 * (8 + 7 + 5 + 4 + 4 + 3 + 2 + 2 + 1));
    size_t upper = 0, sum = 0;
    int seen[QUADS] = {0};
    for (size_t p = 0; p < layout.planes; p++) {
        const struct transform_plane *plane = &layout.plane[p];
        assert_in_range(plane->bits, 1, TRANSFORM_PLANE_BITS);
        assert_true(plane->scale > 0);
        upper += plane->upper;
        sum += plane->bits;
        seen[plane->quad] += plane->bits;
    }
    assert_int_equal(upper, 3);
    assert_int_equal(sum * TRANSFORM_QUAD, layout.bits);
    for (size_t quad = 0; quad < QUADS; quad++) assert_int_equal(seen[quad], quad_bits[quad]);
    struct codec_shape shape = {.head_dim = HD, .group = 1, .layout = &layout};
    assert_int_equal(codec_page_bytes(&codec_transform, shape, CODEC_KEYS), (64 + 8 * layout.bits + 63) / 64 * 64);
    uint8_t none[QUADS] = {0};
    for (unsigned bits = 0; bits <= layout.bits + 8u; bits += 4) {
        struct transform_layout first;
        transform_layout_first(&layout, bits, &first);
        assert_true(first.bits >= bits || first.planes == layout.planes);
        assert_true(!first.planes || first.bits - 4u * first.plane[first.planes - 1].bits < bits);
        for (size_t p = 0; p < first.planes; p++) {
            assert_memory_equal(&first.plane[p], &layout.plane[p], sizeof first.plane[p]);
            assert_true(first.plane[p].quad < first.quads);
        }
        assert_true(first.quads <= layout.quads);
    }
    transform_layout_set(none, HD, &layout);
    assert_int_equal(layout.planes + layout.quads + layout.bits, 0);
    assert_int_equal(codec_page_bytes(&codec_transform, shape, CODEC_VALUES), 64);
}

/* ---- Sharing */

static double cost(const struct transform_share *share, size_t quad, int bits) {
    double power = 0;
    for (size_t i = 0; i < TRANSFORM_QUAD; i++) power += pow((double)share->size[quad * TRANSFORM_QUAD + i], 2);
    return exp2((double)share->importance) * power * (double)transform_distortion[bits];
}

/* No bit would save more elsewhere than where it is. */
static void check_best(const struct transform_share *shares) {
    double saved = INFINITY, wanted = 0;
    for (size_t s = 0; s < SHARES; s++) {
        for (size_t quad = 0; quad < QUADS; quad++) {
            int b = shares[s].quad_bits[quad];
            if (b) saved = fmin(saved, cost(&shares[s], quad, b - 1) - cost(&shares[s], quad, b));
            if (b < TRANSFORM_BITS_MAX) wanted = fmax(wanted, cost(&shares[s], quad, b) - cost(&shares[s], quad, b + 1));
            if (quad) assert_true(shares[s].quad_bits[quad] <= shares[s].quad_bits[quad - 1]);
        }
    }
    assert_true(wanted <= saved * (1 + 1e-12));
}

static double total_cost(const struct transform_share *shares) {
    double sum = 0;
    for (size_t s = 0; s < SHARES; s++)
        for (size_t quad = 0; quad < QUADS; quad++) sum += cost(&shares[s], quad, shares[s].quad_bits[quad]);
    return sum;
}

static void sharing_spends_the_budget_where_it_saves_most(void **state) {
    (void)state;
    static const double rates[] = {0.25, 0.5, 1, 1.7, 2, 3, 4};
    for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
        float sizes[SHARES][HD];
        uint8_t bits[SHARES][QUADS];
        struct transform_share shares[SHARES];
        make_shares(shares, sizes, bits);
        transform_share_bits(shares, SHARES, HD, rates[r]);
        size_t sum = 0;
        for (size_t i = 0; i < SHARES * QUADS; i++) sum += bits[i / QUADS][i % QUADS];
        assert_int_equal(sum, (size_t)(rates[r] * SHARES * QUADS + 1e-6));
        for (size_t quad = 0; quad < QUADS; quad++) assert_int_equal(bits[3][quad], 0); /* nothing to store */
        check_best(shares);
        double before = total_cost(shares);
        transform_pair_bits(shares, SHARES, HD);
        size_t after = 0, odd = 0;
        for (size_t s = 0; s < SHARES; s++) {
            size_t own = 0;
            for (size_t quad = 0; quad < QUADS; quad++) own += bits[s][quad];
            for (size_t quad = 1; quad < QUADS; quad++) assert_true(bits[s][quad] <= bits[s][quad - 1]);
            after += own;
            odd += own % 2;
        }
        assert_int_equal(after, sum);
        assert_in_range(odd, 0, 1);
        assert_true(total_cost(shares) < 1.1 * before);
    }
}

static void equal_components_share_to_the_last_bit(void **state) {
    (void)state;
    float sizes[SHARES][HD];
    uint8_t bits[SHARES][QUADS];
    struct transform_share shares[SHARES];
    for (size_t s = 0; s < SHARES; s++) {
        for (size_t c = 0; c < HD; c++) sizes[s][c] = 1;
        shares[s] = (struct transform_share){0, sizes[s], bits[s]};
    }
    transform_share_bits(shares, SHARES, HD, 2.5);
    size_t sum = 0;
    for (size_t i = 0; i < SHARES * QUADS; i++) {
        assert_in_range(bits[i / QUADS][i % QUADS], 2, 3);
        sum += bits[i / QUADS][i % QUADS];
    }
    assert_int_equal(sum, SHARES * QUADS * 5 / 2);
    check_best(shares);
    transform_share_bits(shares, SHARES, HD, 100); /* more than there is to take */
    for (size_t i = 0; i < SHARES * QUADS; i++) assert_int_equal(bits[i / QUADS][i % QUADS], TRANSFORM_BITS_MAX);
}

/* ---- Parameters */

static void parameters_are_checked(void **state) {
    (void)state;
    size_t n = transform_parameter_floats(HD);
    float *floats = calloc(n, sizeof *floats);
    struct terse_error error;
    assert_non_null(floats);
    for (size_t c = 0; c < HD; c++) {
        floats[HD + c] = (float)(HD - c);
        floats[2 * HD + c * HD + c] = 1;
    }
    floats[n - 3] = 0.5f, floats[n - 2] = 2, floats[n - 1] = -3;
    assert_int_equal(transform_check_parameters(floats, HD, &error), TERSE_OK);
    struct transform_parameters own = transform_parameters_at(floats, HD);
    assert_true(own.size[1] == HD - 1 && own.basis[HD + 1] == 1 && own.gain_least == 0.5f && own.gain_most == 2);
    assert_true(own.importance == -3);
    const size_t places[] = {0, HD + 5, n - 3, n - 2};
    const float bad[] = {NAN, 1000, 3, -1};
    for (size_t i = 0; i < 4; i++) {
        float kept = floats[places[i]];
        floats[places[i]] = bad[i];
        assert_int_equal(transform_check_parameters(floats, HD, &error), TERSE_E_FORMAT);
        assert_non_null(strstr(error.message, "terse calibrate"));
        floats[places[i]] = kept;
    }
    free(floats);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_have_the_distortion_that_is_claimed),
        cmocka_unit_test(layouts_say_what_pages_take),
        cmocka_unit_test(sharing_spends_the_budget_where_it_saves_most),
        cmocka_unit_test(equal_components_share_to_the_last_bit),
        cmocka_unit_test(parameters_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
