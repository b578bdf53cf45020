/* Caches that are given no profile, only what weights imply: they hold their first tokens in the window until there are FIT_TOKENS, of a
 * prompt that has as many FIT_TOKENS_MOST, then fit transforms to these, once, and share their bits anew; held to double precision. The same bits
 * for any number of threads and however the tokens came; forks, cuts and saved states go by the same; what is fitted is counted. What the emulated
 * GPU has no time for is left to the CPU and a GPU. */
#include "backend/cpu/codec/transform.h"
#include "base/half.h"
#include "base/memory.h"
#include "format/codebook_layouts.h"
#include "support/backend_under_test.h"
#include "support/fit_oracle.h"
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
#include <unistd.h>

#include <cmocka.h>

#define N_CASES(array) cases(sizeof(array) / sizeof(array)[0], 1)

/* ---- The oracle */

/* A row as a page that begins with token `first` holds it, of token t, as the window has kept it till then. */
static void row_of(enum codec_side side, uint32_t layer, uint32_t head, size_t first, size_t t, double *row) {
    const float *from =
        (side == CODEC_KEYS ? sample_keys : sample_values) + ((size_t)layer * MOST + t + sample_skipped) * WIDTH + head * HEAD_DIM;
    double offset = (double)(t - first / ROPE_RUN_TOKENS * ROPE_RUN_TOKENS);
    for (size_t c = 0; c < HEAD_DIM; c++) row[c] = (double)half_to_float(half_from_float(from[c]));
    for (size_t i = 0; i < HEAD_DIM / 2 && side == CODEC_KEYS; i++) {
        double a = row[i], b = row[i + HEAD_DIM / 2], angle = offset * (double)sample_frequency[i];
        row[i] = a * cos(angle) - b * sin(angle);
        row[i + HEAD_DIM / 2] = a * sin(angle) + b * cos(angle);
    }
}

/* mean[HEAD_DIM] before rotation of the n keys that are fitted to, of the pairs that turn by half a radian or more within a run; else 0. */
static void mean_of_keys(uint32_t layer, uint32_t head, size_t n, double *mean) {
    memset(mean, 0, HEAD_DIM * sizeof *mean);
    for (size_t t = SINKS + sample_skipped; t < SINKS + n + sample_skipped; t++)
        for (size_t c = 0; c < HEAD_DIM; c++)
            if (ROPE_RUN_TOKENS * (double)sample_frequency[c % (HEAD_DIM / 2)] >= 0.5)
                mean[c] += (double)sample_keys[((size_t)layer * MOST + t) * WIDTH + head * HEAD_DIM + c] / (double)n;
}

/* Takes from row[HEAD_DIM] of token t the mean as it is rotated in the run of the page that begins with `first`. */
static void take_rotated(size_t first, size_t t, const double *mean, double *row) {
    const double offset = (double)(t - first / ROPE_RUN_TOKENS * ROPE_RUN_TOKENS);
    for (size_t i = 0, j = HEAD_DIM / 2; i < HEAD_DIM / 2; i++, j++) {
        const double angle = offset * (double)sample_frequency[i];
        row[i] -= mean[i] * cos(angle) - mean[j] * sin(angle);
        row[j] -= mean[i] * sin(angle) + mean[j] * cos(angle);
    }
}

/* The GPU sums products of halves in floats; test_cuda_session_fit allows as much between backends. */
static double tolerance(void) { return on_cpu() ? 1e-3 : 1e-2; }

static const struct coding *coding_of(const struct cache *cache, enum codec_side side) {
    return side == CODEC_KEYS ? &cache_base_of(cache)->method.key : &cache_base_of(cache)->method.value;
}

