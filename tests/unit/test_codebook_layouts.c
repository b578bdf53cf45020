/* Layouts of a codebook's rows and of a sequence's: bits are shared over the sets that there are, by the codebook's importances and by how much
 * larger the rows are, as transform_share_bits shares them. */
#include "base/random.h"
#include "format/codebook_layouts.h"
#include "support/random_codebook.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 3, HEADS = 2, HEAD_DIM = 32, SETS = LAYERS * HEADS, QUADS = HEAD_DIM / TRANSFORM_QUAD };

static struct method method;
/* Of a sequence, with log2 of how much larger than the codebook's its rows are, and how much smaller, squared, the residual stream. */
static float sizes[2][SETS][HEAD_DIM], grown[2][SETS], smaller[2][SETS];

static int make_codebook(void **state) {
    struct terse_cache_options options = terse_cache_options_defaults();
    uint64_t seed = 9;
    (void)state;
    options.method = "terse-2";
    assert_int_equal(method_resolve(&options, HEAD_DIM, &method, NULL), TERSE_OK);
    assert_int_equal(random_codebook(&method, LAYERS, HEADS, HEAD_DIM, 0, false, NULL), TERSE_OK);
    for (size_t set = 0; set < 2 * SETS; set++) {
        const float fall = 0.75f + 0.25f * (float)random_uniform(random_next(&seed));
        float size = 1 + 3 * (float)random_uniform(random_next(&seed));
        for (size_t c = 0; c < HEAD_DIM; c++, size *= fall) sizes[set / SETS][set % SETS][c] = size;
        smaller[set / SETS][set % SETS] = 3 * (float)random_uniform(random_next(&seed));
        grown[set / SETS][set % SETS] = 4 * (float)random_uniform(random_next(&seed)) - 2;
    }
    return 0;
}

static int free_codebook(void **state) {
    (void)state;
    terse_codebook_free((struct terse_codebook *)method.learned);
    return 0;
}

/* The numbers that a codebook keeps of a set. */
static struct transform_parameters parameters_of(enum codec_side side, size_t set) {
    static float floats[HEAD_DIM * (HEAD_DIM + 3) + 5];
    assert_int_equal(transform_parameter_floats(HEAD_DIM), sizeof floats / sizeof floats[0]);
    codebook_parameters(method.learned, side, set, floats);
    return transform_parameters_at(floats, HEAD_DIM);
}

/* Returns a sequence's rows of a set. */
static struct codebook_rows rows_of(enum codec_side side, size_t set) {
    const struct transform_parameters own = parameters_of(side, set);
    return (struct codebook_rows){sizes[side][set], own.gain * exp2f(grown[side][set]), own.residual - smaller[side][set]};
}

/* Returns log2 of how much larger the values of a set's layer are together, of heads that are there. */
static float grown_together(size_t set, unsigned there) {
    double before = 0, after = 0;
    for (size_t own = set / HEADS * HEADS; own < set / HEADS * HEADS + HEADS; own++) {
        const double part = exp2((double)parameters_of(CODEC_VALUES, own).importance);
        before += part;
        after += part * exp2(there >> own & 1 ? 2 * (double)grown[CODEC_VALUES][own] : 0);
    }
    return (float)log2(after / before);
}

/* Adds to shares[n] the sets of a side whose bit in `there` is set. `values`: the sequence has rows of values. */
static size_t add_shares(enum codec_side side, unsigned there, bool values, bool normalized, uint8_t bits[SETS][QUADS],
                         struct transform_share *shares, size_t n) {
    memset(bits, 0, sizeof(uint8_t[SETS][QUADS]));
    for (size_t set = 0; set < SETS; set++) {
        float importance = parameters_of(side, set).importance;
        if (!(there >> set & 1)) continue;
        importance += smaller[side][set];
        if (values) importance += 2 * grown[CODEC_VALUES][set];
        if (values && normalized) importance -= grown_together(set, there);
        if (side == CODEC_KEYS) importance += 2 * grown[CODEC_KEYS][set];
        shares[n++] = (struct transform_share){.importance = importance, .size = sizes[side][set], .quad_bits = bits[set]};
    }
    return n;
}

static void check_side(const struct codebook_layouts *layouts, enum codec_side side, unsigned there, uint8_t bits[SETS][QUADS]) {
    for (size_t set = 0; set < SETS; set++) {
        struct transform_layout wanted = {0};
        if (there >> set & 1) transform_layout_set(bits[set], HEAD_DIM, &wanted);
        assert_memory_equal(&layouts->layout[side][set], &wanted, sizeof wanted);
    }
}

