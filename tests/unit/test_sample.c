/* Sampling: each filter against its definition, and the random numbers against the distribution they should follow. */
#include "base/random.h"
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N = 8, DRAWS = 40000 };

/* Probabilities 0.4 0.2 0.15 0.1 0.06 0.05 0.03 0.01, not in order of their tokens. */
static const double probability[N] = {0.05, 0.4, 0.01, 0.2, 0.15, 0.03, 0.1, 0.06};

static void fill_logits(float *logits) {
    for (int i = 0; i < N; i++) logits[i] = (float)log(probability[i]) + 3;
}

static const struct terse_sampling plain = {.temperature = 1, .typical_p = 1, .top_p = 1, .repeat_penalty = 1, .seed = 7};

static void count_draws(const struct terse_sampling *settings, double *share) {
    struct sampler s;
    struct terse_error error;
    float logits[N];
    fill_logits(logits);
    assert_int_equal(sampler_init(&s, N, &error), TERSE_OK);
    assert_int_equal(sampler_set(&s, settings, &error), TERSE_OK);
    memset(share, 0, N * sizeof *share);
    for (int i = 0; i < DRAWS; i++) share[sampler_choose(&s, logits)] += 1.0 / DRAWS;
    sampler_destroy(&s);
}

/* Every share within five standard deviations of what the kept tokens' probabilities say. */
static void check_shares(const struct terse_sampling *settings, const bool *kept) {
    double share[N], sum = 0;
    count_draws(settings, share);
    double weight[N];
    for (int i = 0; i < N; i++) sum += weight[i] = kept[i] ? pow(probability[i], 1 / (double)settings->temperature) : 0;
    for (int i = 0; i < N; i++) {
        double p = weight[i] / sum, deviation = sqrt(p * (1 - p) / DRAWS);
        if (fabs(share[i] - p) > 5 * deviation) fail_msg("token %d drawn with share %g instead of %g", i, share[i], p);
    }
}

static void test_plain_follows_the_softmax(void **state) {
    (void)state;
    check_shares(&plain, (bool[N]){1, 1, 1, 1, 1, 1, 1, 1});
}

static void test_temperature(void **state) {
    (void)state;
    struct terse_sampling s = plain;
    s.temperature = 0.5f;
    check_shares(&s, (bool[N]){1, 1, 1, 1, 1, 1, 1, 1});
}

static void test_top_k(void **state) {
    (void)state;
    struct terse_sampling s = plain;
    s.top_k = 3;
    check_shares(&s, (bool[N]){0, 1, 0, 1, 1, 0, 0, 0});
}

static void test_top_p(void **state) {
    (void)state;
    struct terse_sampling s = plain;
    s.top_p = 0.7f; /* 0.4 + 0.2 is short of it, the third token passes it */
    check_shares(&s, (bool[N]){0, 1, 0, 1, 1, 0, 0, 0});
}

static void test_min_p(void **state) {
    (void)state;
    struct terse_sampling s = plain;
    s.min_p = 0.2f; /* of 0.4: keeps 0.08 and more */
    check_shares(&s, (bool[N]){0, 1, 0, 1, 1, 0, 1, 0});
}

static void test_greedy_and_ties(void **state) {
    (void)state;
    struct sampler s;
    struct terse_error error;
    struct terse_sampling settings = plain;
    settings.temperature = 0;
    assert_int_equal(sampler_init(&s, N, &error), TERSE_OK);
    assert_int_equal(sampler_set(&s, &settings, &error), TERSE_OK);
    float logits[N] = {1, 2, 5, 5, 0, NAN, -INFINITY, 5};
    assert_int_equal(sampler_choose(&s, logits), 2);
    sampler_destroy(&s);
}

static void test_repeat_penalty(void **state) {
    (void)state;
    struct sampler s;
    struct terse_error error;
    struct terse_sampling settings = plain;
    settings.temperature = 0;
    settings.repeat_penalty = 2;
    settings.repeat_last = 3;
    assert_int_equal(sampler_init(&s, N, &error), TERSE_OK);
    assert_int_equal(sampler_set(&s, &settings, &error), TERSE_OK);
    float logits[N] = {4, 3, -1, -1, -1, -1, -1, -1};
    assert_int_equal(sampler_choose(&s, logits), 0);
    sampler_add(&s, 0);
    sampler_add(&s, 0); /* once or twice, the penalty is the same: 4 / 2 < 3 */
    assert_int_equal(sampler_choose(&s, logits), 1);
    for (int i = 0; i < 3; i++) sampler_add(&s, 1); /* pushes token 0 out of the window */
    assert_int_equal(sampler_choose(&s, logits), 0);
    sampler_destroy(&s);
}

