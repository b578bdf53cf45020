/* Partial states: any split of a softmax, merged in any order, equals the whole in double precision. */
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/partial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3, WIDTH = 32, CODED = 5, MOST = 150 };

static uint64_t random_state;

static unsigned random_below(unsigned n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((random_state >> 33) % n);
}

static float random_float(float scale) { return scale * ((float)random_below(2000001) / 1000000.0f - 1); }

struct problem {
    size_t n;
    float logits[ROWS][MOST], values[MOST][WIDTH];
};

static void make_problem(struct problem *p, float scale) {
    p->n = 1 + random_below(MOST);
    for (size_t row = 0; row < ROWS; row++)
        for (size_t t = 0; t < p->n; t++) p->logits[row][t] = random_below(20) ? random_float(scale) : -INFINITY;
    for (size_t t = 0; t < p->n; t++)
        for (size_t c = 0; c < WIDTH; c++) p->values[t][c] = random_float(1);
}

static void dense(const struct problem *p, size_t row, double *out) {
    double max = -INFINITY, sum = 0;
    for (size_t t = 0; t < p->n; t++) max = fmax(max, (double)p->logits[row][t]);
    memset(out, 0, WIDTH * sizeof *out);
    if (max == -INFINITY) return;
    for (size_t t = 0; t < p->n; t++) {
        double weight = exp((double)p->logits[row][t] - max);
        sum += weight;
        for (size_t c = 0; c < WIDTH; c++) out[c] += weight * (double)p->values[t][c];
    }
    for (size_t c = 0; c < WIDTH; c++) out[c] /= sum;
}

/* Adds tokens [first, first + n) as a reader of segments would; a token's codes, where such sums are kept, are its first channels. */
static void add_tokens(struct partial *partial, const struct problem *p, size_t first, size_t n) {
    for (size_t row = 0; row < ROWS; row++) {
        float weights[MOST];
        memcpy(weights, p->logits[row] + first, n * sizeof *weights);
        float max = partial_raise(partial, row, vector_ops()->max(weights, n));
        partial->sum[row] += vector_ops()->exp_sum(weights, max, n);
        for (size_t t = 0; t < n; t++) vector_ops()->axpy(weights[t], p->values[first + t], partial->acc + row * WIDTH, WIDTH);
        for (size_t t = 0; t < n && partial->coded; t++) {
            for (size_t c = 0; c < CODED; c++) partial->by_code[row * CODED + c] += weights[t] * p->values[first + t][c];
            partial->by_code[ROWS * CODED + row] += weights[t];
        }
    }
}

static void check(const struct problem *p, const struct partial *partial) {
    for (size_t row = 0; row < ROWS; row++) {
        double expected[WIDTH];
        float out[WIDTH];
        dense(p, row, expected);
        partial_finish(partial, row, out);
        for (size_t c = 0; c < WIDTH; c++)
            if (!(fabs((double)out[c] - expected[c]) <= 2e-6))
                fail_msg("row %zu channel %zu: %g, not %g", row, c, (double)out[c], expected[c]);
        if (!partial->coded || partial->sum[row] == 0) continue;
        const double sum = (double)partial->sum[row];
        for (size_t c = 0; c < CODED; c++)
            if (!(fabs((double)partial->by_code[row * CODED + c] / sum - expected[c]) <= 2e-6))
                fail_msg("row %zu code %zu: %g, not %g", row, c, (double)partial->by_code[row * CODED + c] / sum, expected[c]);
        if (!(fabs((double)partial->by_code[ROWS * CODED + row] / sum - 1) <= 2e-6)) fail_msg("row %zu: its sum of weights", row);
    }
}

static void any_split_gives_the_whole(void **state) {
    (void)state;
    enum { PARTS = 8 };
    size_t own = partial_floats(ROWS, WIDTH), floats = own + partial_code_floats(ROWS, CODED);
    float *memory = malloc((PARTS + 1) * floats * sizeof *memory);
    struct problem p;
    for (int round = 0; round < 300; round++) {
        make_problem(&p, round % 3 ? 5.0f : 3000.0f);
        struct partial parts[PARTS], whole = partial_at(memory + PARTS * floats, ROWS, WIDTH);
        if (round % 2) partial_keep_codes(&whole, CODED, memory + PARTS * floats + own);
        for (size_t i = 0; i < PARTS; i++) {
            parts[i] = partial_at(memory + i * floats, ROWS, WIDTH);
            if (round % 2) partial_keep_codes(&parts[i], CODED, memory + i * floats + own);
            partial_clear(&parts[i]);
        }
        for (size_t first = 0; first < p.n;) { /* runs of tokens to random parts; some parts stay empty */
            size_t n = 1 + random_below((unsigned)(p.n - first));
            add_tokens(&parts[random_below(PARTS)], &p, first, n);
            first += n;
        }
        partial_clear(&whole);
        size_t start = random_below(PARTS), step = 1 + 2 * random_below(PARTS / 2);
        for (size_t i = 0; i < PARTS; i++) partial_merge(&whole, &parts[(start + i * step) % PARTS]);
        check(&p, &whole);
    }
    free(memory);
}

static void empty_states_change_nothing(void **state) {
    (void)state;
    float memory[2][256], out[WIDTH];
    assert_true(partial_floats(ROWS, WIDTH) <= 256);
    struct partial a = partial_at(memory[0], ROWS, WIDTH), b = partial_at(memory[1], ROWS, WIDTH);
    partial_clear(&a);
    partial_clear(&b);
    partial_merge(&a, &b);
    assert_true(partial_raise(&a, 0, -INFINITY) == -INFINITY);
    for (size_t row = 0; row < ROWS; row++) {
        partial_finish(&a, row, out);
        for (size_t c = 0; c < WIDTH; c++) assert_true(out[c] == 0);
    }
    struct problem p;
    make_problem(&p, 4);
    add_tokens(&a, &p, 0, p.n);
    partial_merge(&a, &b);
    check(&p, &a);
    partial_merge(&b, &a); /* into an empty one */
    check(&p, &b);
}

static void logits_of_any_size_stay_finite(void **state) {
    (void)state;
    static const float extremes[] = {-3e38f, 3e38f, -88, 88, 0, -1e-38f};
    float memory[256];
    struct problem p;
    make_problem(&p, 1);
    p.n = 6;
    for (size_t row = 0; row < ROWS; row++) memcpy(p.logits[row], extremes, sizeof extremes);
    struct partial partial = partial_at(memory, ROWS, WIDTH);
    partial_clear(&partial);
    for (size_t t = 0; t < p.n; t++) add_tokens(&partial, &p, t, 1);
    check(&p, &partial);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_split_gives_the_whole), cmocka_unit_test(empty_states_change_nothing),
                                       cmocka_unit_test(logits_of_any_size_stay_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
