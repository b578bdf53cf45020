/* Sessions of models with latent attention, whose caches hold keys that end with the values: memory, ways to read, going back, forks,
 * prefixes and saved states, and what such models refuse. test_reference_models.c has their logits. */
#include "backend/backend.h"
#include "engine/session.h"
#include "format/page_layout.h"
#include "support/fixture_model.h"
#include "support/session_steps.h"
#include "support/session_ways.h"
#include "support/temporary.h"
#include "terse_calibrate.h"
#include "terse_choice.h"

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

enum { TOKENS = 480, PROMPT = 400, STEPS = 8 };

/* The largest difference of logits over the largest of them, where earlier tokens are read from the cache: in half precision as in
 * test_reference_models.c, in 8 bits, and in 4. Errors of 2 bits change which
 * experts of random weights are chosen: their logits must only be numbers here, and are held to others bit for bit below. */
static const struct {
    const char *name;
    double bound;
} methods[] = {{"f16", 6e-3}, {"q8_0", 0.05}, {"q4_0", 0.6}, {"kivi-4", 0.6}, {"kivi-2", INFINITY}};
#define METHODS (sizeof methods / sizeof methods[0])

static struct terse_model *model;
static struct terse_engine *engine;
static struct terse_model_info info;
static int32_t tokens[TOKENS];

static int make_engine(void **state) {
    (void)state;
    must_start_fixture("deepseek2-groups", 1, &model, &engine, &info); /* so small a model is no work to share */
    write_text(tokens, TOKENS, info.vocabulary);
    return 0;
}

static int free_engine(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}

static struct terse_session *new_session(const char *method) {
    const struct terse_session_options options = short_session_options(method, 32);
    return must_open(engine, &options);
}

/* ---- Memory */

/* A token has the rotated channels and the latent once, in each layer, and nothing besides. */
static void a_token_takes_one_row(void **state) {
    (void)state;
    const uint64_t page[METHODS] = {PAGE_BYTES_F16(96), PAGE_BYTES_Q8_0(96), PAGE_BYTES_Q4_0(96), PAGE_BYTES_KIVI(96, 4),
                                    PAGE_BYTES_KIVI(96, 2)};
    const uint64_t before = terse_engine_kv_bytes(engine);
    assert_int_equal(info.head_dim, 96);
    assert_int_equal(info.kv_heads, 1);
    assert_int_equal(info.latent, 64);
    for (size_t m = 0; m < METHODS; m++) {
        const uint64_t sinks = m ? 4 : 0;
        for (size_t n = 1; n <= PROMPT; n += n < 64 ? 21 : 64) {
            const struct terse_session_options options = short_session_options(methods[m].name, 32);
            struct terse_session *session = must_open(engine, &options);
            struct terse_cache_report foretold;
            must_prefill(session, tokens, n);
            const struct terse_cache_report report = report_of(session);
            const uint64_t pages = n > sinks + 32 ? (n - sinks - 32) / PAGE_TOKENS : 0;
            assert_int_equal(report.codes, pages * info.layers * page[m]);
            assert_int_equal(report.exact, sinks * info.layers * 96 * sizeof(uint16_t));
            assert_int_equal(report.window % (info.layers * PAGE_BYTES_F16(96)), 0);
            assert_true(report.window <= 2 * info.layers * PAGE_BYTES_F16(96));
            const double bits = 8.0 * (double)report.resident / ((double)n * info.layers * 96);
            assert_true(report.bits_per_value > bits * 0.999 && report.bits_per_value < bits * 1.001);
            assert_int_equal(terse_engine_kv_bytes(engine) - before, report.resident);
            assert_int_equal(terse_cache_bytes(model, NULL, &options.cache, n, &foretold, NULL), TERSE_OK);
            assert_int_equal(report.resident, foretold.resident);
            terse_session_free(session);
        }
        assert_int_equal(terse_engine_kv_bytes(engine), before);
    }
}

/* ---- Ways to read */

static void prompts_in_parts_are_as_tokens_one_by_one(void **state) {
    (void)state;
    static const size_t parts[] = {1, 23, 100, PROMPT};
    struct terse_session *exact = new_session("f16");
    must_prefill(exact, tokens, PROMPT);
    for (size_t m = 0; m < METHODS; m++) {
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
            struct terse_session *other = new_session(methods[m].name), *copy = must_fork(exact);
            char what[64];
            for (size_t i = 0, n; i < PROMPT; i += n) {
                n = PROMPT - i < parts[p] ? PROMPT - i : parts[p];
                if (n == 1)
                    must_decode(other, tokens + i, 1);
                else
                    must_prefill(other, tokens + i, n);
            }
            must_decode(copy, tokens + PROMPT, 3);
            must_decode(other, tokens + PROMPT, 3);
            snprintf(what, sizeof what, "%s in parts of %zu", methods[m].name, parts[p]);
            check_near_logits(info.vocabulary, what, other, copy, methods[m].bound);
            terse_session_free(copy);
            terse_session_free(other);
        }
    }
    terse_session_free(exact);
}