/* Holds every record to the first n tokens behind the exact ones. */
static void check_records_of(const struct cache *cache, size_t n) {
    static double rows[FIT_TOKENS_MOST * HEAD_DIM_MOST];
    assert_true(is_fitted(cache));
    for (uint32_t set = 0; set < SETS; set++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            const uint32_t layer = set / HEADS, head = set % HEADS;
            const void *record = fitted_record(cache_base_of(cache), layer, head, side);
            if (coding_of(cache, side)->codec->id != CODEC_TRANSFORM) {
                assert_null(record);
                continue;
            }
            const struct transform_learned *profile = prepared_learned(cache_base_of(cache)->method.learned, side, layer, head);
            double mean[HEAD_DIM_MOST] = {0};
            if (side == CODEC_KEYS) mean_of_keys(layer, head, n, mean);
            for (size_t t = 0; t < n; t++) {
                const size_t first = SINKS + t / PAGE_TOKENS * PAGE_TOKENS;
                row_of(side, layer, head, first, SINKS + t, rows + t * HEAD_DIM);
                take_rotated(first, SINKS + t, mean, rows + t * HEAD_DIM);
            }
            for (size_t c = 0; c < HEAD_DIM; c++)
                assert_true(fabs((double)transform_fitted_at(record, HEAD_DIM).pre_rope_mean[c] - mean[c]) < tolerance());
            fit_oracle_check(profile->record, record, (uint32_t)HEAD_DIM, rows, n, tolerance());
        }
    }
}

static void check_records(const struct cache *cache) { check_records_of(cache, FIT_TOKENS); }

/* Returns what a codec of the CPU needs to read pages of a side. */
static struct codec_shape shape_of(const struct cache *cache, enum codec_side side, uint32_t set) {
    const struct method *method = &cache_base_of(cache)->method;
    struct codec_shape shape = method_shape(method, side, set / HEADS, set % HEADS, (uint32_t)HEAD_DIM, 1);
    shape.learned = prepared_learned(method->learned, side, set / HEADS, set % HEADS);
    shape.fitted = fitted_record(cache_base_of(cache), set / HEADS, set % HEADS, side);
    return shape;
}

static size_t records_bytes(void) { return (size_t)SETS * 2 * memory_round_up(TRANSFORM_RECORD_BYTES(HEAD_DIM), MEMORY_ALIGN); }

/* Mean squared error of the sealed pages over all layers, heads and sides, each relative to the mean square of its rows. */
static double error_of_pages(const struct cache *cache) {
    double sum = 0;
    for (uint32_t set = 0; set < SETS; set++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            double error = 0, power = 0, row[HEAD_DIM_MOST], whole[HEAD_DIM_MOST];
            for (size_t i = 0; i < cache_base_of(cache)->pages.n_sealed; i++) {
                const struct page_set *page = &cache_base_of(cache)->pages.sets[i];
                float decoded[PAGE_TOKENS * HEAD_DIM_MOST];
                const struct codec_shape shape = shape_of(cache, side, set);
                cpu_codec_transform.decode(shape, side, page_copy(cache, page, side, set / HEADS, set % HEADS, NULL), decoded);
                double mean[HEAD_DIM_MOST] = {0};
                for (size_t c = 0; c < HEAD_DIM && side == CODEC_KEYS; c++)
                    mean[c] = (double)cpu_codec_transform.pre_rope_mean(shape)[c];
                for (size_t t = 0; t < page->count; t++) {
                    row_of(side, set / HEADS, set % HEADS, (size_t)page->first, (size_t)page->first + t, row);
                    memcpy(whole, row, sizeof whole);
                    take_rotated((size_t)page->first, (size_t)page->first + t, mean, row);
                    for (size_t c = 0; c < HEAD_DIM; c++) {
                        error += pow((double)decoded[t * HEAD_DIM + c] - row[c], 2);
                        power += pow(whole[c], 2);
                    }
                }
            }
            sum += error / power / (2 * SETS);
        }
    }
    return sum;
}

/* ---- Waiting and fitting */

/* Tokens of several prompts are one sequence: it is fitted to more of them if the prompt that ends the wait brings these. */
static void a_prompt_is_fitted_to_its_first_tokens(void **state) {
    static const struct {
        size_t first, second, fitted;
    } prompts[] = {{FITTED + 1, 0, FIT_TOKENS}, {SINKS + FIT_TOKENS_MOST - 1, 0, FIT_TOKENS},
                   {MOST, 0, FIT_TOKENS_MOST},  {1000, 2000, FIT_TOKENS},
                   {FITTED, 1, FIT_TOKENS},     {FITTED, MOST - FITTED, FIT_TOKENS_MOST}};
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    for (size_t i = 0; i < N_CASES(prompts); i++) {
        struct cache *cache = make_cache(&method, 2);
        take_prompt(cache, prompts[i].first);
        take_prompt(cache, prompts[i].second);
        check_records_of(cache, prompts[i].fitted);
        parts_destroy(cache);
    }
    release_method(&method, NULL);
}

