/* Caches whose pages are lowered where a budget has no room: which pages go first and to which rate, what that gives back and costs, how pages of
 * several rates are read, and what becomes of forks, cuts and saved states. */
#include "backend/cpu/codec/transform.h"
#include "format/codebook_layouts.h"
#include "kv/lower.h"
#include "support/backend_under_test.h"
#include "support/fit_sample.h"
#include "support/one_cache.h"
#include "support/prepared.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 4000, RATES = 4 }; /* terse-4, 3, 2, 1.5 */

static struct method make_lowered(void) {
    struct method method = make_method("terse-4", "terse-4", true);
    method.least_rate = 1.5;
    return method;
}

static struct cache *make_limited(const struct method *method, struct kv_budget *budget) {
    struct cache *cache = make_cache(method, 2);
    assert_int_equal(parts_limit(cache, budget, NULL), TERSE_OK);
    return cache;
}

/* Makes the method, and a cache of it in a budget without a limit, yet, that has read a prompt. */
static struct cache *begin(struct method *method, struct kv_budget *budget, size_t prompt) {
    *method = make_lowered();
    *budget = (struct kv_budget){.most = UINT64_MAX};
    struct cache *cache = make_limited(method, budget);
    take_prompt(cache, prompt);
    return cache;
}

/* Asks for so many bytes more than are left; returns whether there is room for them now. */
static bool ask(struct kv_budget *budget, uint64_t bytes) {
    const uint64_t all = budget->most - budget->used + bytes;
    assert_int_equal(budget_check(budget, all, "a test", NULL), TERSE_E_MEMORY);
    return lower_make_room(budget, 0) && budget->most - budget->used >= all;
}

static uint64_t resident(const struct cache *cache) {
    struct terse_cache_report report;
    cache_report(cache, &report);
    return report.resident;
}

static const struct page_set *sets_of(const struct cache *cache) { return cache_base_of(cache)->pages.sets; }

static size_t n_sealed(const struct cache *cache) { return cache_base_of(cache)->pages.n_sealed; }

/* Returns how many sealed pages have the rate. */
static size_t count_rate(const struct cache *cache, uint32_t rate) {
    size_t n = 0;
    for (size_t i = 0; i < n_sealed(cache); i++) n += sets_of(cache)[i].rate == rate;
    return n;
}

/* Fails the test unless the pages' rates do not rise with age, over two neighbouring rates at most. */
static void check_order(const struct cache *cache) {
    for (size_t i = 1; i < n_sealed(cache); i++) {
        assert_true(sets_of(cache)[i].rate <= sets_of(cache)[i - 1].rate);
        assert_true(sets_of(cache)[i].rate + 1 >= sets_of(cache)[0].rate);
    }
}

/* ---- The rule */

static void methods_say_their_rates(void **state) {
    static const double from_4[] = {4, 3, 2, 1.5}, from_3[] = {3, 2.2};
    struct method method = make_lowered();
    double bits[METHOD_RATES];
    (void)state;
    assert_int_equal(method_rates(&method, bits), RATES);
    assert_memory_equal(bits, from_4, sizeof from_4);
    method.key.rate = method.value.rate = 3;
    method.least_rate = 2.2;
    assert_int_equal(method_rates(&method, bits), 2);
    assert_memory_equal(bits, from_3, sizeof from_3);
    method.least_rate = 0;
    assert_int_equal(method_rates(&method, bits), 1);
    release_method(&method, NULL);
}

static void the_oldest_pages_are_lowered_step_by_step(void **state) {
    struct method method;
    struct kv_budget budget;
    struct cache *cache = begin(&method, &budget, PROMPT);
    const struct cache_base *base = cache_base_of(cache);
    (void)state;
    assert_int_equal(count_rate(cache, 0), n_sealed(cache));
    assert_int_equal(budget.used, resident(cache));
    const uint64_t step = base->rates.page_set_bytes[0] - base->rates.page_set_bytes[1];
    budget.most = budget.used;
    assert_true(ask(&budget, 5 * step));
    assert_int_equal(count_rate(cache, 1), 2 * LOWERED_SETS); /* the least whole chunks */
    check_order(cache);
    assert_int_equal(budget.used, resident(cache));
    size_t lowered = 0;
    for (uint64_t could; (could = lower_could_free(&budget)) > 0; lowered++) {
        budget.most = budget.used;
        assert_true(ask(&budget, 1));
        check_order(cache);
        assert_int_equal(budget.used, resident(cache));
        assert_true(lower_could_free(&budget) < could);
    }
    assert_true(lowered > 30);
    assert_int_equal(count_rate(cache, RATES - 1), n_sealed(cache) / LOWERED_SETS * LOWERED_SETS);
    const uint64_t used = budget.used;
    assert_false(ask(&budget, 1)); /* there is no more */
    assert_int_equal(budget.used, used);
    release_method(&method, cache);
}

