/* Every allocation of making a tokenizer, of tokenizing a text and of rendering and tokenizing a conversation is refused once: an error, and nothing leaks. */
#include "model/model.h"
#include "support/refusing_memory.h"
#include "support/vocabulary_sample.h"
#include "text/detokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct terse_message talk[] = {
    {"system", " Be brief. "}, {"user", "Hi <s> the and  the\n"}, {"assistant", "<think>?</think>Yes"}, {"user", "Why?"}};

struct trial {
    struct tokenizer_sample sample;
    struct tokenizer *made;
    struct terse_model model;
    const char *format, *text;
};

static enum terse_status load_it(struct trial *t, struct terse_error *error) {
    enum terse_status status = tokenizer_new(t->sample.gguf, &t->made, error);
    tokenizer_free(t->made);
    return status;
}

static enum terse_status encode_it(struct trial *t, struct terse_error *error) {
    int32_t tokens[4096];
    size_t n;
    return tokenizer_encode(t->sample.tokenizer, t->text, strlen(t->text), 3, tokens, 4096, &n, error);
}

static enum terse_status render_it(struct trial *t, struct terse_error *error) {
    char *text;
    enum terse_status status = terse_chat_render(&t->model, t->format, talk, 4, true, &text, error);
    assert_int_equal(status == TERSE_OK, text != NULL);
    terse_string_free(text);
    return status;
}

static enum terse_status tokenize_it(struct trial *t, struct terse_error *error) {
    int32_t *tokens;
    size_t n;
    enum terse_status status = terse_chat_tokenize(&t->model, t->format, talk, 4, 1, true, &tokens, &n, error);
    assert_int_equal(status == TERSE_OK, tokens != NULL);
    terse_tokens_free(tokens);
    return status;
}

static enum terse_status stream_it(struct trial *t, struct terse_error *error) {
    struct terse_detokenizer *d;
    enum terse_status status = detokenizer_new(t->sample.tokenizer, DETOKENIZER_ALL, NULL, &d, error);
    assert_int_equal(status == TERSE_OK, d != NULL);
    terse_detokenizer_free(d);
    return status;
}

/* Refuses one allocation after another until the call succeeds; returns how many it makes. */
static long refuse_each(enum terse_status (*call)(struct trial *t, struct terse_error *error), struct trial *t) {
    for (long i = 0;; i++) {
        struct terse_error error = {0};
        long before = blocks;
        asked = 0;
        allowed = i;
        enum terse_status status = call(t, &error);
        allowed = -1;
        assert_int_equal(blocks, before);
        if (!status) return i;
        assert_int_equal(status, TERSE_E_MEMORY);
        assert_int_equal(error.code, TERSE_E_MEMORY);
    }
}

static void every_refused_allocation_is_an_error(void **state) {
    (void)state;
    char text[2000];
    long refusals = 0;
    for (size_t i = 0; i + 8 < sizeof text; i += 8) memcpy(text + i, "a the\n .", 9); /* more tokens than are allocated at first */
    for (int spm = 0; spm < 2; spm++) {
        struct trial t = {.text = text};
        struct gguf_writer w = {0};
        if (spm)
            vocabulary_sample_spm(&w, 0);
        else
            vocabulary_sample_bpe(&w, "deepseek-llm");
        assert_int_equal(tokenizer_sample_open(&w, &t.sample, NULL), TERSE_OK);
        t.model = (struct terse_model){.tokenizer = t.sample.tokenizer};
        long loads = refuse_each(load_it, &t), encodes = refuse_each(encode_it, &t), streams = refuse_each(stream_it, &t),
             chats = 0;
        for (size_t f = 0; (t.format = terse_chat_format_name(f)); f++)
            chats += refuse_each(render_it, &t) + refuse_each(tokenize_it, &t);
        assert_true(loads >= 8 && encodes >= 4 && streams >= 3 && chats >= 100);
        refusals += loads + encodes + streams + chats;
        tokenizer_sample_close(&t.sample);
    }
    print_message("%ld refused allocations\n", refusals);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_refused_allocation_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
