/* Plans of sequences that wait for their first tokens: which steps seal nothing, how prompts are cut into steps, and where these leave the
 * sequence. */
#include "kv/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { HEAD_DIM = 64, FITTED = SINKS + FIT_TOKENS, FITTED_MOST = SINKS + FIT_TOKENS_MOST };

static const enum cache_step_kind waiting[] = {CACHE_STEP_CHUNK, CACHE_STEP_DECODE, CACHE_STEP_PREFILL};

static struct method make_method(const char *name, bool of_weights) {
    struct terse_cache_options options = terse_cache_options_defaults();
    struct method method;
    options.method = name;
    assert_int_equal(method_resolve(&options, HEAD_DIM, &method, NULL), TERSE_OK);
    method.of_weights = of_weights;
    return method;
}

/* Of a sequence of so many tokens, none of which is sealed. */
static struct extent unsealed(uint64_t length) {
    const uint64_t exact = length < SINKS ? length : SINKS;
    return (struct extent){.exact = exact, .first = exact, .window_first = exact, .length = length};
}

static struct plan plan_at(const struct method *method, uint64_t length, enum cache_step_kind kind, size_t n) {
    const struct extent before = unsealed(length);
    return plan_step(method, &before, kind, n);
}

static size_t part_at(const struct method *method, uint64_t length, size_t n) {
    const struct extent before = unsealed(length);
    return plan_part(method, &before, n);
}

static void steps_seal_nothing_before_there_are_enough_tokens(void **state) {
    static const uint64_t lengths[] = {0, 3, 500, FITTED - 1};
    (void)state;
    const struct method method = make_method("terse-2", true);
    for (size_t k = 0; k < sizeof waiting / sizeof waiting[0]; k++) {
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            const struct plan plan = plan_at(&method, lengths[i], waiting[k], 3000); /* however many come in the step */
            assert_true(plan.waits && !plan.fits);
            assert_int_equal(plan.seal + plan.skip + plan.shift + plan.sealed, 0);
            assert_int_equal(plan.after.window_first, SINKS);
            assert_int_equal(plan.after.length, lengths[i] + 3000);
        }
        const struct plan plan = plan_at(&method, FITTED, waiting[k], 1);
        assert_true(plan.fits && !plan.waits);
        assert_int_equal(plan.seal, (FIT_TOKENS + 1 - method.tail_tokens) / PAGE_TOKENS);
        assert_int_equal(plan.after.window_first, SINKS + plan.seal * PAGE_TOKENS);
    }
}

/* The papers' protocol; methods that need no profile. */
static void others_do_not_wait(void **state) {
    (void)state;
    const struct method method = make_method("terse-2", true), learned = make_method("terse-2", false),
                        half = make_method("f16", true);
    for (int i = 0; i < 2; i++) {
        const struct plan plan = plan_at(i ? &learned : &method, 0, CACHE_STEP_PAPER, 3000);
        assert_false(plan.waits || plan.fits);
        assert_int_equal(plan.seal, (3000 - SINKS + PAGE_TOKENS - 1) / PAGE_TOKENS);
    }
    for (size_t k = 0; k < sizeof waiting / sizeof waiting[0]; k++) {
        assert_false(plan_at(&half, 0, waiting[k], 3000).waits);
        assert_false(plan_at(&half, 3000, waiting[k], 1).fits);
    }
    assert_int_equal(part_at(&half, 0, 5000), 5000);
}

static void pages_are_sealed_as_soon_as_they_are_full(void **state) {
    (void)state;
    const struct method codes = make_method("q4_0", true), learned = make_method("terse-2", false);
    for (int i = 0; i < 2; i++) {
        const struct method *method = i ? &learned : &codes;
        const size_t full = method->parameters.exact + method->tail_tokens + PAGE_TOKENS;
        assert_int_equal(plan_at(method, 0, CACHE_STEP_PREFILL, full - 1).seal, 0);
        assert_int_equal(plan_at(method, 0, CACHE_STEP_PREFILL, full).seal, 1);
        assert_int_equal(plan_at(method, full - 1, CACHE_STEP_DECODE, 1).seal, 1);
        assert_int_equal(plan_at(method, 0, CACHE_STEP_PREFILL, full + PAGE_TOKENS - 1).seal, 1);
    }
}