/* A backend that is loaded as a plug-in has the table of codecs once more. */
static void codecs_of_a_plugin_are_fitted_too(void **state) {
    (void)state;
    const struct codec copy = codec_transform;
    struct method method = make_method(NULL, NULL, true);
    method.key.codec = method.value.codec = &copy;
    struct cache *cache = make_cache(&method, 2);
    take_prompt(cache, FITTED + 100);
    check_records(cache);
    release_method(&method, cache);
}

/* However tokens come, none is sealed before there are enough; then all but the newest are, and the window's memory is given back. */
static void nothing_is_sealed_while_it_waits(void **state) {
    static const enum cache_step_kind kinds[] = {CACHE_STEP_PREFILL, CACHE_STEP_CHUNK, CACHE_STEP_DECODE, CACHE_STEP_PREFILL};
    static const size_t most[] = {FITTED, 500, 37, 900};
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    for (size_t i = 0; i < cases(sizeof kinds / sizeof kinds[0], 2); i++) {
        struct cache *cache = make_cache(&method, 2);
        struct terse_cache_report report, predicted;
        for (size_t length = 0; length < FITTED; length += most[i]) {
            take_steps(cache, kinds[i], length + most[i] < FITTED ? length + most[i] : FITTED, most[i]);
            assert_int_equal(cache_base_of(cache)->pages.n_sealed, 0);
            assert_false(is_fitted(cache));
            assert_ptr_equal(cache_base_of(cache)->method.layouts, method.layouts);
        }
        cache_report(cache, &report);
        cache_predict(sample_kv()->storage, &sample_shape, &method, FITTED, &predicted);
        /* A GPU's window doubles as steps fill it, up to two pages more than it needs. */
        const uint64_t page = (uint64_t)SETS * 2 * PAGE_BYTES_F16(HEAD_DIM), more = report.window - predicted.window;
        assert_true(more == 0 || (!on_cpu() && i > 0 && more <= 2 * page));
        assert_int_equal(report.resident, predicted.resident + more);
        report.window -= more, report.resident -= more, report.bits_per_value = predicted.bits_per_value;
        assert_memory_equal(&report, &predicted, sizeof report);
        assert_int_equal(report.codes, 0);
        assert_int_equal(report.window,
                         page * (FIT_TOKENS / PAGE_TOKENS + !on_cpu())); /* a GPU's has room for the next step's tokens */
        encode_in_steps(cache);
        take_step(cache, CACHE_STEP_DECODE, 1, NULL);
        check_records(cache);
        assert_int_equal(cache_base_of(cache)->pages.n_sealed, (FIT_TOKENS + 1 - method.tail_tokens) / PAGE_TOKENS);
        cache_report(cache, &report);
        cache_predict(sample_kv()->storage, &sample_shape, &method, FITTED + 1, &predicted);
        assert_int_equal(report.codes, predicted.codes);
        assert_int_equal(report.window, predicted.window);
        assert_true(on_cpu() ? report.window < 4 * page : report.window <= 4 * page); /* a GPU's has room for a step's tokens */
        parts_destroy(cache);
    }
    release_method(&method, NULL);
}

/* Later tokens change nothing that was fitted; another sequence is fitted to its own. */
static void a_sequence_is_fitted_once(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    struct cache *cache = make_cache(&method, 2);
    uint8_t *kept = malloc(records_bytes());
    take_prompt(cache, 2100);
    memcpy(kept, cache_base_of(cache)->fitted.records, records_bytes());
    take_step(cache, CACHE_STEP_PREFILL, 700, NULL);
    take_steps(cache, CACHE_STEP_DECODE, 2800 + cases(100, 5), 1);
    assert_memory_equal(kept, cache_base_of(cache)->fitted.records, records_bytes());
    check_records(cache);
    cache_reset(cache);
    assert_false(is_fitted(cache));
    assert_ptr_equal(cache_base_of(cache)->method.layouts, method.layouts);
    sample_skipped = 1000;
    take_prompt(cache, 2200);
    assert_memory_not_equal(kept, cache_base_of(cache)->fitted.records, records_bytes());
    check_records(cache);
    sample_skipped = 0;
    free(kept);
    release_method(&method, cache);
}