static void threads_change_nothing(void **state) {
    (void)state;
    struct terse_engine *three = must_start(&backend_cpu, model, 3);
    for (size_t m = 0; m < METHODS; m++) {
        const struct terse_session_options options = short_session_options(methods[m].name, 32);
        struct terse_session *one = must_open(engine, &options), *other = must_open(three, &options);
        must_prefill(one, tokens, 200);
        must_prefill(other, tokens, 200);
        must_decode(one, tokens, 3);
        must_decode(other, tokens, 3);
        check_near_logits(info.vocabulary, methods[m].name, one, other, 1e-5);
        terse_session_free(one);
        terse_session_free(other);
    }
    terse_engine_free(three);
}

static void a_batch_is_as_its_sessions_alone(void **state) {
    (void)state;
    check_batch(engine, (const char *const[]){"f16", "q8_0", "q4_0"}, tokens);
}

static void a_prompt_that_is_stopped_leaves_the_session(void **state) {
    (void)state;
    check_stopped_prompt(engine, tokens, 5, PROMPT);
}

/* ---- Going back, forks, prefixes, saved states */

static void a_session_goes_back_to_any_length(void **state) {
    (void)state;
    static const size_t cuts[] = {1, 63, 65, 200, 384, PROMPT, PROMPT + 1, TOKENS - 1};
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_session *whole = new_session(methods[m].name);
        must_prefill(whole, tokens, PROMPT);
        must_decode(whole, tokens + PROMPT, TOKENS - PROMPT);
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            struct terse_session *session = must_fork(whole), *fresh = new_session(methods[m].name);
            char what[64];
            must_truncate(session, cuts[c]);
            assert_int_equal(terse_session_length(session), cuts[c]);
            must_prefill(fresh, tokens, cuts[c] < PROMPT ? cuts[c] : PROMPT);
            if (cuts[c] > PROMPT) must_decode(fresh, tokens + PROMPT, cuts[c] - PROMPT);
            must_decode(fresh, tokens + 5, 2);
            must_decode(session, tokens + 5, 2);
            snprintf(what, sizeof what, "%s, cut at %zu", methods[m].name, cuts[c]);
            check_near_logits(info.vocabulary, what, session, fresh, methods[m].bound);
            terse_session_free(session);
            terse_session_free(fresh);
        }
        terse_session_free(whole);
    }
}

static void a_fork_and_its_origin_go_their_own_ways(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) check_fork(engine, methods[m].name, tokens);
}

static void a_prompt_begins_where_another_was_alike(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct alike_sessions alike = must_begin_alike(engine, methods[m].name, tokens, PROMPT, 330, PROMPT + 20, info.vocabulary);
        assert_in_range(alike.held, 256, 330);
        check_near_logits(info.vocabulary, methods[m].name, alike.session, alike.fresh, methods[m].bound);
        alike_free(&alike);
    }
}

static void a_saved_session_goes_on(void **state) {
    (void)state;
    char path[TEMPORARY_PATH];
    temporary_template("latents", path);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (size_t m = 0; m < METHODS; m++) {
        const struct terse_session_options options = short_session_options(methods[m].name, 32);
        struct terse_session *session = new_session(methods[m].name), *loaded;
        must_prefill(session, tokens, PROMPT);
        must_decode(session, tokens + PROMPT, 10);
        must_save(session, path);
        loaded = must_load(engine, &options, path);
        check_same_logits(loaded, session);
        assert_int_equal(report_of(loaded).codes, report_of(session).codes);
        must_decode(loaded, tokens, 40);
        must_decode(session, tokens, 40);
        check_same_logits(loaded, session);
        terse_session_free(loaded);
        terse_session_free(session);
    }
    unlink(path);
}

static void random_tokens_fill_a_cache(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        struct terse_session *session = new_session(methods[m].name);
        assert_int_equal(terse_session_fill_random(session, 300, 1, NULL), TERSE_OK);
        must_decode(session, tokens, 2);
        terse_session_free(session);
    }
}

/* ---- What is refused, and what serves instead */

static void other_methods_are_refused_by_name(void **state) {
    (void)state;
    static const char *const refused[] = {"streaming-64", "mat-128", "snapkv-128", "quest-64",  "selfindex-2",
                                          "selfindex-16", "antkv-1", "commvq-1",   "million-4", "cq-1"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct terse_session_options options = short_session_options(refused[i], 32);
        struct terse_session *session;
        struct terse_error error;
        assert_int_equal(terse_session_new(engine, &options, &session, &error), TERSE_E_UNSUPPORTED);
        if (!strstr(error.message, refused[i]) || !strstr(error.message, "--kv terse-N, f16, q8_0, q4_0, kivi-4 or kivi-2"))
            fail_msg("%s: %s", refused[i], error.message);
    }
    struct terse_session_options apart_types = short_session_options("q8_0", 32);
    struct terse_session *session;
    apart_types.cache.value_type = "q4_0";
    assert_int_equal(terse_session_new(engine, &apart_types, &session, NULL), TERSE_E_UNSUPPORTED);
    apart_types = short_session_options("terse-4", 32);
    apart_types.cache.value_type = "terse-2";
    assert_int_equal(terse_session_new(engine, &apart_types, &session, NULL), TERSE_E_UNSUPPORTED);
}

