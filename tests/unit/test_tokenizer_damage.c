/* Vocabularies that contradict themselves: one line that says what, never a crash. */
#include "base/memory.h"
#include "support/tokenizer_sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A sound vocabulary of either kind, one key of which a case leaves out or writes itself. */
static const char *const spm_tokens[] = {"<unk>", "<s>", "</s>", "a", "b", "ab"};
static const char *const bpe_tokens[] = {"a", "b", "ab", "<s>"};

static void write_spm(struct gguf_writer *w, const char *without) {
    if (strcmp(without, "model") != 0) gguf_writer_string(w, "tokenizer.ggml.model", "llama");
    if (strcmp(without, "tokens") != 0) gguf_writer_strings(w, "tokenizer.ggml.tokens", 6, spm_tokens);
    if (strcmp(without, "scores") != 0) gguf_writer_array(w, "tokenizer.ggml.scores", GGUF_F32, 6, (float[6]){0});
    if (strcmp(without, "types") != 0)
        gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, 6, (int32_t[]){2, 3, 3, 1, 1, 1});
}

static void write_bpe(struct gguf_writer *w, const char *without) {
    if (strcmp(without, "model") != 0) gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    if (strcmp(without, "pre") != 0) gguf_writer_string(w, "tokenizer.ggml.pre", "gpt-2");
    if (strcmp(without, "tokens") != 0) gguf_writer_strings(w, "tokenizer.ggml.tokens", 4, bpe_tokens);
    if (strcmp(without, "merges") != 0) gguf_writer_strings(w, "tokenizer.ggml.merges", 1, (const char *const[]){"a b"});
}

/* Opening fails with `status` and one line that has `part`. */
static void refused(struct gguf_writer *w, enum terse_status status, const char *part) {
    struct tokenizer_sample s;
    struct terse_error error = {0};
    assert_int_equal(tokenizer_sample_open(w, &s, &error), status);
    assert_int_equal(error.code, status);
    assert_null(s.tokenizer);
    if (!strstr(error.message, part)) fail_msg("'%s' does not speak of '%s'", error.message, part);
    assert_null(strchr(error.message, '\n'));
    *w = (struct gguf_writer){0};
    tokenizer_sample_close(&s);
}

/* Opening works, and so does tokenizing. */
static void accepted(struct gguf_writer *w) {
    struct tokenizer_sample s;
    struct terse_error error = {0};
    size_t n;
    if (tokenizer_sample_open(w, &s, &error)) fail_msg("%s", error.message);
    free(tokenizer_sample_encode(&s, "abba <s>\xff", 9, 3, &n));
    *w = (struct gguf_writer){0};
    tokenizer_sample_close(&s);
}

static void test_sound_ones_are_accepted(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    write_spm(&w, "");
    accepted(&w);
    write_spm(&w, "types");
    accepted(&w);
    write_bpe(&w, "");
    accepted(&w);
    write_bpe(&w, "pre");
    accepted(&w);
    write_bpe(&w, "merges");
    gguf_writer_strings(&w, "tokenizer.ggml.merges", 0, NULL);
    accepted(&w);
    write_bpe(&w, "merges");
    gguf_writer_strings(&w, "tokenizer.ggml.merges", 3, (const char *const[]){"a b", "a b", "a b"});
    accepted(&w);
}

static void test_kinds(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    write_spm(&w, "model");
    refused(&w, TERSE_E_FORMAT, "tokenizer.ggml.model");
    write_spm(&w, "model");
    gguf_writer_string(&w, "tokenizer.ggml.model", "bert");
    refused(&w, TERSE_E_UNSUPPORTED, "\"bert\"; terse knows gpt2");
    write_spm(&w, "model");
    gguf_writer_string(&w, "tokenizer.ggml.model", "\n\x1b[2J");
    refused(&w, TERSE_E_UNSUPPORTED, "\\n");
    write_spm(&w, "model");
    gguf_writer_u32(&w, "tokenizer.ggml.model", 1);
    refused(&w, TERSE_E_FORMAT, "tokenizer.ggml.model");
    write_bpe(&w, "pre");
    gguf_writer_string(&w, "tokenizer.ggml.pre", "poro-chat");
    refused(&w, TERSE_E_UNSUPPORTED, "\"poro-chat\"");
    write_bpe(&w, "pre");
    gguf_writer_u32(&w, "tokenizer.ggml.pre", 1);
    refused(&w, TERSE_E_FORMAT, "tokenizer.ggml.pre");
}

static void test_tokens(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    write_bpe(&w, "tokens");
    refused(&w, TERSE_E_FORMAT, "tokenizer.ggml.tokens");
    write_bpe(&w, "tokens");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", 0, NULL);
    refused(&w, TERSE_E_FORMAT, "0 tokens");
    write_bpe(&w, "tokens");
    gguf_writer_array(&w, "tokenizer.ggml.tokens", GGUF_U32, 2, (uint32_t[2]){0});
    refused(&w, TERSE_E_FORMAT, "tokenizer.ggml.tokens");
    write_bpe(&w, "tokens");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", 5, (const char *const[]){"a", "b", "ab", "c", "ab"});
    refused(&w, TERSE_E_FORMAT, "tokens 2 and 4 have the same text");
    /* Tokens without a text are not alike: nothing is. */
    write_bpe(&w, "tokens");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", 5, (const char *const[]){"a", "", "ab", "", "b"});
    accepted(&w);
}