static void nothing_is_lowered_in_vain(void **state) {
    struct method method;
    struct kv_budget budget;
    struct cache *cache = begin(&method, &budget, PROMPT);
    (void)state;
    budget.most = budget.used;
    assert_false(ask(&budget, lower_could_free(&budget) + 1));
    assert_int_equal(count_rate(cache, 0), n_sealed(cache));
    release_method(&method, cache);
}

/* Of two sequences the one with more pages at the highest rate is lowered until they hold as many; then they go down together. */
static void sequences_come_down_together(void **state) {
    struct method method = make_lowered();
    struct kv_budget budget = {.most = UINT64_MAX};
    struct cache *longer = make_limited(&method, &budget), *shorter = make_limited(&method, &budget);
    (void)state;
    take_prompt(longer, PROMPT);
    take_prompt(shorter, 2800);
    const size_t least = n_sealed(shorter);
    while (lower_could_free(&budget)) {
        const size_t longest = count_rate(longer, 0), shortest = count_rate(shorter, 0);
        budget.most = budget.used;
        assert_true(ask(&budget, 1));
        check_order(longer);
        check_order(shorter);
        /* Neither is lowered twice while the other has pages that have not been lowered once. */
        for (uint32_t rate = 2; rate < RATES; rate++)
            if (count_rate(longer, rate) + count_rate(shorter, rate))
                assert_int_equal(count_rate(longer, rate - 2) + count_rate(shorter, rate - 2), 0);
        if (longest > least + LOWERED_SETS) assert_int_equal(shortest, least);
        if (longest < least) assert_true(shortest <= longest + LOWERED_SETS && longest <= shortest + LOWERED_SETS);
    }
    parts_destroy(shorter);
    release_method(&method, longer);
}

/* ---- Steps in a budget */

/* Takes a step, after room was made for it. */
static bool take_in_budget(struct cache *cache, struct kv_budget *budget, enum cache_step_kind kind, size_t n) {
    enum terse_status status;
    do status = sample_kv()->begin(cache, kind, n, NULL);
    while (status == TERSE_E_MEMORY && lower_make_room(budget, 0));
    if (status) return false;
    take_step(cache, kind, n, NULL); /* begins it again, with what is reserved */
    return true;
}

static void a_prompt_that_does_not_fit_is_sealed_lower(void **state) {
    (void)state;
    if (!on_cpu()) skip(); /* the window's ring grows before, by more than the pages take */
    struct method method = make_lowered();
    struct kv_budget budget = {.most = UINT64_MAX};
    struct cache *cache = make_limited(&method, &budget);
    take_step(cache, CACHE_STEP_PREFILL, FITTED, NULL);
    const struct cache_base *base = cache_base_of(cache);
    const size_t *each = base->rates.page_set_bytes;
    struct terse_cache_report report;
    cache_predict(base->storage, &base->shape, &method, PROMPT, &report); /* the window stays until pages are sealed */
    budget.most = budget.used + report.tables + PROMPT / PAGE_TOKENS * (each[0] + each[1]) / 2;
    assert_true(take_in_budget(cache, &budget, CACHE_STEP_PREFILL, PROMPT - FITTED));
    assert_true(budget.used <= budget.most);
    assert_int_equal(budget.used, resident(cache));
    check_order(cache);
    assert_true(count_rate(cache, base->pages.rate) > 0 && count_rate(cache, base->pages.rate + 1) > 0);
    release_method(&method, cache);
}

