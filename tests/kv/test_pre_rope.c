/* Keys' mean before rotation, held to its definition in double precision: found and taken from rows, and added to logits, ranks and single slots,
 * for both pairings of channels, heads that turn in part, and pages that begin anywhere in a run. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/position_scores.h"
#include "base/random.h"
#include "format/shape.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_HD = 128, ROWS = 20, N = 64 * 8 };

static float frequency[MOST_HD / 2];

struct head {
    struct rope rope;
    size_t turning; /* pairs that turn by half a radian or more in 256 tokens */
};

static struct head head_of(enum rope_pairing pairing, uint32_t head_dim, uint32_t n_rot, double base) {
    struct head head = {{pairing, head_dim, n_rot, frequency, 1}, 0};
    for (size_t i = 0; i < n_rot / 2; i++) {
        frequency[i] = (float)pow(base, -2.0 * (double)i / n_rot);
        head.turning += 256 * (double)frequency[i] >= 0.5;
    }
    return head;
}

static float unit(void) {
    static uint64_t state = 7;
    return (float)(2 * random_uniform(random_next(&state)) - 1);
}

static void channels_of(const struct rope *rope, size_t pair, size_t *a, size_t *b) {
    const bool adjacent = rope->pairing == ROPE_ADJACENT;
    *a = adjacent ? 2 * pair : pair;
    *b = adjacent ? 2 * pair + 1 : pair + rope->n_rot / 2;
}

/* to[hd] += the mean rotated by so many positions, of the pairs that turn. */
static void add_rotated(const struct head *head, const float *mean, double position, double *to) {
    for (size_t i = 0, a, b; i < head->turning; i++) {
        const double angle = position * (double)frequency[i];
        channels_of(&head->rope, i, &a, &b);
        to[a] += (double)mean[a] * cos(angle) - (double)mean[b] * sin(angle);
        to[b] += (double)mean[a] * sin(angle) + (double)mean[b] * cos(angle);
    }
}

static void random_mean(const struct head *head, float *mean) {
    memset(mean, 0, MOST_HD * sizeof *mean);
    for (size_t i = 0, a, b; i < head->turning; i++) {
        channels_of(&head->rope, i, &a, &b);
        mean[a] = 5 * unit();
        mean[b] = 5 * unit();
    }
}

typedef void check(const struct head *head, uint64_t first);

static void check_all(check *call) {
    static const uint64_t firsts[] = {4, 68, 196, 255, 1024, 70000 + 133};
    static const struct {
        enum rope_pairing pairing;
        uint32_t head_dim, n_rot;
        double base;
    } heads[] = {{ROPE_ADJACENT, 64, 64, 1e4},   {ROPE_HALF_SPLIT, 64, 64, 1e6}, {ROPE_ADJACENT, 128, 96, 5e5},
                 {ROPE_HALF_SPLIT, 96, 32, 1e4}, {ROPE_HALF_SPLIT, 32, 32, 1.5}, {ROPE_ADJACENT, 64, 0, 1e4}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        const struct head head = head_of(heads[i].pairing, heads[i].head_dim, heads[i].n_rot, heads[i].base);
        assert_int_equal(pre_rope_pairs(&head.rope), head.turning);
        for (size_t j = 0; j < sizeof firsts / sizeof firsts[0]; j++) call(&head, firsts[j]);
    }
}

/* ---- Rows */