/* With a learned profile only the step waits that brings the tokens to fit to; where pages were sealed before, none does. */
static void a_learned_profile_serves_what_is_short(void **state) {
    static const struct {
        uint64_t length;
        size_t n;
        bool waits;
    } steps[] = {{0, 1, false},      {0, 400, false},           {0, FITTED - 1, false}, {0, FITTED, true},  {0, 9000, true},
                 {150, 1500, false}, {150, FITTED - 150, true}, {FITTED - 1, 1, true},  {FITTED, 1, false}, {3000, 200, false}};
    (void)state;
    const struct method learned = make_method("terse-2", false);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const uint64_t length = steps[i].length, all = length + steps[i].n;
        for (size_t k = 0; k < sizeof waiting / sizeof waiting[0]; k++) {
            const struct plan plan = plan_at(&learned, length, waiting[k], steps[i].n);
            const size_t full = all < SINKS + learned.tail_tokens ? 0 : (size_t)(all - SINKS - learned.tail_tokens) / PAGE_TOKENS;
            assert_int_equal(plan.waits, steps[i].waits);
            assert_int_equal(plan.fits, length >= FITTED);
            assert_int_equal(plan.seal, steps[i].waits ? 0 : full);
        }
        const uint64_t wanted = all < FITTED_MOST ? FITTED : FITTED_MOST;
        assert_int_equal(part_at(&learned, length, steps[i].n), length < wanted && all > wanted ? wanted - length : steps[i].n);
        struct extent sealed = unsealed(length + PAGE_TOKENS);
        sealed.window_first += PAGE_TOKENS;
        assert_int_equal(plan_part(&learned, &sealed, steps[i].n), steps[i].n);
        const struct plan plan = plan_step(&learned, &sealed, CACHE_STEP_PREFILL, steps[i].n);
        assert_false(plan.waits || plan.fits);
    }
}

/* Decoding steps, and pieces of a prompt that attend to codes, never wait for more than the least. */
static void only_prompts_wait_for_more(void **state) {
    (void)state;
    const struct method method = make_method("terse-2", true);
    for (size_t k = 0; k < sizeof waiting / sizeof waiting[0]; k++) {
        const struct plan plan = plan_at(&method, FITTED, waiting[k], FITTED_MOST - FITTED);
        const bool prompt = waiting[k] == CACHE_STEP_PREFILL;
        assert_int_equal(plan.waits, prompt);
        assert_int_equal(plan.fits, !prompt);
        assert_true(plan_at(&method, FITTED_MOST, waiting[k], 5000).fits);
    }
    const struct plan fitted = plan_at(&method, FITTED, CACHE_STEP_DECODE, 1); /* it seals pages: nothing waits behind them */
    const struct plan next = plan_step(&method, &fitted.after, CACHE_STEP_PREFILL, 9000);
    assert_true(next.fits && !next.waits && next.seal > 0);
    assert_int_equal(plan_part(&method, &fitted.after, 9000), 9000);
    assert_int_equal(plan_shortest_part(&method, &fitted.after, 9000), 9000);
    assert_int_equal(plan_fit_tokens(FIT_TOKENS), FIT_TOKENS);
    assert_int_equal(plan_fit_tokens(FIT_TOKENS_MOST - 1), FIT_TOKENS);
    assert_int_equal(plan_fit_tokens(FIT_TOKENS_MOST + 1), FIT_TOKENS_MOST);
}

static void prompts_are_cut_where_waiting_ends(void **state) {
    static const struct {
        uint64_t length;
        size_t n, part;
    } cases[] = {{0, 1, 1},
                 {0, FITTED, FITTED},
                 {0, FITTED + 1, FITTED},
                 {0, FITTED_MOST - 1, FITTED},
                 {0, FITTED_MOST, FITTED_MOST},
                 {0, 100000, FITTED_MOST},
                 {2000, 500, FITTED - 2000},
                 {2000, FITTED_MOST - 2000, FITTED_MOST - 2000},
                 {2000, 100000, FITTED_MOST - 2000},
                 {FITTED - 1, 1, 1},
                 {FITTED - 1, 2, 1},
                 {FITTED, 1000, 1000},
                 {FITTED, 100000, FITTED_MOST - FITTED},
                 {FITTED_MOST, 100000, 100000},
                 {9999, 5000, 5000}};
    (void)state;
    const struct method method = make_method("terse-2", true);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(part_at(&method, cases[i].length, cases[i].n), cases[i].part);
}