static void generation_goes_on_at_the_highest_rate_that_is_held(void **state) {
    struct method method = make_lowered();
    struct kv_budget budget = {.most = UINT64_MAX};
    struct cache *cache = make_limited(&method, &budget);
    (void)state;
    take_prompt(cache, 3000);
    encode_in_steps(cache);
    budget.most = budget.used + 1000;
    while (cache_length(cache) < MOST) {
        assert_true(take_in_budget(cache, &budget, CACHE_STEP_DECODE, 32));
        assert_true(budget.used <= budget.most);
        assert_int_equal(budget.used, resident(cache));
        check_order(cache);
    }
    assert_true(count_rate(cache, 0) < n_sealed(cache) / 2);
    struct terse_cache_report report;
    uint64_t tokens = 0;
    cache_report(cache, &report);
    assert_int_equal(report.n_rates, RATES);
    for (uint32_t i = 0; i < RATES; i++) {
        assert_true(report.rates[i] == (float)cache_base_of(cache)->rates.bits[i]);
        assert_int_equal(report.rate_tokens[i], count_rate(cache, i) * PAGE_TOKENS);
        tokens += report.rate_tokens[i];
    }
    assert_int_equal(tokens, n_sealed(cache) * PAGE_TOKENS);
    release_method(&method, cache);
}

static void a_step_beyond_the_least_rate_is_refused(void **state) {
    struct method method;
    struct kv_budget budget;
    struct cache *cache = begin(&method, &budget, 2500);
    (void)state;
    encode_in_steps(cache);
    budget.most = budget.used;
    assert_true(ask(&budget, lower_could_free(&budget) * 3 / 4));
    budget.most = budget.used;
    while (cache_length(cache) + 32 < MOST && take_in_budget(cache, &budget, CACHE_STEP_DECODE, 32)) continue;
    assert_true(cache_length(cache) + 32 < MOST); /* it ended before the rows did */
    assert_true(count_rate(cache, RATES - 1) + 2 * LOWERED_SETS >= n_sealed(cache));
    assert_true(budget.used <= budget.most);
    release_method(&method, cache);
}

/* ---- What pages say */

/* Returns what the CPU's codec needs to read a side's pages of a rate. */
static struct codec_shape shape_at(const struct cache *cache, uint32_t rate, uint32_t set, enum codec_side side) {
    const struct method method = rates_method(cache_base_of(cache), rate);
    struct codec_shape shape = method_shape(&method, side, set / HEADS, set % HEADS, (uint32_t)HEAD_DIM, 1);
    shape.learned = prepared_learned(method.learned, side, set / HEADS, set % HEADS);
    shape.fitted = fitted_record(cache_base_of(cache), set / HEADS, set % HEADS, side);
    return shape;
}

/* Decodes a page; `lower` is a rate to which it is encoded before, or that of the page. */
static void read_page(const struct cache *cache, size_t i, uint32_t lower, uint32_t set, enum codec_side side, float *rows) {
    _Alignas(64) static uint8_t codes[PAGE_TOKENS * (HEAD_DIM_MOST + 1)];
    const struct page_set *page = &sets_of(cache)[i];
    const struct codec_shape shape = shape_at(cache, page->rate, set, side), other = shape_at(cache, lower, set, side);
    cpu_codec_transform.decode(shape, side, page_copy(cache, page, side, set / HEADS, set % HEADS, NULL), rows);
    if (lower == page->rate) return;
    cpu_codec_transform.encode(other, side, rows, PAGE_TOKENS, codes);
    cpu_codec_transform.decode(other, side, codes, rows);
}

/* Returns the mean squared error of the first n pages, encoded again at the rate `lower` if that is not theirs, from those of the same rows in
 * `exact`, a cache of 8 bits, relative to these. */
static double error_of(const struct cache *cache, uint32_t lower, const struct cache *exact, size_t n) {
    double error = 0, power = 0;
    for (uint32_t set = 0; set < SETS; set++)
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++)
            for (size_t i = 0; i < n; i++) {
                float rows[2][PAGE_TOKENS * HEAD_DIM_MOST];
                read_page(cache, i, lower, set, side, rows[0]);
                read_page(exact, i, 0, set, side, rows[1]);
                for (size_t c = 0; c < PAGE_TOKENS * HEAD_DIM; c++) {
                    error += pow((double)rows[0][c] - (double)rows[1][c], 2);
                    power += pow((double)rows[1][c], 2);
                }
            }
    return error / power;
}