static void check_shared(bool normalized) {
    static const double rates[][2] = {{2, 2}, {3.5, 3.5}, {2, 4}, {0, 2}, {1.5, 0}};
    static const unsigned theres[] = {0x3f, 0x0c, 0x35}; /* all; those of one layer; some */
    for (size_t r = 0; r < sizeof rates / sizeof rates[0]; r++) {
        for (size_t i = 0; i < sizeof theres / sizeof theres[0]; i++) {
            struct codebook_rows own[2][SETS] = {0};
            const double *rate = rates[r];
            uint8_t bits[2][SETS][QUADS];
            struct transform_share shares[2 * SETS];
            struct codebook_layouts *layouts;
            for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++)
                for (size_t set = 0; set < SETS && rate[side] > 0; set++)
                    if (theres[i] >> set & 1) own[side][set] = rows_of(side, set);
            const size_t n = rate[0] > 0 ? add_shares(CODEC_KEYS, theres[i], rate[1] > 0, normalized, bits[0], shares, 0) : 0,
                         all = rate[1] > 0 ? add_shares(CODEC_VALUES, theres[i], true, normalized, bits[1], shares, n) : n;
            if (rate[0] == rate[1])
                assert_int_equal(transform_share_bits(shares, all, HEAD_DIM, rate[0], NULL), TERSE_OK);
            else {
                if (n) assert_int_equal(transform_share_bits(shares, n, HEAD_DIM, rate[0], NULL), TERSE_OK);
                if (all > n) assert_int_equal(transform_share_bits(shares + n, all - n, HEAD_DIM, rate[1], NULL), TERSE_OK);
            }
            assert_int_equal(codebook_layouts_of_rows(method.learned, rate, (const struct codebook_rows *[2]){own[0], own[1]},
                                                      normalized, &layouts, NULL),
                             TERSE_OK);
            assert_int_equal(codebook_layouts_bytes(layouts),
                             sizeof *layouts + ((rate[0] > 0) + (rate[1] > 0)) * SETS * sizeof(struct transform_layout));
            for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
                assert_true(layouts->rate[side] == rate[side]);
                if (rate[side] > 0)
                    check_side(layouts, side, theres[i], bits[side]);
                else
                    assert_null(layouts->layout[side]);
            }
            codebook_layouts_free(layouts);
        }
    }
    codebook_layouts_free(NULL);
}

static void bits_are_shared_by_the_rows_of_a_sequence(void **state) {
    (void)state;
    check_shared(false);
    check_shared(true);
}

/* And a codebook's layouts are those of its rows, where keys and values do not share their bits; a sequence's differ. */
static void a_codebook_has_the_layouts_of_its_rows(void **state) {
    static const double rate[2] = {2, 3};
    static float kept[2][SETS][HEAD_DIM];
    struct codebook_rows own[2][SETS], others[2][SETS];
    const struct codebook_layouts *of_codebook;
    struct codebook_layouts *of_own, *of_others;
    (void)state;
    for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
        for (size_t set = 0; set < SETS; set++) {
            const struct transform_parameters parameters = parameters_of(side, set);
            memcpy(kept[side][set], parameters.size, sizeof kept[0][0]);
            own[side][set] = (struct codebook_rows){kept[side][set], parameters.gain, 0};
            others[side][set] = rows_of(side, set);
        }
    }
    assert_int_equal(codebook_layouts(method.learned, rate, &of_codebook, NULL), TERSE_OK);
    assert_int_equal(
        codebook_layouts_of_rows(method.learned, rate, (const struct codebook_rows *[2]){own[0], own[1]}, false, &of_own, NULL),
        TERSE_OK);
    assert_int_equal(codebook_layouts_of_rows(method.learned, rate, (const struct codebook_rows *[2]){others[0], others[1]}, false,
                                              &of_others, NULL),
                     TERSE_OK);
    for (size_t side = 0; side < 2; side++) {
        const size_t bytes = SETS * sizeof(struct transform_layout);
        assert_memory_equal(of_codebook->layout[side], of_own->layout[side], bytes);
        assert_memory_not_equal(of_codebook->layout[side], of_others->layout[side], bytes);
    }
    codebook_layouts_free(of_own);
    codebook_layouts_free(of_others);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_shared_by_the_rows_of_a_sequence),
        cmocka_unit_test(a_codebook_has_the_layouts_of_its_rows),
    };
    return cmocka_run_group_tests(tests, make_codebook, free_codebook);
}