/* The entropy is 1.73, the surprises 0.92 1.61 1.90 2.30 2.81 3.00 3.51 4.61: nearest to it are 0.2, 0.15, 0.1, then 0.4. */
static void test_typical(void **state) {
    (void)state;
    struct terse_sampling s = plain;
    s.typical_p = 0.4f;
    check_shares(&s, (bool[N]){0, 0, 0, 1, 1, 0, 1, 0});
    s.typical_p = 0.8f;
    check_shares(&s, (bool[N]){0, 1, 0, 1, 1, 0, 1, 0});
}

static void test_presence_and_frequency_penalties(void **state) {
    (void)state;
    struct sampler s;
    struct terse_error error;
    struct terse_sampling settings = plain;
    settings.temperature = 0;
    settings.presence_penalty = 0.5f;
    settings.frequency_penalty = 1;
    settings.repeat_last = 4;
    assert_int_equal(sampler_init(&s, N, &error), TERSE_OK);
    assert_int_equal(sampler_set(&s, &settings, &error), TERSE_OK);
    float logits[N] = {6, 4, 2.9f, 0, 0, 0, 0, 0};
    sampler_add(&s, 0);
    assert_int_equal(sampler_choose(&s, logits), 0); /* 6 - 0.5 - 1 */
    sampler_add(&s, 0);
    assert_int_equal(sampler_choose(&s, logits), 1); /* 6 - 0.5 - 2 is less than 4 */
    sampler_add(&s, 1);
    assert_int_equal(sampler_choose(&s, logits), 0); /* 4 - 1.5 */
    sampler_add(&s, 0);
    assert_int_equal(sampler_choose(&s, logits), 2); /* 6 - 3.5, 4 - 1.5 */
    for (int i = 0; i < 4; i++) sampler_add(&s, 7);
    assert_int_equal(sampler_choose(&s, logits), 0); /* out of sight */
    sampler_destroy(&s);
}

static void test_biases(void **state) {
    (void)state;
    struct sampler s;
    struct terse_error error;
    struct terse_sampling settings = plain;
    struct terse_logit_bias biases[] = {{0, -INFINITY}, {5, 2}, {5, 2}};
    settings.temperature = 0;
    settings.biases = biases;
    settings.n_biases = 3;
    assert_int_equal(sampler_init(&s, N, &error), TERSE_OK);
    assert_int_equal(sampler_set(&s, &settings, &error), TERSE_OK);
    memset(biases, 0xff, sizeof biases); /* copied */
    float logits[N] = {9, 4, 0, 0, 0, 0.5f, 0, 0};
    assert_int_equal(sampler_choose(&s, logits), 5);
    biases[0] = (struct terse_logit_bias){N, 1};
    assert_int_equal(sampler_set(&s, &settings, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "token 8"));
    assert_int_equal(sampler_choose(&s, logits), 5); /* refused settings change nothing */
    biases[0] = (struct terse_logit_bias){1, NAN};
    assert_int_equal(sampler_set(&s, &settings, &error), TERSE_E_ARGUMENT);
    settings.n_biases = 0;
    assert_int_equal(sampler_set(&s, &settings, &error), TERSE_OK);
    assert_int_equal(sampler_choose(&s, logits), 0);
    sampler_destroy(&s);
}

static void test_logprobs(void **state) {
    (void)state;
    static const int32_t order[N] = {1, 3, 4, 6, 7, 0, 5, 2};
    struct sampler s;
    struct terse_error error;
    float logits[N], logprob;
    struct terse_logprob top[N];
    fill_logits(logits);
    assert_int_equal(sampler_init(&s, N, &error), TERSE_OK);
    for (size_t n = 0; n <= N; n++) {
        sampler_logprobs(&s, logits, 2, &logprob, top, n);
        assert_float_equal(logprob, log(0.01), 1e-6);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(top[i].token, order[i]);
            assert_float_equal(top[i].logprob, log(probability[order[i]]), 1e-6);
        }
    }
    logits[1] = NAN;
    sampler_logprobs(&s, logits, 1, &logprob, NULL, 0);
    assert_true(logprob == -INFINITY);
    sampler_destroy(&s);
}

