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
        shares[s] = (struct transform_share){.importance = (float)(8 * random_unit() - 4), .size = sizes[s], .quad_bits = bits[s]};
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

/* Returns the levels of a component of b bits, by its code, in the order of the planes' bits. */
static size_t make_levels(const struct transform_layout *layout, unsigned b, double *levels) {
    size_t n = 1;
    levels[0] = 0;
    for (size_t p = layout->planes; p-- > 0;) { /* the lower plane varies fastest */
        const struct transform_plane *plane = &layout->plane[p];
        const size_t codes = transform_most(plane->bits) + 1;
        double sums[256];
        for (size_t code = 0; code < codes; code++)
            for (size_t i = 0; i < n; i++)
                sums[code * n + i] = levels[i] + (double)plane->scale * (2 * (double)code - (double)codes + 1);
        n *= codes;
        memcpy(levels, sums, n * sizeof *levels);
    }
    assert_int_equal(n, (size_t)1 << b);
    return n;
}

/* Tests that levels are equally spaced over both planes, and err as is claimed for those that reach no further than is best. */
static void levels_have_the_distortion_that_is_claimed(void **state) {
    (void)state;
    for (unsigned b = 1; b <= TRANSFORM_BITS_MAX; b++) {
        uint8_t quad_bits[HD / TRANSFORM_QUAD] = {(uint8_t)b};
        struct transform_layout layout;
        double levels[256] = {0};
        if (b == 7) continue;
        transform_layout_set(quad_bits, HD, &layout);
        const size_t n = make_levels(&layout, b, levels);
        const double step = levels[1] - levels[0];
        assert_true(step > 0);
        for (size_t i = 1; i < n; i++) assert_true(fabs(levels[i] - levels[i - 1] - step) < 1e-5 * step);
        for (size_t i = 0; i < n; i++) levels[i] /= (double)transform_reach[b];
        const double own = distortion(levels, n), claimed = (double)transform_distortion[b];
        assert_true(fabs(own - claimed) < 0.01 * claimed);
    }
}

/* ---- Layouts */

/* Tests that planes fall in rank, that each quad's bits are there, and that no two planes share a bit of a nibble. */
static void check_layout(const struct transform_layout *layout, const uint8_t *quad_bits) {
    unsigned used[TRANSFORM_PLANES_MAX] = {0}, seen[QUADS] = {0}, bits = 0;
    for (size_t p = 0; p < layout->planes; p++) {
        const struct transform_plane *plane = &layout->plane[p];
        const unsigned mask = transform_most(plane->bits) << plane->shift;
        assert_in_range(plane->bits, 1, TRANSFORM_NIBBLE_BITS);
        assert_true(plane->scale > 0 && plane->quad < layout->quads && plane->nibble < layout->nibbles);
        assert_true(mask < 16 && !(used[plane->nibble] & mask));
        used[plane->nibble] |= mask;
        seen[plane->quad] += plane->bits;
    }
    for (size_t quad = 0; quad < QUADS; quad++) assert_int_equal(seen[quad], quad_bits[quad]);
    for (size_t quad = 0; quad < QUADS; quad++) bits += quad_bits[quad];
    assert_int_equal(layout->nibbles, (bits + 3) / 4);
    for (size_t n = 0; n < bits / 4; n++) assert_int_equal(used[n], 15);
}

/* Tests layouts of random bits, with few and many quads of 3 bits that need a plane of 1 beside them. */
static void layouts_fill_nibbles(void **state) {
    (void)state;
    static const uint8_t of[8] = {8, 6, 5, 4, 3, 2, 1, 0};
    for (int round = 0; round < 2000; round++) {
        uint8_t quad_bits[QUADS];
        struct transform_layout layout;
        size_t number[8] = {0}, quad = 0, most = 1 + (size_t)(8 * random_unit());
        for (size_t q = 0; q < QUADS; q++) number[(size_t)((double)most * random_unit()) + (8 - most) / (1 + (size_t)round % 2)]++;
        for (size_t n = 0; n < 8; n++)
            for (size_t k = 0; k < number[n]; k++) quad_bits[quad++] = of[n];
        transform_layout_set(quad_bits, HD, &layout);
        check_layout(&layout, quad_bits);
    }
}

