/* Caches with a learned profile: a long prompt is fitted to as without one, as long as nothing is sealed; all else goes by the profile from the first
 * page on, for good. Forks, saved states and shared prefixes of both. */
#include "backend/cpu/kv/state.h"
#include "backend/cpu/kv/step.h"
#include "support/fit_sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A long prompt has the codes that it has without one that says something else. */
static void a_long_prompt_is_fitted_to_beside_a_profile(void **state) {
    static const size_t lengths[] = {FITTED, FITTED + 1, 2500, MOST};
    (void)state;
    struct method method = make_method(NULL, NULL, true), learned = method;
    learned.of_weights = false;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct cache *cache = make_cache(&learned, 2), *without = make_cache(&method, 2);
        struct terse_cache_report report, other;
        take_prompt(cache, lengths[i]);
        take_prompt(without, lengths[i]);
        cache_report(cache, &report);
        cache_report(without, &other);
        assert_memory_equal(&report, &other, sizeof report);
        cache_predict(&cpu_storage, &sample_shape, &learned, lengths[i], &other);
        assert_memory_equal(&report, &other, sizeof report);
        assert_int_equal(is_fitted(cache), lengths[i] > FITTED);
        if (lengths[i] < MOST) check_goes_on_alike(cache, without, 50);
        check_same(cache, without, without->base.pages.n_sealed);
        cache_destroy(without);
        cache_destroy(cache);
    }
    release_method(&method, NULL);
}

/* It waits for nothing, and notes nothing; what comes later changes nothing. */
static void short_prompts_go_by_the_profile(void **state) {
    static const size_t lengths[] = {1, 100, 300, FITTED - 1};
    (void)state;
    struct method learned = make_method(NULL, NULL, false);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (int by_one = 0; by_one < 2; by_one++) {
            const size_t length = lengths[i], least = SINKS + learned.tail_tokens + PAGE_TOKENS;
            struct cache *cache = make_cache(&learned, 2);
            struct terse_cache_report report, predicted;
            cache_set_seal_ahead(cache, false);
            take_steps(cache, by_one ? CACHE_STEP_DECODE : CACHE_STEP_PREFILL, length, by_one ? 1 : length);
            assert_int_equal(cache->base.pages.n_sealed, length < least ? 0 : (length - least) / PAGE_TOKENS + 1);
            cache_report(cache, &report);
            cache_predict(&cpu_storage, &sample_shape, &learned, length, &predicted);
            assert_int_equal(report.codes, predicted.codes);
            assert_int_equal(report.window, predicted.window);
            if (!by_one) assert_int_equal(report.resident, predicted.resident);
            take_prompt(cache, 300 > length ? 300 - length : 1);
            take_prompt(cache, 2100);
            take_steps(cache, CACHE_STEP_DECODE, length + 2500, 1);
            assert_false(is_fitted(cache));
            assert_null(cache->base.fitted.residual);
            assert_ptr_equal(cache->base.method.layouts, learned.layouts);
            cache_destroy(cache);
        }
    }
    /* As long as nothing is sealed, a prompt may still bring the tokens to fit to. */
    struct cache *cache = make_cache(&learned, 2), *whole = make_cache(&learned, 2);
    take_prompt(cache, 2 * PAGE_TOKENS);
    take_prompt(cache, 2500 - 2 * PAGE_TOKENS);
    take_prompt(whole, 2500);
    check_same(cache, whole, FIT_TOKENS / PAGE_TOKENS);
    cache_destroy(whole);
    release_method(&learned, cache);
}

/* Also where a prompt ends as there are just enough tokens, and the next step fits. */
static void forks_and_states_beside_a_profile_go_on_alike(void **state) {
    static const size_t lengths[] = {100, 1500, FITTED, 2500};
    const char *path = *state;
    struct method learned = make_method(NULL, NULL, false);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct cache *cache = make_cache(&learned, 2);
        struct terse_error error;
        take_prompt(cache, lengths[i]);
        struct cache *copy = fork_of(cache);
        save_cache(cache, path);
        struct cache *loaded = load_cache(&learned, path, &error), *const all[] = {copy, loaded};
        if (!loaded) fail_msg("%s", error.message);
        for (size_t k = 0; k < 2; k++) {
            struct cache *one = fork_of(cache);
            assert_int_equal(is_fitted(all[k]), lengths[i] > FITTED);
            check_goes_on_alike(one, all[k], 70);
            take_prompt(one, 900);
            take_prompt(all[k], 900);
            check_goes_on_alike(one, all[k], 70);
            assert_int_equal(is_fitted(all[k]), lengths[i] >= FITTED);
            if (is_fitted(one)) check_same(one, all[k], one->base.pages.n_sealed);
            cache_destroy(one);
            cache_destroy(all[k]);
        }
        cache_destroy(cache);
    }
    release_method(&learned, NULL);
}

/* A long prompt shares no page that goes by the profile, and a short one none that goes by a fit: each has the codes that it would make itself. */
static void prompts_share_pages_that_they_would_make(void **state) {
    (void)state;
    struct method learned = make_method(NULL, NULL, false);
    struct cache *by_profile = make_cache(&learned, 2), *fitted = make_cache(&learned, 2);
    take_prompt(by_profile, 1500);
    take_prompt(fitted, 2500);
    assert_true(cache_common_prefix(by_profile, 1000, 1400) > 0);
    assert_true(cache_common_prefix(by_profile, 1000, FITTED - 1) > 0);
    assert_int_equal(cache_common_prefix(by_profile, 1000, FITTED), 0);
    assert_int_equal(cache_common_prefix(by_profile, 1000, 4000), 0);
    assert_int_equal(cache_common_prefix(fitted, 1000, 1400), 0);
    assert_int_equal(cache_common_prefix(fitted, 2000, 4000), 0);
    assert_in_range(cache_common_prefix(fitted, 2300, 4000), FITTED, 2300);
    cache_destroy(by_profile);
    release_method(&learned, fitted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_is_fitted_to_beside_a_profile),
        cmocka_unit_test(short_prompts_go_by_the_profile),
        cmocka_unit_test_setup_teardown(forks_and_states_beside_a_profile_go_on_alike, make_path, remove_path),
        cmocka_unit_test(prompts_share_pages_that_they_would_make),
    };
    return cmocka_run_group_tests(tests, make_rows, free_rows);
}