static void test_arrays(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    write_spm(&w, "types");
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 5, (int32_t[5]){0});
    refused(&w, TERSE_E_FORMAT, "token_type has 5 entries for 6 tokens");
    write_spm(&w, "types");
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_F32, 6, (float[6]){0});
    refused(&w, TERSE_E_FORMAT, "tokenizer.ggml.token_type");
    write_spm(&w, "types"); /* numbers without a meaning are ordinary tokens */
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 6, (int32_t[]){-1, 0, 7, INT32_MAX, INT32_MIN, 259});
    accepted(&w);
    write_spm(&w, "types"); /* byte tokens that name no byte */
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 6, (int32_t[]){6, 6, 6, 6, 6, 6});
    accepted(&w);
    write_spm(&w, "scores");
    refused(&w, TERSE_E_FORMAT, "tokenizer.ggml.scores");
    write_spm(&w, "scores");
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, 7, (float[7]){0});
    refused(&w, TERSE_E_FORMAT, "scores has 7 entries for 6 tokens");
    write_spm(&w, "scores");
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, 6, (float[]){NAN, -NAN, INFINITY, -INFINITY, NAN, NAN});
    accepted(&w);
}

static void test_merges(void **state) {
    (void)state;
    static const char *const bad[] = {"ab", "", " ", "a ", " b", "a  b", "a c", "c a", "b a", "a b c", "ab ab"};
    struct gguf_writer w = {0};
    write_bpe(&w, "merges");
    refused(&w, TERSE_E_FORMAT, "tokenizer.ggml.merges");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_bpe(&w, "merges");
        gguf_writer_strings(&w, "tokenizer.ggml.merges", 2, (const char *const[]){"a b", bad[i]});
        refused(&w, TERSE_E_FORMAT, "entry 1");
    }
}

static void test_special_ids(void **state) {
    (void)state;
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id", "tokenizer.ggml.unknown_token_id"};
    struct gguf_writer w = {0};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        for (int k = 0; k < 2; k++) {
            write_spm(&w, "");
            gguf_writer_u32(&w, keys[i], k ? UINT32_MAX : 6);
            refused(&w, TERSE_E_FORMAT, keys[i]);
        }
        write_spm(&w, "");
        gguf_writer_value(&w, keys[i], GGUF_I32, &(int32_t){-1}, 4);
        refused(&w, TERSE_E_FORMAT, keys[i]);
        write_spm(&w, "");
        gguf_writer_u32(&w, keys[i], 5);
        accepted(&w);
    }
    write_bpe(&w, "");
    gguf_writer_bool(&w, "tokenizer.ggml.add_bos_token", true);
    refused(&w, TERSE_E_FORMAT, "add_bos_token");
    write_bpe(&w, "");
    gguf_writer_bool(&w, "tokenizer.ggml.add_eos_token", true);
    refused(&w, TERSE_E_FORMAT, "add_eos_token");
    /* The ids that SentencePiece vocabularies usually have may be past the end of a small one. */
    gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", 1, (const char *const[]){"a"});
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, 1, (float[]){0});
    accepted(&w);
}

/* A control token is no ordinary text, even if merges make it. */
static void test_merging_to_a_control_token(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct gguf_writer w = {0};
        struct tokenizer_sample s;
        struct terse_error error = {0};
        size_t n;
        if (kind)
            write_spm(&w, "types");
        else
            write_bpe(&w, "");
        gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, kind ? 6 : 4,
                          kind ? (int32_t[]){2, 3, 3, 1, 1, 3} : (int32_t[]){1, 1, 3, 3});
        gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
        if (tokenizer_sample_open(&w, &s, &error)) fail_msg("%s", error.message);
        int32_t *tokens = tokenizer_sample_encode(&s, "ab", 2, TERSE_TOKENIZE_PLAIN, &n);
        assert_int_equal(n, 2);
        free(tokens);
        tokens = tokenizer_sample_encode(&s, "ab", 2, TERSE_TOKENIZE_PARSE_SPECIAL, &n);
        assert_int_equal(n, 1);
        free(tokens);
        tokenizer_sample_close(&s);
    }
}

/* Files with bytes changed at random: what the container's reader lets through must not harm. */
static void test_flipped_bytes(void **state) {
    (void)state;
    srand(6);
    for (int kind = 0; kind < 2; kind++) {
        struct gguf_writer w = {0};
        size_t size, n, opened = 0;
        if (kind)
            write_spm(&w, "");
        else
            write_bpe(&w, "");
        gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", 1);
        gguf_writer_string(&w, "tokenizer.chat_template", "[INST]");
        unsigned char *file = gguf_writer_build(&w, &size), *copy = memory_array(size, 1);
        gguf_writer_free(&w);
        assert_true(file && copy);
        for (int round = 0; round < 6000; round++) {
            struct tokenizer_sample s = {0};
            struct terse_error error = {0};
            memcpy(copy, file, size);
            for (int flips = 1 + rand() % 3; flips > 0; flips--) copy[(size_t)rand() % size] ^= (unsigned char)(1 << rand() % 8);
            if (!gguf_open(copy, size, "flipped", &s.gguf, &error) && !tokenizer_new(s.gguf, &s.tokenizer, &error)) {
                opened++;
                free(tokenizer_sample_encode(&s, "abba <s>\xff", 9, 3, &n));
            } else {
                assert_true(error.message[0] && !strchr(error.message, '\n'));
            }
            tokenizer_sample_close(&s);
        }
        assert_true(opened > 500);
        memory_free(file);
        memory_free(copy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound_ones_are_accepted),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_special_ids),
        cmocka_unit_test(test_merging_to_a_control_token),
        cmocka_unit_test(test_flipped_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