/* Pages of the tokens that the window held at the fit do not depend on how these had come. Keys come into the window rotated: from the last bit of
 * their angles on they do, unless steps are of whole pages. */
static void tokens_one_by_one_and_a_prompt_give_the_same_pages(void **state) {
    enum { CHUNK = 10 * PAGE_TOKENS, LENGTH = 2600 };
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    struct cache *one = make_cache(&method, 2);
    take_prompt(one, LENGTH);
    for (size_t by_one = 0; by_one < cases(2, 1); by_one++) {
        struct cache *other = make_cache(&method, 2);
        take_steps(other, CACHE_STEP_CHUNK, 3 * CHUNK, CHUNK);
        if (by_one) take_steps(other, CACHE_STEP_DECODE, 2200, 1);
        take_steps(other, CACHE_STEP_CHUNK, LENGTH, CHUNK);
        assert_int_equal(cache_base_of(one)->pages.n_sealed, cache_base_of(other)->pages.n_sealed);
        check_same_from(one, other, FIT_TOKENS / PAGE_TOKENS, by_one ? CODEC_VALUES : CODEC_KEYS);
        check_records(other);
        parts_destroy(other);
    }
    release_method(&method, one);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    struct cache *one = make_cache(&method, 1);
    take_prompt(one, 3000);
    for (uint32_t threads = 2; threads <= 3; threads++) {
        struct cache *other = make_cache(&method, threads);
        take_prompt(other, 3000);
        assert_int_equal(cache_base_of(one)->pages.n_sealed, cache_base_of(other)->pages.n_sealed);
        check_same(one, other, cache_base_of(one)->pages.n_sealed);
        parts_destroy(other);
    }
    release_method(&method, one);
}

/* Pages that go by the fit say much more of their rows, at the same bits, than those by a profile that is not of them; their layouts share the bits
 * by the records' sizes, and fit into the page sets. */
static void pages_go_by_the_fit(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true), learned = method;
    learned.of_weights = false;
    struct cache *cache = make_cache(&method, 1), *by_profile = make_cache(&learned, 1);
    struct codebook_rows rows[2][SETS];
    const double rate[2] = {method.key.rate, method.value.rate};
    struct codebook_layouts *layouts;
    size_t bytes = 0;
    take_prompt(cache, MOST);
    take_steps(by_profile, CACHE_STEP_CHUNK, MOST, 1000);
    assert_false(is_fitted(by_profile));
    assert_int_equal(cache_base_of(cache)->pages.n_sealed, cache_base_of(by_profile)->pages.n_sealed);
    assert_true(error_of_pages(cache) < 0.5 * error_of_pages(by_profile));
    assert_true(error_of_pages(cache) < 0.05);
    for (uint32_t set = 0; set < SETS; set++) {
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++) {
            const struct transform_fitted own =
                transform_fitted_at(fitted_record(cache_base_of(cache), set / HEADS, set % HEADS, side), HEAD_DIM);
            rows[side][set] = (struct codebook_rows){own.size, own.gain, 0};
            bytes += cache_base_of(cache)->places[set].bytes[side];
        }
    }
    assert_int_equal(
        codebook_layouts_of_rows(method.learned, rate, (const struct codebook_rows *[2]){rows[0], rows[1]}, false, &layouts, NULL),
        TERSE_OK);
    for (size_t side = 0; side < 2; side++)
        assert_memory_equal(layouts->layout[side], cache_base_of(cache)->method.layouts->layout[side],
                            SETS * sizeof(struct transform_layout));
    codebook_layouts_free(layouts);
    assert_true(bytes <= cache_base_of(cache)->page_set_bytes);
    parts_destroy(by_profile);
    release_method(&method, cache);
}