static void layouts_say_what_pages_take(void **state) {
    (void)state;
    static const uint8_t quad_bits[QUADS] = {8, 6, 5, 4, 4, 3, 3, 3, 3, 2, 2, 1};
    /* Of four quads of 3 bits and two planes of 1 (of 5 bits and of 1), one is split. */
    static const struct transform_plane expected[] = {{0, 0, 0, 4, 0},   {1, 1, 0, 4, 0}, {2, 2, 0, 4, 0}, {0, 3, 0, 4, 0},
                                                      {3, 4, 0, 4, 0},   {4, 5, 0, 4, 0}, {5, 6, 1, 3, 0}, {6, 7, 1, 3, 0},
                                                      {7, 8, 1, 3, 0},   {8, 9, 2, 2, 0}, {1, 9, 0, 2, 0}, {9, 10, 2, 2, 0},
                                                      {10, 10, 0, 2, 0}, {2, 6, 0, 1, 0}, {8, 7, 0, 1, 0}, {11, 8, 0, 1, 0}};
    struct transform_layout layout;
    transform_layout_set(quad_bits, HD, &layout);
    assert_int_equal(layout.quads, 12);
    assert_int_equal(layout.planes, sizeof expected / sizeof expected[0]);
    check_layout(&layout, quad_bits);
    for (size_t p = 0; p < layout.planes; p++) {
        const struct transform_plane *plane = &layout.plane[p];
        assert_int_equal(plane->quad, expected[p].quad);
        assert_int_equal(plane->nibble, expected[p].nibble);
        assert_int_equal(plane->shift, expected[p].shift);
        assert_int_equal(plane->bits, expected[p].bits);
    }
    struct codec_shape shape = {.head_dim = HD, .group = 1, .layout = &layout};
    assert_int_equal(codec_page_bytes(&codec_transform, shape, CODEC_KEYS), 64 + 128 * layout.nibbles);
    uint8_t none[QUADS] = {0};
    for (unsigned bits = 0; bits <= 16u * layout.nibbles + 8; bits += 4) {
        struct transform_layout first;
        unsigned sum = 0, last = 0;
        transform_layout_first(&layout, bits, &first);
        for (size_t p = 0; p < first.planes; p++) {
            assert_memory_equal(&first.plane[p], &layout.plane[p], sizeof first.plane[p]);
            assert_true(first.plane[p].quad < first.quads);
            sum += last = 4u * first.plane[p].bits;
        }
        assert_true(sum >= bits || first.planes == layout.planes);
        assert_true(!first.planes || sum - last < bits);
        assert_true(first.quads <= layout.quads && first.nibbles == layout.nibbles);
    }
    transform_layout_set(none, HD, &layout);
    assert_int_equal(layout.planes + layout.quads + layout.nibbles, 0);
    assert_int_equal(codec_page_bytes(&codec_transform, shape, CODEC_VALUES), 64);
}

/* ---- Sharing */

static double cost(const struct transform_share *share, size_t quad, int bits) {
    double power = 0;
    for (size_t i = 0; i < TRANSFORM_QUAD; i++) power += pow((double)share->size[quad * TRANSFORM_QUAD + i], 2);
    return exp2((double)share->importance) * power * (double)transform_distortion[bits];
}

static double total_cost(const struct transform_share *shares) {
    double sum = 0;
    for (size_t s = 0; s < SHARES; s++)
        for (size_t quad = 0; quad < QUADS; quad++) sum += cost(&shares[s], quad, shares[s].quad_bits[quad]);
    return sum;
}