/* Pages that are encoded at 4 bits and then in fewer have both errors: 1.10 times that of 2 bits at once, by way of 3 bits 1.29 times. */
static void lowered_pages_err_little_more_than_others(void **state) {
    struct method method = make_lowered(), of_2 = method, of_8 = method;
    struct kv_budget budget = {.most = UINT64_MAX};
    struct cache *cache = make_limited(&method, &budget), *at_once, *exact;
    (void)state;
    of_2.key.rate = of_2.value.rate = 2;
    of_8.key.rate = of_8.value.rate = 8;
    of_2.least_rate = of_8.least_rate = 0;
    assert_int_equal(codebook_layouts(method.learned, (double[2]){2, 2}, &of_2.layouts, NULL), TERSE_OK);
    assert_int_equal(codebook_layouts(method.learned, (double[2]){8, 8}, &of_8.layouts, NULL), TERSE_OK);
    at_once = make_cache(&of_2, 2);
    exact = make_cache(&of_8, 2);
    take_prompt(cache, PROMPT);
    take_prompt(at_once, PROMPT);
    take_prompt(exact, PROMPT);
    const size_t n = n_sealed(cache) / LOWERED_SETS * LOWERED_SETS;
    const double of_4 = error_of(cache, 0, exact, n), of_4_to_2 = error_of(cache, 2, exact, n);
    while (count_rate(cache, 2) < n) {
        budget.most = budget.used;
        assert_true(ask(&budget, 1));
    }
    const double lowered = error_of(cache, 2, exact, n), at_2 = error_of(at_once, 0, exact, n);
    print_message("squared error of 4 bits %.3g, of 2 bits %.3g; from 4 to 2 bits %.3f times that, by way of 3 %.3f times\n", of_4,
                  at_2, of_4_to_2 / at_2, lowered / at_2);
    assert_true(of_4 < at_2 / 4 && of_4_to_2 > at_2 && of_4_to_2 < 1.2 * at_2 && lowered > of_4_to_2 && lowered < 1.4 * at_2);
    parts_destroy(at_once);
    parts_destroy(exact);
    release_method(&method, cache);
}

/* Few queries are read by the codes, many by decoded rows: the two must agree, over pages of three rates. */
static void pages_of_several_rates_are_read_together(void **state) {
    enum { N = 40, ROW = GROUP * HEADS * HEAD_DIM_MOST };
    struct method method;
    struct kv_budget budget;
    struct cache *cache = begin(&method, &budget, PROMPT);
    const struct kv_ops *kv = sample_kv();
    const size_t width = (size_t)GROUP * WIDTH;
    static float k[N * HEADS * HEAD_DIM_MOST], q[N * ROW], all[N * ROW], last[ROW];
    (void)state;
    while (count_rate(cache, 1) < n_sealed(cache) / 2) {
        budget.most = budget.used;
        assert_true(ask(&budget, 1));
    }
    budget.most = UINT64_MAX;
    for (size_t i = 0; i < N * width; i++) q[i] = (float)sin((double)i * 0.37);
    struct cache *forked = fork_of(cache); /* which reads the same */
    for (int c = 0; c < 2; c++) {
        struct cache *one = c ? forked : cache;
        assert_int_equal(one_begin(kv, one, CACHE_STEP_DECODE, N, NULL), TERSE_OK);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            const size_t at = ((size_t)layer * MOST + PROMPT) * WIDTH;
            memcpy(k, sample_keys + at, N * WIDTH * sizeof *k);
            assert_int_equal(one_append(kv, one, layer, k, sample_values + at, NULL), TERSE_OK);
            assert_int_equal(one_attend(kv, one, layer, q, 0, N, all, NULL), TERSE_OK);
            assert_int_equal(one_attend(kv, one, layer, q + (N - 1) * width, N - 1, 1, last, NULL), TERSE_OK);
            for (size_t i = 0; i < width; i++) assert_true(fabsf(last[i] - all[(N - 1) * width + i]) < 0.02f);
            assert_int_equal(one_seal(kv, one, layer, NULL), TERSE_OK);
        }
        assert_int_equal(kv->commit(one, NULL), TERSE_OK);
    }
    check_goes_on_alike(cache, forked, 3);
    parts_destroy(forked);
    release_method(&method, cache);
}