/* The papers' protocol does not wait: its tokens are sealed before they are read, by the profile, which then serves the whole sequence. */
static void the_papers_protocol_goes_by_the_profile(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true), learned = method;
    learned.of_weights = false;
    struct cache *cache = make_cache(&method, 2), *by_profile = make_cache(&learned, 2);
    take_step(cache, CACHE_STEP_PAPER, 300, NULL);
    take_step(by_profile, CACHE_STEP_PAPER, 300, NULL);
    assert_int_equal(cache_base_of(cache)->pages.n_sealed, 5);
    check_goes_on_alike(cache, by_profile, 3);
    take_step(cache, CACHE_STEP_PAPER, cases(2200, 300), NULL);
    take_step(by_profile, CACHE_STEP_PAPER, cases(2200, 300), NULL);
    take_steps(cache, CACHE_STEP_DECODE, cases(2800, 680), 50);
    take_steps(by_profile, CACHE_STEP_DECODE, cases(2800, 680), 50);
    assert_false(is_fitted(cache));
    assert_ptr_equal(cache_base_of(cache)->method.layouts, method.layouts);
    assert_int_equal(cache_base_of(cache)->pages.n_sealed, cache_base_of(by_profile)->pages.n_sealed);
    for (size_t i = 0; i < cache_base_of(cache)->pages.n_sealed; i++) {
        size_t bytes;
        const uint8_t *own = page_copy(cache, &cache_base_of(cache)->pages.sets[i], CODEC_KEYS, 1, 1, &bytes);
        assert_memory_equal(own, page_copy(by_profile, &cache_base_of(by_profile)->pages.sets[i], CODEC_KEYS, 1, 1, NULL), bytes);
    }
    parts_destroy(by_profile);
    release_method(&method, cache);
}

/* Benchmarks' random tokens are fitted to like others, each layer to its own; they take what is foretold of a prompt. */
static void random_tokens_are_fitted_to(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    struct cache *cache = make_cache(&method, 2);
    struct terse_cache_report report, predicted;
    float outputs[LAYERS * GROUP * WIDTH];
    assert_int_equal(sample_kv()->fill_random(cache, 4000, 3, NULL), TERSE_OK);
    assert_true(is_fitted(cache));
    cache_report(cache, &report);
    cache_predict(sample_kv()->storage, &sample_shape, &method, 4000, &predicted);
    assert_int_equal(report.codes, predicted.codes);
    assert_int_equal(report.window, predicted.window);
    for (uint32_t layer = 1; layer < LAYERS; layer++)
        for (enum codec_side side = CODEC_KEYS; side <= CODEC_VALUES; side++)
            assert_memory_not_equal(fitted_record(cache_base_of(cache), 0, 0, side),
                                    fitted_record(cache_base_of(cache), layer, 0, side), TRANSFORM_RECORD_BYTES(HEAD_DIM));
    take_step(cache, CACHE_STEP_DECODE, 1, outputs);
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) assert_true(isfinite(outputs[i]));
    release_method(&method, cache);
}

/* ---- Forks, cuts, saved states */

static void cut(struct cache *cache, uint64_t n) {
    struct terse_error error;
    if (cache_truncate(cache, n, &error)) fail_msg("%s", error.message);
    assert_int_equal(cache_length(cache), n);
}

/* A fork of a cache that waits fits by itself, of one that has fitted goes by a copy, and outlives it. */
static void forks_go_by_what_was_fitted(void **state) {
    static const size_t lengths[] = {1500, FITTED, 2500};
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    for (size_t i = 0; i < N_CASES(lengths); i++) {
        struct cache *cache = make_cache(&method, 2);
        take_prompt(cache, lengths[i]);
        struct cache *copy = fork_of(cache);
        assert_int_equal(is_fitted(cache), lengths[i] > FITTED);
        assert_int_equal(is_fitted(copy), lengths[i] > FITTED);
        check_goes_on_alike(cache, copy, 2);
        take_prompt(cache, 900);
        take_prompt(copy, 900);
        check_goes_on_alike(cache, copy, 100);
        check_same(cache, copy, cache_base_of(cache)->pages.n_sealed);
        assert_ptr_not_equal(cache_base_of(cache)->fitted.records, cache_base_of(copy)->fitted.records);
        assert_int_equal(cache_base_of(copy)->page_set_bytes, cache_base_of(cache)->page_set_bytes);
        parts_destroy(cache);
        check_records(copy);
        take_step(copy, CACHE_STEP_DECODE, 1, NULL);
        cut(copy, 0); /* again by the profile, not by layouts that left with the origin */
        assert_ptr_equal(cache_base_of(copy)->method.layouts, method.layouts);
        parts_destroy(copy);
    }
    release_method(&method, NULL);
}

