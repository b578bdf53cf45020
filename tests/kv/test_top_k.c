/* The k largest scores: against a stable sort, and the counting and listing kernels of all tiers between guard pages. */
#include "backend/cpu/kv/top_k.h"

#include "support/kernel_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint16_t *sorted;

/* Best first, of equal scores the newest. */
static int by_score(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sorted[x] != sorted[y]) return sorted[x] > sorted[y] ? -1 : 1;
    return x > y ? -1 : 1;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

enum kind { ANY, NARROW, PASS, SAME, ENDS, KINDS };

static void fill_scores(struct random *random, enum kind kind, uint16_t *scores, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = random_bits(random);
        scores[i] = (uint16_t)(kind == ANY ? bits : kind == NARROW ? 4000 + bits % 500 : kind == PASS ? bits % 3 * 30000 : 777);
        if (kind == ENDS) scores[i] = bits % 5 ? 0 : 65535;
    }
}

static void check_top(struct random *random, enum kind kind, size_t n, size_t k) {
    uint16_t *scores = guard_bytes(n * sizeof *scores, k % 2 ? GUARD_START : GUARD_END);
    size_t want = k < n ? k : n;
    uint32_t *tokens = guard_bytes(want * sizeof *tokens, GUARD_END), *order = malloc((n + 1) * sizeof *order);
    fill_scores(random, kind, scores, n);
    assert_int_equal(top_tokens(scores, n, k, tokens), want);
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    sorted = scores;
    qsort(order, n, sizeof *order, by_score);
    qsort(order, want, sizeof *order, ascending);
    assert_memory_equal(tokens, order, want * sizeof *order);
    free(order);
    guard_release();
}

static void the_best_are_those_of_a_sort(void **state) {
    (void)state;
    struct random random = {1};
    for (int kind = 0; kind < KINDS; kind++) {
        for (size_t i = 0; i < n_odd_lengths; i++) {
            size_t n = odd_lengths[i], ks[] = {0, 1, n / 13, n / 2, n ? n - 1 : 0, n, n + 5};
            for (size_t j = 0; j < sizeof ks / sizeof ks[0]; j++) check_top(&random, (enum kind)kind, n, ks[j]);
        }
        check_top(&random, (enum kind)kind, 40000, 3000);
    }
}

static void check_slots(const struct tier *k, struct random *random, enum kind kind, size_t n, enum guard_side side) {
    uint16_t *scores = guard_bytes(n * sizeof *scores, side);
    fill_scores(random, kind, scores, n);
    uint16_t thresholds[] = {0, 1, 777, 4250, 30000, 32767, 32768, 60000, 65535, n ? scores[n / 2] : 5};
    for (size_t i = 0; i < sizeof thresholds / sizeof thresholds[0]; i++) {
        size_t least = 0, equal = 0;
        for (size_t t = 0; t < n; t++) least += scores[t] >= thresholds[i], equal += scores[t] == thresholds[i];
        assert_int_equal(k->select->count_scores(scores, n, thresholds[i]), least);
        size_t skips[] = {0, 1, equal / 2, equal, equal + 3};
        for (size_t s = 0; s < sizeof skips / sizeof skips[0]; s++) {
            size_t skip = skips[s], left = skip < equal ? equal - skip : 0, want = least - equal + left, at = 0, seen = 0;
            uint32_t *tokens = guard_bytes(want * sizeof *tokens, side);
            assert_int_equal(k->select->list_scores(scores, n, thresholds[i], skip, tokens), want);
            for (uint32_t t = 0; t < n; t++) {
                if (scores[t] < thresholds[i] || (scores[t] == thresholds[i] && seen++ < skip)) continue;
                assert_int_equal(tokens[at], t);
                at++;
            }
            assert_int_equal(at, want);
        }
    }
    guard_release();
}

static void kernels_count_and_list(void **state) {
    (void)state;
    struct random random = {2};
    const struct tier *k;
    for (size_t tier = 0; (k = tier_at(tier)); tier++)
        for (int kind = 0; kind < KINDS; kind++)
            for (size_t i = 0; i < n_odd_lengths; i++)
                check_slots(k, &random, (enum kind)kind, odd_lengths[i], i % 2 ? GUARD_END : GUARD_START);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_are_those_of_a_sort),
        cmocka_unit_test(kernels_count_and_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