/* Pages are lowered for another sequence while a prompt is under way: it goes on with the pages as they are then. */
static void a_prompt_under_way_reads_lowered_pages(void **state) {
    enum { N = 40, ROW = GROUP * HEADS * HEAD_DIM_MOST };
    struct method method;
    struct kv_budget budget;
    struct cache *cache = begin(&method, &budget, 3000), *caches[2] = {fork_of(cache), cache};
    const struct kv_ops *kv = sample_kv();
    const size_t width = (size_t)GROUP * WIDTH;
    static float k[N * HEADS * HEAD_DIM_MOST], q[N * ROW], out[2][LAYERS][ROW];
    (void)state;
    for (size_t i = 0; i < N * width; i++) q[i] = (float)sin((double)i * 0.37);
    for (int c = 0; c < 2; c++) {
        struct cache *one = caches[c];
        assert_int_equal(one_begin(kv, one, CACHE_STEP_PREFILL, N, NULL), TERSE_OK);
        if (!c) {
            budget.most = budget.used;
            assert_true(ask(&budget, lower_could_free(&budget) / 2));
            budget.most = UINT64_MAX;
        }
        assert_true(count_rate(one, 1) + count_rate(one, 2) > n_sealed(one) / 2);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            const size_t at = ((size_t)layer * MOST + 3000) * WIDTH;
            memcpy(k, sample_keys + at, N * WIDTH * sizeof *k);
            assert_int_equal(one_append(kv, one, layer, k, sample_values + at, NULL), TERSE_OK);
            assert_int_equal(one_attend(kv, one, layer, q + (N - 1) * width, N - 1, 1, out[c][layer], NULL), TERSE_OK);
            assert_int_equal(one_seal(kv, one, layer, NULL), TERSE_OK);
        }
        assert_int_equal(kv->commit(one, NULL), TERSE_OK);
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) assert_memory_equal(out[0][layer], out[1][layer], width * sizeof(float));
    parts_destroy(caches[0]);
    release_method(&method, cache);
}

/* ---- Forks, cuts, saved states */

static void pages_that_are_shared_are_lowered_once(void **state) {
    struct method method = make_lowered();
    struct kv_budget budget = {.most = UINT64_MAX};
    struct cache *cache = make_limited(&method, &budget), *copy;
    (void)state;
    take_prompt(cache, PROMPT);
    copy = fork_of(cache);
    const uint64_t used = budget.used;
    const size_t *each = cache_base_of(cache)->rates.page_set_bytes;
    budget.most = budget.used;
    assert_true(ask(&budget, 3 * LOWERED_SETS * (each[0] - each[1])));
    assert_int_equal(used - budget.used, 3 * LOWERED_SETS * (each[0] - each[1]));
    for (size_t i = 0; i < n_sealed(cache); i++) {
        assert_int_equal(sets_of(cache)[i].rate, i < 3 * LOWERED_SETS);
        assert_int_equal(sets_of(copy)[i].rate, sets_of(cache)[i].rate);
        assert_ptr_equal(sets_of(copy)[i].owner, sets_of(cache)[i].owner);
    }
    budget.most = UINT64_MAX;
    check_goes_on_alike(cache, copy, 70);
    parts_destroy(cache);
    take_step(copy, CACHE_STEP_DECODE, 1, NULL);
    assert_int_equal(budget.used, resident(copy));
    release_method(&method, copy);
    assert_int_equal(budget.used, 0);
    assert_null(budget.caches);
}

static void cuts_give_pages_back(void **state) {
    struct method method;
    struct kv_budget budget;
    struct cache *cache = begin(&method, &budget, PROMPT);
    (void)state;
    budget.most = budget.used;
    assert_true(ask(&budget, lower_could_free(&budget) / 3));
    const uint64_t used = budget.used;
    budget.most = UINT64_MAX;
    struct cache *whole = fork_of(cache);
    assert_int_equal(cache_truncate(cache, 3000, NULL), TERSE_OK);
    parts_destroy(whole);
    assert_true(budget.used < used);
    check_order(cache);
    take_steps(cache, CACHE_STEP_DECODE, MOST - 100, 30);
    assert_int_equal(budget.used, resident(cache));
    assert_int_equal(cache_truncate(cache, 0, NULL), TERSE_OK);
    take_prompt(cache, PROMPT);
    assert_int_equal(count_rate(cache, 0), n_sealed(cache)); /* it begins anew */
    release_method(&method, cache);
}