/* Returns the cost that `bits` bits leave if each goes to the quad for which it saves most, whether they fill nibbles or not. */
static double least_cost(const struct transform_share *shares, size_t bits) {
    uint8_t own[SHARES][QUADS] = {{0}};
    double sum = 0;
    for (; bits; bits--) {
        double most = -1;
        uint8_t *best = NULL;
        for (size_t s = 0; s < SHARES; s++) {
            for (size_t quad = 0; quad < QUADS; quad++) {
                if (own[s][quad] == TRANSFORM_BITS_MAX) continue;
                double saved = cost(&shares[s], quad, own[s][quad]) - cost(&shares[s], quad, own[s][quad] + 1);
                if (saved > most) best = &own[s][quad], most = saved;
            }
        }
        ++*best;
    }
    for (size_t s = 0; s < SHARES; s++)
        for (size_t quad = 0; quad < QUADS; quad++) sum += cost(&shares[s], quad, own[s][quad]);
    return sum;
}

static size_t sum_of_bits(const struct transform_share *shares) {
    size_t all = 0;
    for (size_t s = 0; s < SHARES; s++) {
        size_t own = 0;
        for (size_t quad = 0; quad < QUADS; quad++) {
            own += shares[s].quad_bits[quad];
            if (quad) assert_true(shares[s].quad_bits[quad] <= shares[s].quad_bits[quad - 1]);
            assert_int_not_equal(shares[s].quad_bits[quad], 7);
        }
        assert_int_equal(own % 4, 0);
        all += own;
    }
    return all;
}

static void sharing_spends_the_budget_where_it_saves_most(void **state) {
    (void)state;
    static const double rates[] = {0.25, 0.5, 1, 1.7, 2, 3, 4, 6};
    for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
        float sizes[SHARES][HD];
        uint8_t bits[SHARES][QUADS];
        struct transform_share shares[SHARES];
        make_shares(shares, sizes, bits);
        assert_int_equal(transform_share_bits(shares, SHARES, HD, rates[r], NULL), TERSE_OK);
        size_t sum = sum_of_bits(shares);
        assert_int_equal(sum, (size_t)(rates[r] * SHARES * QUADS / 4 + 1e-6) * 4);
        for (size_t quad = 0; quad < QUADS; quad++) assert_int_equal(bits[3][quad], 0); /* nothing to store */
        assert_true(total_cost(shares) < 1.08 * least_cost(shares, sum));               /* nibbles are coarse for so few shares */
    }
}

/* ---- The rule of sharing, plainly */

static int more(int bits) { return bits == 6 ? 8 : bits + 1; }
static int fewer(int bits) { return bits == 8 ? 6 : bits - 1; }

static double saved_by(const struct transform_share *share, size_t quad, int from, int to) {
    return (cost(share, quad, from) - cost(share, quad, to)) / (to - from);
}

/* Adds a nibble to a share, bit by bit where each saves most; returns what it saves, 0 and no bits where it does not fit. */
static double add_plainly(const struct transform_share *share) {
    uint8_t before[QUADS];
    double sum = 0;
    int left = 4;
    memcpy(before, share->quad_bits, sizeof before);
    while (left) {
        double most = 0;
        size_t best = QUADS;
        for (size_t quad = 0; quad < QUADS; quad++) {
            const int own = share->quad_bits[quad], next = own == 8 ? 0 : more(own);
            const double saved = next && next - own <= left ? saved_by(share, quad, own, next) : 0;
            if (saved > most) most = saved, best = quad;
        }
        if (best == QUADS) break;
        const int next = more(share->quad_bits[best]), bits = next - share->quad_bits[best];
        share->quad_bits[best] = (uint8_t)next, left -= bits, sum += bits * most;
    }
    if (left) memcpy(share->quad_bits, before, sizeof before);
    return left ? 0 : sum;
}