/* Where a page is left, so is what it goes by, also when fewer tokens are left than a fit takes; where none is, the cache waits again. */
static void cuts_keep_the_fit_as_long_as_a_page(void **state) {
    static const uint64_t lengths[] = {2400, 2300, 1000, SINKS + 1};
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    uint8_t *kept = malloc(records_bytes());
    for (size_t i = 0; i < N_CASES(lengths); i++) {
        struct cache *cache = make_cache(&method, 2);
        take_prompt(cache, 2500);
        memcpy(kept, cache_base_of(cache)->fitted.records, records_bytes());
        cut(cache, lengths[i]);
        assert_true(is_fitted(cache) && cache_base_of(cache)->pages.n_sealed > 0);
        struct cache *copy = fork_of(cache);
        check_goes_on_alike(cache, copy, 2);
        take_prompt(cache, 2500 - cache_length(cache)); /* in which more pages are sealed */
        assert_memory_equal(kept, cache_base_of(cache)->fitted.records, records_bytes());
        check_records(cache);
        assert_true(error_of_pages(cache) < 0.05);
        parts_destroy(copy);
        parts_destroy(cache);
    }
    free(kept);
    release_method(&method, NULL);
}

static void cuts_without_a_page_left_wait_again(void **state) {
    static const uint64_t lengths[] = {SINKS, 2, 0};
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    for (size_t i = 0; i < N_CASES(lengths); i++) {
        struct cache *cache = make_cache(&method, 2), *fresh = make_cache(&method, 2);
        struct terse_cache_report with, without;
        take_prompt(cache, 2500);
        cache_report(cache, &with);
        cut(cache, lengths[i]);
        assert_false(is_fitted(cache));
        cache_report(cache, &without);
        assert_true(with.tables >= without.tables + fitted_all_bytes(&sample_shape, &method));
        if (lengths[i]) take_step(fresh, CACHE_STEP_PREFILL, (size_t)lengths[i], NULL);
        take_prompt(cache, FITTED - lengths[i]);
        take_prompt(fresh, FITTED - lengths[i]);
        assert_int_equal(cache_base_of(cache)->pages.n_sealed, 0);
        check_goes_on_alike(cache, fresh, 100);
        check_same(cache, fresh, cache_base_of(fresh)->pages.n_sealed);
        check_records(cache);
        parts_destroy(fresh);
        parts_destroy(cache);
    }
    /* A cut in the window of one that waits takes tokens back, and later ones count. */
    struct cache *cache = make_cache(&method, 2);
    take_prompt(cache, 1800);
    cut(cache, 1200);
    take_prompt(cache, 1300);
    check_records(cache);
    release_method(&method, cache);
}

static void saved_states_go_by_what_was_fitted(void **state) {
    static const size_t lengths[] = {1500, FITTED, 2500, 300};
    const double bound =
        on_cpu() ? 0 : 1e-3; /* a file has a GPU's keys of the first tokens as they were before rotation, in halves */
    const char *path = *state;
    struct method method = make_method(NULL, NULL, true);
    for (size_t i = 0; i < N_CASES(lengths); i++) {
        struct cache *cache = make_cache(&method, 2);
        struct terse_error error;
        if (lengths[i] == 300)
            take_step(cache, CACHE_STEP_PAPER, 300, NULL); /* pages by the profile */
        else
            take_prompt(cache, lengths[i]);
        save_cache(cache, path);
        struct cache *loaded = load_cache(&method, path, &error);
        if (!loaded) fail_msg("%s", error.message);
        assert_int_equal(is_fitted(loaded), lengths[i] > FITTED);
        if (is_fitted(loaded)) check_same(cache, loaded, cache_base_of(cache)->pages.n_sealed);
        check_goes_on_near(cache, loaded, 100, bound);
        take_prompt(cache, 800);
        take_prompt(loaded, 800);
        if (lengths[i] > 300) check_same(cache, loaded, cache_base_of(cache)->pages.n_sealed);
        check_goes_on_near(cache, loaded, 2, bound);
        parts_destroy(loaded);
        parts_destroy(cache);
    }
    release_method(&method, NULL);
}