/* Where memory is short, a prompt's first step is that of the shortest that is fitted, and the next one seals. */
static void short_memory_cuts_prompts_sooner(void **state) {
    (void)state;
    const struct method method = make_method("terse-2", true), half = make_method("f16", true);
    const struct extent none = unsealed(0), some = unsealed(500), waited = unsealed(FITTED);
    assert_int_equal(plan_shortest_part(&method, &none, FITTED_MOST), FITTED);
    assert_int_equal(plan_shortest_part(&method, &none, 100), 100);
    assert_int_equal(plan_shortest_part(&method, &some, 9000), FITTED - 500);
    assert_int_equal(plan_shortest_part(&method, &waited, 9000), PAGE_TOKENS);
    assert_int_equal(plan_shortest_part(&method, &waited, 10), 10);
    assert_int_equal(plan_shortest_part(&half, &none, 9000), 9000);
    const struct plan plan = plan_step(&method, &waited, CACHE_STEP_PREFILL, PAGE_TOKENS);
    assert_true(plan.fits && !plan.waits && plan.seal > 0);
}

static void a_prompts_plan_is_its_last_step(void **state) {
    static const size_t lengths[] = {
        1, 300, FITTED - 1, FITTED, FITTED + 1, FITTED + 64, FITTED_MOST - 1, FITTED_MOST, FITTED_MOST + 1, 20000};
    (void)state;
    for (int of_weights = 0; of_weights < 2; of_weights++) {
        const struct method method = make_method("terse-4", of_weights);
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            struct plan plan = {0};
            size_t sealed = 0, n_steps = 0;
            for (size_t left = lengths[i], part; left; left -= part, n_steps++) {
                part = plan_part(&method, &plan.after, left);
                plan = plan_step(&method, &plan.after, CACHE_STEP_PREFILL, part);
                sealed += plan.seal;
            }
            const struct plan whole = plan_prompt(&method, lengths[i]);
            assert_memory_equal(&whole, &plan, sizeof plan);
            const bool waits = lengths[i] == FITTED || lengths[i] == FITTED_MOST;
            assert_int_equal(n_steps, lengths[i] > FITTED && !waits ? 2 : 1);
            assert_int_equal(sealed, plan.seal); /* all in the last */
            assert_int_equal(plan.after.length, lengths[i]);
            if (waits || (of_weights && lengths[i] < FITTED)) assert_int_equal(sealed, 0);
            if (waits || lengths[i] < FITTED) continue;
            struct method other = make_method("q4_0", false); /* it leaves the window that one step does without waiting */
            other.tail_tokens = method.tail_tokens;
            assert_int_equal(plan.after.window_first, plan_at(&other, 0, CACHE_STEP_PREFILL, lengths[i]).after.window_first);
        }
    }
}

/* Of layers that slide, those take 8 bits whose windows never hold as many tokens as a fit takes. */
static void short_windows_are_not_fitted(void **state) {
    (void)state;
    const struct method method = make_method("terse-2", true), learned = make_method("terse-2", false),
                        mixed = make_method("q4_0", true);
    const struct method some = method_of_window(&method, FIT_TOKENS - 1), enough = method_of_window(&method, FIT_TOKENS);
    assert_ptr_equal(some.key.codec, &codec_q8_0);
    assert_ptr_equal(some.value.codec, &codec_q8_0);
    assert_false(method_fits_transforms(&some) || plan_at(&some, 0, CACHE_STEP_DECODE, 1).waits);
    assert_int_equal(some.parameters.exact, SINKS);
    assert_ptr_equal(enough.key.codec, &codec_transform);
    assert_true(method_fits_transforms(&enough) && plan_at(&enough, 0, CACHE_STEP_DECODE, 1).waits);
    const struct method beside_profile = method_of_window(&learned, 100);
    assert_ptr_equal(beside_profile.key.codec, &codec_q8_0);
    assert_ptr_equal(beside_profile.value.codec, &codec_q8_0);
    assert_null(beside_profile.learned);
    assert_true(method_fits_transforms(&learned));
    assert_ptr_equal(method_of_window(&mixed, 100).key.codec, mixed.key.codec);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_seal_nothing_before_there_are_enough_tokens),
        cmocka_unit_test(others_do_not_wait),
        cmocka_unit_test(pages_are_sealed_as_soon_as_they_are_full),
        cmocka_unit_test(a_learned_profile_serves_what_is_short),
        cmocka_unit_test(only_prompts_wait_for_more),
        cmocka_unit_test(prompts_are_cut_where_waiting_ends),
        cmocka_unit_test(short_memory_cuts_prompts_sooner),
        cmocka_unit_test(a_prompts_plan_is_its_last_step),
        cmocka_unit_test(short_windows_are_not_fitted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