static void test_seed_decides(void **state) {
    (void)state;
    struct sampler s;
    struct terse_error error;
    float logits[N];
    int32_t first[64], second[64];
    fill_logits(logits);
    assert_int_equal(sampler_init(&s, N, &error), TERSE_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(sampler_set(&s, &plain, &error), TERSE_OK);
        for (int i = 0; i < 64; i++) (round ? second : first)[i] = sampler_choose(&s, logits);
    }
    assert_memory_equal(first, second, sizeof first);
    struct terse_sampling other = plain;
    other.seed = 8;
    assert_int_equal(sampler_set(&s, &other, &error), TERSE_OK);
    for (int i = 0; i < 64; i++) second[i] = sampler_choose(&s, logits);
    assert_memory_not_equal(first, second, sizeof first);
    sampler_destroy(&s);
}

/* The best k of many, against sorting all of them. */
static void test_top_k_of_many(void **state) {
    (void)state;
    enum { MANY = 5000 };
    static float logits[MANY];
    struct sampler s;
    struct terse_error error;
    struct terse_sampling settings = plain;
    settings.top_k = 50;
    for (int i = 0; i < MANY; i++)
        logits[i] = (float)((i * 7919) % MANY) / MANY; /* a permutation: the top 50 are those of 4950 and more */
    assert_int_equal(sampler_init(&s, MANY, &error), TERSE_OK);
    assert_int_equal(sampler_set(&s, &settings, &error), TERSE_OK);
    bool seen[50] = {0};
    for (int i = 0; i < 5000; i++) {
        int32_t rank = (sampler_choose(&s, logits) * 7919) % MANY;
        assert_in_range(rank, MANY - 50, MANY - 1);
        seen[rank - (MANY - 50)] = true;
    }
    for (int i = 0; i < 50; i++) assert_true(seen[i]);
    sampler_destroy(&s);
}

static void test_settings_out_of_range(void **state) {
    (void)state;
    struct sampler s;
    struct terse_error error;
    assert_int_equal(sampler_init(&s, N, &error), TERSE_OK);
    struct terse_sampling bad[] = {plain, plain, plain, plain, plain, plain, plain};
    bad[0].temperature = -1;
    bad[1].top_p = 1.5f;
    bad[2].min_p = NAN;
    bad[3].repeat_penalty = 0;
    bad[4].repeat_last = SAMPLE_HISTORY + 1;
    bad[5].typical_p = -1;
    bad[6].frequency_penalty = INFINITY;
    const char *word[] = {"temperature", "top-p", "min-p", "repeat penalty", "repeat penalty", "typical", "frequency"};
    for (int i = 0; i < 7; i++) {
        assert_int_equal(sampler_set(&s, &bad[i], &error), TERSE_E_ARGUMENT);
        assert_non_null(strstr(error.message, word[i]));
    }
    sampler_destroy(&s);
}

/* ---- The tokens with the highest logits alone */

enum { WIDE = 1000, TRIALS = 4000 };

/* By the definition of struct device_logits. */
static size_t top_logits_of(const float *logits, size_t n, struct token_logit *top_logits) {
    size_t kept = 0, wanted = n < TOP_LOGITS ? n : TOP_LOGITS;
    float order[WIDE];
    for (size_t i = 0; i < n; i++) order[i] = isnan(logits[i]) ? -INFINITY : logits[i];
    for (size_t i = 0; i < n; i++) {
        uint32_t above = 0; /* tokens that are likelier, and equal ones before it */
        for (size_t j = 0; j < i; j++) above += order[j] >= order[i];
        for (size_t j = i + 1; j < n; j++) above += order[j] > order[i];
        if (above < wanted) top_logits[kept++] = (struct token_logit){logits[i], (int32_t)i};
    }
    return kept;
}

static float one_of(uint64_t *random, const float *values, size_t n) { return values[random_next(random) % n]; }

