/* The map tells which tokens of each part of a sequence are exact, compressed, evicted and read, by methods that keep, evict, anchor and choose. */
#include "support/fixture_model.h"
#include "support/session_steps.h"
#include "terse.h"
#include "terse_calibrate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { TOKENS = 640, WINDOW = 64, PARTS = 10 }; /* 64 tokens a part */

static struct terse_model *model;
static struct terse_engine *engine;
static int32_t tokens[TOKENS];

static int make_engine(void **state) {
    (void)state;
    struct terse_model_info info;
    struct terse_engine_options options = terse_engine_options_defaults();
    model = fixture_model("qwen3");
    options.threads = 2;
    terse_model_describe(model, &info);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 37 + i * i % 11) % (int32_t)info.vocabulary;
    return terse_engine_new(model, &options, &engine, NULL);
}

static int free_engine(void **state) {
    (void)state;
    terse_engine_free(engine);
    terse_model_free(model);
    return 0;
}

/* Maps a session that has read a prompt and then two tokens more, TOKENS in all. */
static void map_of(const char *method, struct terse_token_share shares[PARTS]) {
    struct terse_session_options options = short_session_options(method, WINDOW);
    struct terse_codebook *codebook = NULL;
    (void)terse_codebook_random(model, method, &codebook, NULL);
    options.cache.codebook = codebook;
    struct terse_session *session = must_open(engine, &options);
    terse_session_map(session, shares, PARTS);
    for (size_t i = 0; i < PARTS; i++)
        assert_true(shares[i].exact == 0 && shares[i].compressed == 0 && shares[i].evicted == 0 && shares[i].read == 0);
    must_prefill(session, tokens, TOKENS - 2);
    for (size_t i = 2; i > 0; i--) assert_int_equal(terse_session_decode(session, tokens + TOKENS - i, 1, NULL, NULL), TERSE_OK);
    terse_session_map(session, shares, PARTS);
    for (size_t i = 0; i < PARTS; i++) {
        const struct terse_token_share *s = &shares[i];
        bool shares_of_one = s->exact >= 0 && s->compressed > -1e-6f && s->evicted > -1e-6f;
        if (!shares_of_one || fabsf(s->exact + s->compressed + s->evicted - 1) > 1e-6f ||
            s->read > s->exact + s->compressed + 1e-6f)
            fail_msg("%s, part %zu: %g %g %g %g", method, i, s->exact, s->compressed, s->evicted, s->read);
    }
    terse_session_free(session);
    terse_codebook_free(codebook);
}

static void near(float is, float wanted) {
    if (!(fabsf(is - wanted) < 1e-5f)) fail_msg("%g is not %g", is, wanted);
}

static void what_is_kept_whole_is_exact_or_compressed(void **state) {
    (void)state;
    struct terse_token_share s[PARTS];
    map_of("f16", s);
    for (size_t i = 0; i < PARTS; i++) near(s[i].exact, 1);
    map_of("q8_0", s);
    near(s[0].exact, 4.0f / 64); /* attention sinks */
    for (size_t i = 1; i < PARTS - 2; i++) near(s[i].compressed, 1);
    near(s[PARTS - 1].exact, 1); /* the window */
    for (size_t i = 0; i < PARTS; i++) near(s[i].read, 1);
}

static void anchors_are_exact(void **state) {
    (void)state;
    struct terse_token_share s[PARTS];
    float exact = 0;
    map_of("antkv-1", s);
    for (size_t i = 0; i < PARTS - 2; i++) exact += 64 * s[i].exact;
    assert_true(exact > 4 && exact < 4 + 16); /* sinks and 1 % of the prompt */
    for (size_t i = 0; i < PARTS; i++) near(s[i].evicted, 0);
}

static void what_was_evicted(void **state) {
    (void)state;
    struct terse_token_share s[PARTS];
    map_of("streaming-128", s); /* 4 sinks, 124 newest tokens */
    near(s[0].exact, 4.0f / 64);
    for (size_t i = 1; i < PARTS - 2; i++) near(s[i].evicted, 1);
    near(s[PARTS - 1].exact, 1);
    map_of("snapkv-128", s);
    float kept = 0;
    for (size_t i = 0; i < PARTS; i++) kept += 64 * s[i].exact;
    assert_true(kept > 120 && kept < 200);
}

static void an_index_passes_tokens_over(void **state) {
    (void)state;
    struct terse_token_share s[PARTS];
    float read = 0;
    map_of("quest-64", s);
    for (size_t i = 0; i < PARTS; i++) read += 64 * s[i].read;
    assert_true(read > 64 && read < 64 + 2 * 64 + 16);
    near(s[PARTS - 1].read, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_kept_whole_is_exact_or_compressed),
                                       cmocka_unit_test(anchors_are_exact), cmocka_unit_test(what_was_evicted),
                                       cmocka_unit_test(an_index_passes_tokens_over)};
    return cmocka_run_group_tests(tests, make_engine, free_engine);
}