static void saved_states_have_several_rates(void **state) {
    struct method method = make_lowered();
    struct kv_budget budget = {.most = UINT64_MAX}, second = {.most = UINT64_MAX};
    struct cache *cache = make_limited(&method, &budget), *loaded;
    struct terse_error error;
    take_prompt(cache, PROMPT);
    budget.most = budget.used;
    assert_true(ask(&budget, lower_could_free(&budget) / 2));
    budget.most = UINT64_MAX;
    save_cache(cache, *state);
    assert_non_null(loaded = load_cache(&method, *state, &error));
    for (size_t i = 0; i < n_sealed(cache); i++) assert_int_equal(sets_of(cache)[i].rate, sets_of(loaded)[i].rate);
    assert_int_equal(cache_base_of(loaded)->pages.rate, cache_base_of(cache)->pages.rate);
    check_goes_on_near(cache, loaded, 70, on_cpu() ? 0 : 1e-3); /* as in test_fit */
    /* Pages in the file are lowered as others are. */
    assert_int_equal(parts_limit(loaded, &second, NULL), TERSE_OK);
    second.most = second.used;
    assert_true(ask(&second, lower_could_free(&second)));
    assert_true(count_rate(loaded, RATES - 1) + LOWERED_SETS >= n_sealed(loaded));
    take_step(loaded, CACHE_STEP_DECODE, 1, NULL);
    parts_destroy(loaded);
    release_method(&method, cache);
}

static void states_of_other_rates_are_refused(void **state) {
    struct method method = make_lowered(), fixed = method;
    struct kv_budget budget = {.most = UINT64_MAX};
    struct cache *cache = make_limited(&method, &budget), *other;
    struct state_file *file;
    struct terse_error error;
    fixed.least_rate = 0;
    take_prompt(cache, PROMPT);
    budget.most = budget.used;
    assert_true(ask(&budget, 1));
    save_cache(cache, *state);
    other = make_cache(&fixed, 1);
    assert_int_equal(state_file_open(*state, &file, &error), TERSE_OK);
    assert_int_equal(cache_load(other, file, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "3 bits per value"));
    state_file_close(file);
    parts_destroy(other);
    release_method(&method, cache);
}

/* While another thread saves a cache, none of the pages that it may read is freed. */
static void pages_that_are_read_elsewhere_stay(void **state) {
    struct method method;
    struct kv_budget budget;
    struct cache *cache = begin(&method, &budget, PROMPT);
    (void)state;
    budget.most = budget.used;
    block_pool_hold(cache_base(cache)->pages.pool);
    assert_false(ask(&budget, 1));
    block_pool_release(cache_base(cache)->pages.pool);
    assert_true(ask(&budget, 1));
    release_method(&method, cache);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_say_their_rates),
        cmocka_unit_test(the_oldest_pages_are_lowered_step_by_step),
        cmocka_unit_test(nothing_is_lowered_in_vain),
        cmocka_unit_test(sequences_come_down_together),
        cmocka_unit_test(a_prompt_that_does_not_fit_is_sealed_lower),
        cmocka_unit_test(generation_goes_on_at_the_highest_rate_that_is_held),
        cmocka_unit_test(a_step_beyond_the_least_rate_is_refused),
        cmocka_unit_test(lowered_pages_err_little_more_than_others),
        cmocka_unit_test(pages_of_several_rates_are_read_together),
        cmocka_unit_test(a_prompt_under_way_reads_lowered_pages),
        cmocka_unit_test(pages_that_are_shared_are_lowered_once),
        cmocka_unit_test(cuts_give_pages_back),
        cmocka_unit_test_setup_teardown(saved_states_have_several_rates, make_path, remove_path),
        cmocka_unit_test_setup_teardown(states_of_other_rates_are_refused, make_path, remove_path),
        cmocka_unit_test(pages_that_are_read_elsewhere_stay),
    };
    return cmocka_run_group_tests(tests, make_rows, free_rows);
}