static struct terse_sampling random_settings(uint64_t *random, struct terse_logit_bias *biases) {
    static const float temperatures[] = {0, 0.5f, 0.8f, 1.5f}, zeros[] = {0, 0, 0.5f}, ones[] = {1, 1, 0.9f, 0.3f},
                       repeats[] = {1, 1, 1.1f, 3, 0.9f}, offsets[] = {-1, -0.5f, 2, -INFINITY}, presences[] = {0, 0, 0.7f, -0.5f};
    static const uint32_t ks[] = {0, 1, 5, 40, 128, 250, 400};
    struct terse_sampling s = {.temperature = one_of(random, temperatures, 4),
                               .top_k = ks[random_next(random) % 7],
                               .typical_p = one_of(random, ones, 4),
                               .top_p = one_of(random, ones, 4),
                               .min_p = one_of(random, (const float[]){0, 0.001f, 0.05f, 0.5f}, 4),
                               .repeat_penalty = one_of(random, repeats, 5),
                               .presence_penalty = one_of(random, presences, 4),
                               .frequency_penalty = one_of(random, zeros, 3),
                               .repeat_last = 64,
                               .seed = random_next(random)};
    for (size_t i = 0; i < 3; i++)
        biases[i] = (struct terse_logit_bias){(int32_t)(random_next(random) % 100), one_of(random, offsets, 4)};
    s.biases = biases;
    s.n_biases = random_next(random) % 4;
    return s;
}

/* Some rows have many equal logits, some are narrow, so that filters keep many. */
static void random_row(uint64_t *random, float *logits, size_t n) {
    uint64_t kind = random_next(random) % 4;
    for (size_t i = 0; i < n; i++) {
        float x = (float)(random_uniform(random_next(random)) * (kind == 1 ? 0.2 : 20));
        if (kind == 2) x = floorf(x / 4);
        if (kind == 3) x = powf(x / 20, 16) * 30;
        if (random_next(random) % 97 == 0) x = NAN;
        if (random_next(random) % 97 == 0) x = -INFINITY;
        logits[i] = x;
    }
}

static void the_likeliest_decide_as_all_do(void **state) {
    (void)state;
    uint64_t random = 5;
    size_t decided = 0, refused = 0, defaults = 0;
    for (size_t trial = 0; trial < TRIALS; trial++) {
        static float logits[WIDE];
        struct token_logit top_logits[TOP_LOGITS];
        struct terse_logit_bias biases[3];
        struct sampler all, few;
        struct terse_error error;
        uint32_t n = trial % 10 == 9 ? 100 : WIDE;
        struct terse_sampling settings = random_settings(&random, biases);
        if (trial % 10 == 0)
            settings = (struct terse_sampling){.temperature = 0.8f,
                                               .top_k = 40,
                                               .typical_p = 1,
                                               .top_p = 0.95f,
                                               .min_p = 0.05f,
                                               .repeat_penalty = 1,
                                               .seed = trial};
        random_row(&random, logits, n);
        size_t kept = top_logits_of(logits, n, top_logits);
        assert_int_equal(sampler_init(&all, n, &error) || sampler_set(&all, &settings, &error), 0);
        for (int i = 0; i < 80; i++) sampler_add(&all, (int32_t)(random_next(&random) % 100));
        assert_int_equal(sampler_fork(&all, &few, &error), TERSE_OK);
        int32_t token = sampler_choose(&all, logits), chosen;
        if (sampler_choose_top_logits(&few, top_logits, kept, &chosen)) {
            if (chosen != token) fail_msg("trial %zu: token %d instead of %d", trial, chosen, token);
            assert_true(few.random == all.random);
            decided++;
            defaults += trial % 10 == 0;
        } else {
            assert_int_equal(sampler_choose(&few, logits), token); /* nothing was lost by asking */
            assert_true(few.random == all.random);
            refused++;
        }
        sampler_destroy(&all);
        sampler_destroy(&few);
    }
    printf("%zu decided by the top_logits, %zu not\n", decided, refused);
    assert_true(decided > TRIALS / 4 && refused > TRIALS / 10);
    assert_true(defaults > TRIALS / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_follows_the_softmax),
        cmocka_unit_test(test_temperature),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_min_p),
        cmocka_unit_test(test_greedy_and_ties),
        cmocka_unit_test(test_repeat_penalty),
        cmocka_unit_test(test_typical),
        cmocka_unit_test(test_presence_and_frequency_penalties),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_seed_decides),
        cmocka_unit_test(test_top_k_of_many),
        cmocka_unit_test(test_settings_out_of_range),
        cmocka_unit_test(the_likeliest_decide_as_all_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