/* Rows whose mean before rotation is known lose it, and only it. */
static void check_taken(const struct head *head, uint64_t first) {
    const uint32_t hd = head->rope.head_dim;
    struct pre_rope own;
    float mean[MOST_HD], found[MOST_HD], *rows = malloc((size_t)N * hd * sizeof *rows);
    double *rest = malloc((size_t)N * hd * sizeof *rest), sum[MOST_HD] = {0};
    assert_true(rows && rest && !pre_rope_new(&head->rope, &own, NULL));
    random_mean(head, mean);
    for (size_t t = 0; t < N; t++) {
        const uint64_t page = first + t / 64 * 64;
        const double offset = (double)(page % 256 + t % 64);
        double row[MOST_HD] = {0}, back[MOST_HD] = {0};
        float before[MOST_HD];
        for (size_t c = 0; c < hd; c++) before[c] = unit();
        add_rotated(head, before, offset, row); /* what is about the mean, before rotation */
        for (size_t c = 0; c < hd; c++) back[c] = row[c];
        add_rotated(head, mean, offset, row);
        for (size_t c = 0; c < hd; c++) {
            rows[t * hd + c] = (float)(row[c] + (row[c] == 0 ? 3 : 0)); /* channels that do not turn have a mean, too */
            rest[t * hd + c] = back[c] + (row[c] == 0 ? 3 : 0);
            sum[c] += (double)before[c] / N;
        }
    }
    pre_rope_take(&own, first, rows, N, hd, found);
    for (size_t i = 0, a, b; i < head->turning; i++) {
        channels_of(&head->rope, i, &a, &b);
        assert_true(fabs((double)found[a] - (double)mean[a] - sum[a]) < 1e-4);
        assert_true(fabs((double)found[b] - (double)mean[b] - sum[b]) < 1e-4);
        mean[a] = found[a] - mean[a], mean[b] = found[b] - mean[b]; /* what else was taken */
    }
    for (size_t c = 0, turns = 0; c < hd; c++, turns = 0) {
        for (size_t i = 0, a, b; i < head->turning; i++) {
            channels_of(&head->rope, i, &a, &b);
            turns |= c == a || c == b;
        }
        if (!turns) assert_true(found[c] == 0);
    }
    for (size_t t = 0; t < N; t++) {
        double taken[MOST_HD] = {0};
        add_rotated(head, mean, (double)((first + t / 64 * 64) % 256 + t % 64), taken);
        for (size_t c = 0; c < hd; c++) assert_true(fabs((double)rows[t * hd + c] - (rest[t * hd + c] - taken[c])) < 1e-4);
    }
    pre_rope_free(&own);
    free(rows);
    free(rest);
}

static void means_are_found_and_taken(void **state) {
    (void)state;
    check_all(check_taken);
}

/* ---- Logits */

static void check_scores(const struct head *head, uint64_t first) {
    const size_t hd = head->rope.head_dim;
    struct position_scores own;
    float mean[MOST_HD], q[ROWS * MOST_HD], logits[ROWS * PAGE_TOKENS], of_slots[ROWS * PAGE_TOKENS] = {0};
    float products[ROWS * MOST_HD];
    uint8_t backwards[PAGE_TOKENS];
    assert_int_equal(position_scores_new(&head->rope, &own, NULL), TERSE_OK);
    random_mean(head, mean);
    for (size_t i = 0; i < ROWS * hd; i++) q[i] = unit();
    for (size_t i = 0; i < ROWS * PAGE_TOKENS; i++) logits[i] = (float)(i % 7);
    for (size_t t = 0; t < PAGE_TOKENS; t++) backwards[t] = (uint8_t)(PAGE_TOKENS - 1 - t);
    position_products(&own, mean, q, ROWS, hd, products);
    position_scores_add(&own, products, ROWS, first, logits);
    position_scores_add_slots(&own, products, ROWS, first, backwards, PAGE_TOKENS, of_slots);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        double rotated[MOST_HD] = {0}, size = 0;
        add_rotated(head, mean, (double)(first % 256 + t), rotated);
        for (size_t c = 0; c < hd; c++) size += fabs(rotated[c]);
        for (size_t m = 0; m < ROWS; m++) {
            double score = 0;
            for (size_t c = 0; c < hd; c++) score += (double)q[m * hd + c] * rotated[c];
            const double got = (double)logits[m * PAGE_TOKENS + t] - (double)((m * PAGE_TOKENS + t) % 7);
            assert_true(fabs(got - score) < 1e-5 * (size + 1));
            assert_true(fabs((double)of_slots[m * PAGE_TOKENS + PAGE_TOKENS - 1 - t] - score) < 1e-5 * (size + 1));
        }
    }
    position_scores_free(&own);
}

static void logits_get_what_the_mean_adds(void **state) {
    (void)state;
    check_all(check_scores);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_are_found_and_taken),
        cmocka_unit_test(logits_get_what_the_mean_adds),
    };
    return cmocka_run_group_tests_name("pre_rope", tests, NULL, NULL);
}