/* Writes a state with one number of the records changed, and returns the message with which it is refused. */
static const char *refusal(const struct method *method, struct cache *cache, const char *path, size_t number, float value) {
    static struct terse_error error;
    float *record = fitted_record(cache_base_of(cache), 1, 0, CODEC_VALUES), kept = record[number];
    record[number] = value;
    save_cache(cache, path);
    record[number] = kept;
    struct cache *loaded = load_cache(method, path, &error);
    assert_null(loaded);
    return error.message;
}

static void damaged_records_are_refused(void **state) {
    enum { MEAN = 3 };
    const size_t LEAST = 4 * HEAD_DIM, PRE_ROPE = HEAD_DIM, SIZE = 2 * HEAD_DIM, UNIT = 3 * HEAD_DIM;
    const struct {
        size_t number;
        float value;
    } damages[] = {{MEAN, NAN},     {MEAN, INFINITY}, {SIZE + 5, 1e6f},       {SIZE + HEAD_DIM - 1, -1},
                   {UNIT + 3, NAN}, {LEAST, -1},      {LEAST + 1, -INFINITY}, {LEAST, 1e30f},
                   {LEAST + 2, -1}, {LEAST + 2, NAN}, {PRE_ROPE + 1, NAN}};
    const char *path = *state;
    struct method method = make_method(NULL, NULL, true);
    struct cache *cache = make_cache(&method, 2);
    struct terse_error error;
    take_prompt(cache, 2200);
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++)
        assert_non_null(strstr(refusal(&method, cache, path, damages[i].number, damages[i].value), "contradict one another"));
    /* Nor are records loaded where none is fitted. */
    save_cache(cache, path);
    struct method other = method;
    other.key = other.value = codec_coding(&codec_q8_0, 0, 0);
    other.learned = NULL;
    other.layouts = NULL;
    assert_null(load_cache(&other, path, &error));
    assert_non_null(strstr(error.message, path));
    release_method(&method, cache);
}

/* ---- Memory */

/* One side's codec may be another; what is fitted is a part of what the cache reports as soon as it is there, and what goes by a learned profile needs none
 * of it. */
static void all_bytes_are_foretold(void **state) {
    static const char *const types[][2] = {{NULL, NULL}, {"q8_0", NULL}, {NULL, "q4_0"}};
    static const size_t lengths[] = {700, FITTED, FITTED + 1, 2500};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct method method = make_method(types[i][0], types[i][1], true), learned = method;
        const size_t sides = i ? 1 : 2;
        const uint64_t fitted = records_bytes() + sizeof(struct codebook_layouts) + sides * SETS * sizeof(struct transform_layout) +
                                2 * LAYERS * sizeof(int64_t); /* sums of the residual stream, of the step and before it */
        learned.of_weights = false;
        if (parts_supports(sample_kv()->storage, &sample_shape, &method, NULL)) { /* a GPU reads few pairs of codecs */
            assert_false(on_cpu());
            release_method(&method, NULL);
            continue;
        }
        for (size_t j = 0; j < sizeof lengths / sizeof lengths[0]; j++) {
            struct cache *cache = make_cache(&method, 1);
            struct terse_cache_report with, without, predicted;
            take_prompt(cache, lengths[j]);
            cache_report(cache, &with);
            cache_predict(sample_kv()->storage, &sample_shape, &method, lengths[j], &predicted);
            assert_memory_equal(&with, &predicted, sizeof with);
            cache_predict_parts(sample_kv()->storage, &sample_shape, &learned, 500, lengths[j],
                                &without); /* a short prompt, and more */
            if (lengths[j] > FITTED) {
                check_records(cache);
                assert_int_equal(with.codes, without.codes);
                assert_int_equal(with.window, without.window);
                assert_int_equal(with.resident - without.resident, with.tables - without.tables);
                if (on_cpu()) assert_int_equal(with.tables - without.tables, fitted);
                assert_true(with.tables - without.tables >= fitted); /* a GPU has tables for its kernels besides */
            } else {
                assert_false(is_fitted(cache));
                assert_int_equal(with.codes, 0);
            }
            parts_destroy(cache);
        }
        /* Before anybody has looked which head gets how many bits, their sum is known. */
        struct terse_cache_report predicted, without;
        cache_predict(sample_kv()->storage, &sample_shape, &learned, 2500, &without);
        learned.layouts = NULL;
        cache_predict(sample_kv()->storage, &sample_shape, &learned, 2500, &predicted);
        assert_int_equal(predicted.resident, without.resident);
        release_method(&method, NULL);
    }
}