/* Gives all shares what they take at a price of a bit; returns the number of nibbles. */
static size_t take_plainly(const struct transform_share *shares, double price) {
    size_t nibbles = 0;
    for (size_t s = 0; s < SHARES; s++) {
        uint8_t *bits = shares[s].quad_bits, whole[QUADS];
        int sum = 0;
        for (size_t quad = 0; quad < QUADS; sum += bits[quad++])
            for (bits[quad] = 0; bits[quad] < 8 && saved_by(&shares[s], quad, bits[quad], more(bits[quad])) > price;)
                bits[quad] = (uint8_t)more(bits[quad]);
        nibbles += (size_t)sum / 4;
        for (int rest = sum % 4; rest;) {
            double least = INFINITY;
            size_t best = 0;
            for (size_t quad = 0; quad < QUADS; quad++) {
                if (!bits[quad] || bits[quad] - fewer(bits[quad]) > rest) continue;
                const double saved = saved_by(&shares[s], quad, fewer(bits[quad]), bits[quad]);
                if (saved < least) least = saved, best = quad;
            }
            rest -= bits[best] - fewer(bits[best]), bits[best] = (uint8_t)fewer(bits[best]);
        }
        memcpy(whole, bits, sizeof whole);
        if (sum % 4 && add_plainly(&shares[s]) > 4 * price)
            nibbles++;
        else
            memcpy(bits, whole, sizeof whole);
    }
    return nibbles;
}

static void share_plainly(const struct transform_share *shares, size_t budget) {
    double low = 0x1p-60, high = 0x1p60;
    uint8_t before[QUADS];
    for (int i = 0; i < 100; i++) {
        const double price = sqrt(low * high);
        *(take_plainly(shares, price) > budget ? &low : &high) = price;
    }
    for (size_t sum = take_plainly(shares, high); sum < budget; sum++) {
        double most = 0;
        size_t best = 0;
        for (size_t s = 0; s < SHARES; s++) {
            memcpy(before, shares[s].quad_bits, sizeof before);
            const double saved = add_plainly(&shares[s]);
            memcpy(shares[s].quad_bits, before, sizeof before);
            if (saved > most) most = saved, best = s;
        }
        add_plainly(&shares[best]);
    }
}

static void sharing_keeps_to_its_rule(void **state) {
    (void)state;
    static const double rates[] = {0.3, 0.5, 1, 1.7, 2, 2.6, 3, 4, 5, 6, 6.6};
    for (size_t i = 0; i < 10 * sizeof rates / sizeof *rates; i++) {
        const double rate = rates[i / 10];
        float sizes[SHARES][HD];
        uint8_t bits[SHARES][QUADS], plain[SHARES][QUADS];
        struct transform_share shares[SHARES];
        make_shares(shares, sizes, bits);
        assert_int_equal(transform_share_bits(shares, SHARES, HD, rate, NULL), TERSE_OK);
        for (size_t s = 0; s < SHARES; s++) shares[s].quad_bits = plain[s];
        share_plainly(shares, (size_t)(rate * SHARES * QUADS / 4 + 1e-6));
        assert_memory_equal(bits, plain, sizeof bits);
    }
}

static void equal_components_share_to_the_last_bit(void **state) {
    (void)state;
    float sizes[SHARES][HD];
    uint8_t bits[SHARES][QUADS];
    struct transform_share shares[SHARES];
    for (size_t s = 0; s < SHARES; s++) {
        for (size_t c = 0; c < HD; c++) sizes[s][c] = 1;
        shares[s] = (struct transform_share){.size = sizes[s], .quad_bits = bits[s]};
    }
    assert_int_equal(transform_share_bits(shares, SHARES, HD, 2.5, NULL), TERSE_OK);
    for (size_t i = 0; i < SHARES * QUADS; i++) assert_in_range(bits[i / QUADS][i % QUADS], 2, 3);
    assert_int_equal(sum_of_bits(shares), SHARES * QUADS * 5 / 2);
    assert_int_equal(transform_share_bits(shares, SHARES, HD, 100, NULL), TERSE_OK); /* more than there is to take */
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
        floats[HD + c] = (float)c / 2;
        floats[2 * HD + c] = (float)(HD - c);
        floats[3 * HD + c * HD + c] = 1;
    }
    floats[n - 5] = 0.5f, floats[n - 4] = 2, floats[n - 3] = 1.5f, floats[n - 2] = 7, floats[n - 1] = -3;
    assert_int_equal(transform_check_parameters(floats, HD, &error), TERSE_OK);
    struct transform_parameters own = transform_parameters_at(floats, HD);
    assert_true(own.size[1] == HD - 1 && own.basis[HD + 1] == 1 && own.gain_least == 0.5f && own.gain_most == 2);
    assert_true(own.importance == -3 && own.residual == 7 && own.gain == 1.5f && own.pre_rope_mean[3] == 1.5f);
    const size_t places[] = {0, HD + 5, 2 * HD + 5, n - 5, n - 4, n - 3};
    const float bad[] = {NAN, INFINITY, 1000, 3, -1, -1};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        float kept = floats[places[i]];
        floats[places[i]] = bad[i];
        assert_int_equal(transform_check_parameters(floats, HD, &error), TERSE_E_FORMAT);
        assert_non_null(strstr(error.message, "terse calibrate"));
        floats[places[i]] = kept;
    }
    free(floats);
}

