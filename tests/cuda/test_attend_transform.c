/* A decoding step's attention over pages of codec transform on the GPU against the same in double precision over what the CPU's codec decodes:
 * rates, head sizes and groups; rows of several sequences of different lengths in one launch, read in one part and in many; runs of keys,
 * rotated by rope in both pairings, wholly and in part; exact rows, windows that wrap, pages of which a part is evicted or was never filled;
 * ALiBi; parameters of the profile and those fitted to a sequence; CTAs that read one part each, and several; few CTAs and many. What must not be read is
 * NaN. */
#include "no_device.h"
#include "transform_sample.h"

/* The bound of the relative error of a head's result as a whole: the length of the difference over the length of the result. Queries rotated to a
 * run and the basis are rounded to halves, each by at most 2^-12 of itself, weights of rows of halves likewise; work on codes is exact or within
 * 2^-15. */
#define BOUND 1e-3

/* A sequence without pages; one with a page, read in several parts; one with many, read in more parts than there are CTAs' worth of pages;
 * one whose KV heads have lists of their own; and one whose query comes before the end of its last page. */
static const struct sequence SOME[SEQUENCES] = {
    {.exact = 4, .evicted = 0, .pages = 0, .window = 37, .origin = 0, .splits = 1},
    {.exact = 0, .evicted = 0, .pages = 1, .begin = 0, .end = 64, .window = 1, .origin = 100, .splits = 5},
    {.exact = 20, .evicted = 77, .pages = 27, .begin = 23, .end = 51, .window = 90, .origin = 70, .splits = 7},
    {.exact = 4, .evicted = 9, .pages = 14, .begin = 5, .end = 60, .window = 20, .origin = 3, .splits = 2, .by_head = true},
    {.exact = 4, .evicted = 0, .pages = 3, .begin = 0, .end = 64, .window = 20, .origin = 0, .splits = 1, .behind = 40},
};

static struct setup setup_of(double rate, uint32_t hd, uint32_t group) {
    struct setup setup = {.rate = {rate, rate}, .head_dim = hd, .group = group, .n_rot = hd};
    memcpy(setup.sequences, SOME, sizeof SOME);
    return setup;
}

static const uint32_t head_dims[] = {64, 96, 128, 256};

static void report(const struct setup *setup, double *worst) {
    double error = check_transform(setup);
    if (!(error <= BOUND))
        print_message("rates %g and %g, head_dim %u, group %u, n_rot %u: %g\n", setup->rate[0], setup->rate[1], setup->head_dim,
                      setup->group, setup->n_rot, error);
    if (!(error <= *worst)) *worst = error;
}

static void finish(const char *what, double worst) {
    print_message("%s: %.2g\n", what, worst);
    assert_true(worst <= BOUND);
}

static void rates(void **unused) {
    static const double rates[] = {0.5, 1, 1.5, 2, 3, 4, 6, 8};
    double worst = 0;
    (void)unused;
    for (size_t r = 0; r < 8; r++) {
        for (size_t d = 0; d < 4; d++) {
            struct setup setup = setup_of(rates[r], head_dims[d], 4);
            setup.rate[1] = rates[(r + d) % 8];
            setup.in_place = d % 2;
            report(&setup, &worst);
        }
    }
    finish("rates", worst);
}

static void groups(void **unused) {
    static const uint32_t groups[] = {1, 2, 3, 5, 7, 8, 12, 16};
    double worst = 0;
    (void)unused;
    for (size_t g = 0; g < 8; g++) {
        struct setup setup = setup_of(2, head_dims[g % 4], groups[g]);
        setup.in_place = g % 2;
        report(&setup, &worst);
        setup = setup_of(3, g % 2 ? 128 : 256, groups[g]);
        setup.slopes = true;
        report(&setup, &worst);
    }
    finish("groups", worst);
}

static void ropes(void **unused) {
    double worst = 0;
    (void)unused;
    for (uint32_t n_rot = 0; n_rot <= 128; n_rot += 32) {
        for (int adjacent = 0; adjacent < 2; adjacent++) {
            struct setup setup = setup_of(2, 128, 4);
            setup.n_rot = n_rot, setup.pairing = adjacent ? ROPE_ADJACENT : ROPE_HALF_SPLIT;
            report(&setup, &worst);
        }
    }
    finish("ropes", worst);
}

static void fitted(void **unused) {
    double worst = 0;
    (void)unused;
    for (size_t d = 0; d < 4; d++) {
        struct setup setup = setup_of(2, head_dims[d], 4);
        setup.fitted = true;
        report(&setup, &worst);
    }
    finish("fitted", worst);
}

/* From one part to more than there are pages. */
static void parts(void **unused) {
    double worst = 0;
    (void)unused;
    for (uint32_t n = 1; n <= 70; n += n < 4 ? 1 : 22) {
        struct setup setup = setup_of(1, 128, 4);
        for (uint32_t i = 0; i < SEQUENCES; i++) setup.sequences[i].splits = 1 + (n - 1) * (i + 1) / SEQUENCES;
        report(&setup, &worst);
    }
    /* Sums take more than a slot, in a ring of one page, and some of the record that the warp's next part reads, too. */
    struct setup setup = setup_of(1.75, 256, 8);
    setup.rate[1] = 3.5, setup.sequences[2].splits = setup.sequences[2].pages;
    report(&setup, &worst);
    finish("parts", worst);
}

/* More than 32 for a warp, in one part and in several: what lanes hold of pages is loaded again. */
static void many_pages(void **unused) {
    double worst = 0;
    (void)unused;
    for (int rate = 2; rate <= 8; rate += 6) { /* rings of two pages, and of one */
        struct setup setup = setup_of(rate, 64, 2);
        for (uint32_t splits = 1; splits <= 5; splits += 4) {
            setup.sequences[2].pages = 300, setup.sequences[2].splits = splits;
            report(&setup, &worst);
        }
    }
    finish("many pages", worst);
}

/* Launches of so few CTAs that each has a multiprocessor to itself, where warps go through a page before its queries are there. On a GPU most
 * other launches of these tests are such; the emulated one has more multiprocessors for this test. */
static void ctas_alone(void **unused) {
    static const uint32_t groups[] = {4, 7};
    double worst = 0;
    (void)unused;
    setenv("EMULATED_MULTIPROCESSORS", "1024", 1);
    for (size_t d = 0; d < 4; d++) {
        struct setup setup = setup_of(4, head_dims[d], groups[d % 2]);
        setup.sequences[2].pages = 60, setup.sequences[2].splits = 1; /* a ring's places are filled anew */
        report(&setup, &worst);
        setup = setup_of(2, head_dims[d], groups[1 - d % 2]);
        setup.fitted = true, setup.in_place = true;
        report(&setup, &worst);
    }
    unsetenv("EMULATED_MULTIPROCESSORS");
    finish("CTAs alone", worst);
}

int main(void) {
    if (no_device()) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates), cmocka_unit_test(groups),     cmocka_unit_test(ropes),      cmocka_unit_test(fitted),
        cmocka_unit_test(parts), cmocka_unit_test(many_pages), cmocka_unit_test(ctas_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