/* A budget counts what is fitted like all else. Where it does not suffice nothing is fitted, and the same step goes on when it does. */
static void a_budget_counts_what_is_fitted(void **state) {
    (void)state;
    struct method method = make_method(NULL, NULL, true);
    const size_t fitted = (size_t)fitted_all_bytes(&sample_shape, &method);
    struct kv_budget budget = {.most = SIZE_MAX};
    struct cache *cache = make_cache(&method, 2);
    struct terse_cache_report report;
    struct terse_error error;
    assert_int_equal(cache_limit(cache, &budget, NULL), TERSE_OK);
    encode_in_steps(cache);
    take_prompt(cache, FITTED);
    cache_report(cache, &report);
    assert_int_equal(budget.used, report.resident);
    size_t refused = 0;
    enum terse_status status;
    for (budget.most = budget.used; (status = one_begin(sample_kv(), cache, CACHE_STEP_DECODE, 1, &error));
         budget.most += fitted / 3) {
        assert_int_equal(status, TERSE_E_MEMORY);
        assert_non_null(strstr(error.message, "--kv-budget"));
        refused += strstr(error.message, "for what the KV cache learns") != NULL;
        assert_false(is_fitted(cache));
        assert_ptr_equal(cache_base_of(cache)->method.layouts, method.layouts);
    }
    assert_true(!on_cpu() || refused >= 3); /* of the bytes of records, and of layouts behind them */
    budget.most = SIZE_MAX;
    take_step(cache, CACHE_STEP_DECODE, 1, NULL);
    check_records(cache);
    cache_report(cache, &report);
    assert_int_equal(budget.used, report.resident);
    struct cache *copy = fork_of(cache);
    cut(cache, 2);
    parts_destroy(copy);
    cache_report(cache, &report);
    assert_int_equal(budget.used, report.resident);
    release_method(&method, cache);
    assert_int_equal(budget.used, 0);
}

int main(int argc, char **argv) {
    if (!backend_begins(argc, argv)) return NO_DEVICE_STATUS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_fitted_to_its_first_tokens),
        cmocka_unit_test(codecs_of_a_plugin_are_fitted_too),
        cmocka_unit_test(nothing_is_sealed_while_it_waits),
        cmocka_unit_test(a_sequence_is_fitted_once),
        cmocka_unit_test(tokens_one_by_one_and_a_prompt_give_the_same_pages),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(pages_go_by_the_fit),
        cmocka_unit_test(the_papers_protocol_goes_by_the_profile),
        cmocka_unit_test(random_tokens_are_fitted_to),
        cmocka_unit_test(forks_go_by_what_was_fitted),
        cmocka_unit_test(cuts_keep_the_fit_as_long_as_a_page),
        cmocka_unit_test(cuts_without_a_page_left_wait_again),
        cmocka_unit_test_setup_teardown(saved_states_go_by_what_was_fitted, make_path, remove_path),
        cmocka_unit_test_setup_teardown(damaged_records_are_refused, make_path, remove_path),
        cmocka_unit_test(all_bytes_are_foretold),
        cmocka_unit_test(a_budget_counts_what_is_fitted),
    };
    return cmocka_run_group_tests(tests, make_rows, free_rows);
}