/* A record keeps all but a basis' last bits: a component's numbers are multiples of a 32767th of its norm, two channels beside each other, 16
 * components beside these; a component of nothing stays one. */
static void records_round_the_basis_alone(void **state) {
    (void)state;
    size_t n = transform_parameter_floats(HD);
    float *floats = calloc(n, sizeof *floats), *back = calloc(HD * HD, sizeof *back);
    void *record = calloc(1, TRANSFORM_RECORD_BYTES(HD));
    assert_true(floats && back && record);
    for (size_t i = 0; i < n; i++) floats[i] = (float)(random_unit() - 0.5) * (i / HD == 8 ? 1e-6f : 3);
    memset(floats + 3 * HD + 9 * HD, 0, HD * sizeof *floats);
    const struct transform_parameters own = transform_parameters_at(floats, HD);
    transform_record_set(own, HD, record);
    const struct transform_fitted fitted = transform_fitted_at(record, HD);
    assert_memory_equal(fitted.mean, own.mean, HD * sizeof *floats);
    assert_memory_equal(fitted.size, own.size, HD * sizeof *floats);
    assert_memory_equal(fitted.pre_rope_mean, own.pre_rope_mean, HD * sizeof *floats);
    assert_true(fitted.gain_least == own.gain_least && fitted.gain_most == own.gain_most && fitted.gain == own.gain);
    transform_record_basis(&fitted, HD, HD, back);
    for (size_t c = 0; c < HD; c++) {
        double norm = 0;
        for (size_t ch = 0; ch < HD; ch++) norm += pow((double)own.basis[c * HD + ch], 2);
        assert_true(fabs((double)fitted.unit[c] * 32767 - sqrt(norm)) <= 1e-6 * sqrt(norm));
        for (size_t ch = 0; ch < HD; ch++) {
            const int16_t integer = fitted.basis[(c / 16 * HD / 2 + ch / 2) * 32 + c % 16 * 2 + ch % 2];
            assert_true(back[c * HD + ch] == fitted.unit[c] * (float)integer);
            assert_true(fabsf(back[c * HD + ch] - own.basis[c * HD + ch]) <= 0.501f * fitted.unit[c]);
        }
    }
    memset(back, 0, HD * HD * sizeof *back);
    transform_record_basis(&fitted, HD, TRANSFORM_STRIP, back); /* the first components alone */
    assert_true(back[15 * HD] == fitted.unit[15] * (float)fitted.basis[30]);
    for (size_t i = TRANSFORM_STRIP * HD; i < HD * HD; i++) assert_true(back[i] == 0);
    free(floats);
    free(back);
    free(record);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_have_the_distortion_that_is_claimed),
        cmocka_unit_test(layouts_say_what_pages_take),
        cmocka_unit_test(layouts_fill_nibbles),
        cmocka_unit_test(sharing_spends_the_budget_where_it_saves_most),
        cmocka_unit_test(sharing_keeps_to_its_rule),
        cmocka_unit_test(equal_components_share_to_the_last_bit),
        cmocka_unit_test(parameters_are_checked),
        cmocka_unit_test(records_round_the_basis_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