static void codebooks_are_not_learned(void **state) {
    (void)state;
    struct terse_calibration options = terse_calibration_defaults();
    struct terse_codebook *codebook;
    struct terse_error error;
    options.method = "terse-4";
    assert_int_equal(terse_calibrate(model, &options, tokens, TOKENS, &codebook, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "one latent"));
    assert_int_equal(terse_codebook_random(model, "cq-1", &codebook, &error), TERSE_E_UNSUPPORTED);
}

static void the_choice_is_terse_4(void **state) {
    (void)state;
    struct terse_choice_options options = terse_choice_options_defaults();
    struct terse_choice choice;
    assert_int_equal(terse_choose(model, &options, &choice, NULL), TERSE_OK);
    assert_string_equal(choice.method, "terse-4");
    assert_int_equal(choice.reason, TERSE_CHOICE_UNKNOWN);
}

static void files_of_other_shapes_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *key;
        uint32_t value;
        enum terse_status status;
        const char *says;
    } wrong[] = {{"deepseek2", "deepseek2.attention.kv_lora_rank", 0, TERSE_E_FORMAT, "kv_lora_rank"},
                 {"deepseek2", "deepseek2.attention.kv_lora_rank", 32, TERSE_E_FORMAT, "attn_kv_a_mqa"},
                 {"deepseek2", "deepseek2.attention.key_length", 32, TERSE_E_FORMAT, "32 of them rotated"},
                 {"deepseek2", "deepseek2.attention.value_length", 24, TERSE_E_FORMAT, "attn_output"},
                 {"deepseek2", "deepseek2.rope.dimension_count", 1024, TERSE_E_FORMAT, "dimension_count"},
                 {"deepseek2", "deepseek2.leading_dense_block_count", 2, TERSE_E_FORMAT, "ffn_gate"},
                 {"deepseek2", "deepseek2.expert_shared_count", 1, TERSE_E_FORMAT, "shexp"},
                 {"deepseek2-groups", "deepseek2.attention.q_lora_rank", 0, TERSE_E_FORMAT, "attn_q"},
                 {"deepseek2-groups", "deepseek2.attention.q_lora_rank", 1u << 30, TERSE_E_FORMAT, "damaged"},
                 {"deepseek2-groups", "deepseek2.attention.value_length_mla", 21, TERSE_E_FORMAT, "attn_output"},
                 {"deepseek2-groups", "deepseek2.expert_group_count", 3, TERSE_E_FORMAT, "groups"},
                 {"deepseek2-groups", "deepseek2.expert_group_used_count", 9, TERSE_E_FORMAT, "outside 1 to 4"},
                 {"deepseek2-sigmoid", "deepseek2.expert_gating_func", 4, TERSE_E_UNSUPPORTED, "expert_gating_func 4"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        size_t size;
        uint8_t *file = fixture_bytes(wrong[i].model, &size);
        struct terse_model *loaded;
        struct terse_error error;
        fixture_set_u32(file, size, wrong[i].key, wrong[i].value);
        const enum terse_status status = terse_model_load_memory(file, size, wrong[i].model, &loaded, &error);
        if (status != wrong[i].status || !strstr(error.message, wrong[i].says))
            fail_msg("%s: %d, '%s' does not say '%s'", wrong[i].key, (int)status, error.message, wrong[i].says);
        free(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_takes_one_row),
        cmocka_unit_test(prompts_in_parts_are_as_tokens_one_by_one),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(a_batch_is_as_its_sessions_alone),
        cmocka_unit_test(a_prompt_that_is_stopped_leaves_the_session),
        cmocka_unit_test(a_session_goes_back_to_any_length),
        cmocka_unit_test(a_fork_and_its_origin_go_their_own_ways),
        cmocka_unit_test(a_prompt_begins_where_another_was_alike),
        cmocka_unit_test(a_saved_session_goes_on),
        cmocka_unit_test(random_tokens_fill_a_cache),
        cmocka_unit_test(other_methods_are_refused_by_name),
        cmocka_unit_test(codebooks_are_not_learned),
        cmocka_unit_test(the_choice_is_terse_4),
        cmocka_unit_test(files_of_other_shapes_are_refused),
    };
    return cmocka_run_group_tests_name("latent attention", tests, make_engine, free_engine);
}
