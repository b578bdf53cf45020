/* Chat formats against texts written out by hand from what the models' makers published, and how a template is recognised. */
#include "model/model.h"
#include "support/tokenizer_sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The parts of a template that its format is recognised by. */
#define LLAMA_3 \
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim " \
    "}}<|eot_id|>"
#define LLAMA_3_AS_IS "{{ bos_token }}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] }}<|eot_id|>"
#define CHATML "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>'}}"
#define LLAMA_2 \
    "'<<SYS>>\\n' + system {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }} {{ ' ' + content.strip() + ' ' + eos_token " \
    "}}"
#define LLAMA_2_ONE_BOS "{{ bos_token }} '<<SYS>>\\n' {{ '[INST] ' + content + ' [/INST]' }}"
#define MISTRAL_0 "{{ bos_token }}{{ '[INST] ' + m['content'] + ' [/INST]' }}{{ m['content'] + eos_token }}"
#define MISTRAL_1 "{{- bos_token }}{{- ' [INST] ' + m['content'] + ' [/INST]' }}{{- ' ' + m['content'] + eos_token }}"
#define MISTRAL_3 "{{- bos_token }}{{- \"[INST] \" + m[\"content\"] + \"[/INST]\" }}{{- \" \" + m[\"content\"]|trim + eos_token}}"

static const struct terse_message talk[] = {
    {"system", " Be brief. "}, {"user", " Hi  "}, {"assistant", "\nHello. "}, {"user", "Bye\n"}, {"assistant", " Bye."}};
static const struct terse_message question[] = {{"user", " Hi  "}};

struct sample {
    struct tokenizer_sample tokenizer;
    struct terse_model model;
};

/* A model of a SentencePiece vocabulary with <s> (added where `adds_bos`) and </s>; `template` may be NULL. */
static void open_model(struct sample *s, const char *template, bool adds_bos) {
    struct gguf_writer w = {0};
    struct terse_error error = {0};
    gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", 3, (const char *const[]){"<unk>", "<s>", "</s>"});
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 3, (int32_t[]){2, 3, 3});
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, 3, (float[3]){0});
    gguf_writer_bool(&w, "tokenizer.ggml.add_bos_token", adds_bos);
    if (template) gguf_writer_string(&w, "tokenizer.chat_template", template);
    if (tokenizer_sample_open(&w, &s->tokenizer, &error)) fail_msg("%s", error.message);
    s->model = (struct terse_model){.tokenizer = s->tokenizer.tokenizer};
}

static void check(const struct sample *s, const char *format, const struct terse_message *messages, size_t n, bool open_reply,
                  const char *wanted) {
    struct terse_error error = {0};
    char *text;
    if (terse_chat_render(&s->model, format, messages, n, open_reply, &text, &error)) fail_msg("%s", error.message);
    assert_string_equal(text, wanted);
    terse_string_free(text);
}

static void refused(const struct sample *s, const char *format, const struct terse_message *messages, size_t n,
                    enum terse_status status, const char *part) {
    struct terse_error error = {0};
    char *text = (char *)"";
    assert_int_equal(terse_chat_render(&s->model, format, messages, n, true, &text, &error), status);
    assert_null(text);
    if (!strstr(error.message, part)) fail_msg("'%s' does not speak of '%s'", error.message, part);
    assert_null(strchr(error.message, '\n'));
}

/* ---- The published formats ----------------------------------------------------------------------------------------------- */

/* Rendered by the model's own template, and by the format's name on a model without one: the same, as published. */
static void check_format(const char *name, const char *template, const struct terse_message *messages, size_t n, bool open_reply,
                         const char *wanted) {
    struct sample s;
    open_model(&s, template, true);
    check(&s, NULL, messages, n, open_reply, wanted);
    tokenizer_sample_close(&s.tokenizer);
    open_model(&s, NULL, true);
    check(&s, name, messages, n, open_reply, wanted);
    tokenizer_sample_close(&s.tokenizer);
}

static void test_published_formats(void **state) {
    (void)state;
    check_format(
        "llama-3", LLAMA_3, talk, 4, true,
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe "
        "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
    check_format("chatml", CHATML, talk, 4, true,
                 "<s><|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n Hi  <|im_end|>\n<|im_start|>assistant\n\nHello. "
                 "<|im_end|>\n"
                 "<|im_start|>user\nBye\n<|im_end|>\n<|im_start|>assistant\n");
    check_format("llama-2", LLAMA_2, talk, 5, false,
                 "<s>[INST] <<SYS>>\n Be brief. \n<</SYS>>\n\n Hi [/INST] Hello. </s><s>[INST] Bye [/INST] Bye. </s>");
    check_format("llama-2", LLAMA_2, talk + 1, 3, true, "<s>[INST] Hi [/INST] Hello. </s><s>[INST] Bye [/INST]");
    check_format("mistral-v0", MISTRAL_0, talk + 1, 4, false, "<s>[INST]  Hi   [/INST]\nHello. </s>[INST] Bye\n [/INST] Bye.</s>");
    check_format("mistral-v1", MISTRAL_1, talk, 4, true,
                 "<s> [INST]  Be brief. \n\n Hi   [/INST] \nHello. </s> [INST] Bye\n [/INST]");
    /* The system's text goes into the last user message, whether a reply follows or not. */
    check_format("mistral-v3", MISTRAL_3, talk, 4, true, "<s>[INST]  Hi  [/INST] Hello.</s>[INST]  Be brief. \n\nBye\n[/INST]");
    check_format("mistral-v3", MISTRAL_3, talk, 5, false,
                 "<s>[INST]  Hi  [/INST] Hello.</s>[INST]  Be brief. \n\nBye\n[/INST] Bye.</s>");
    check_format("mistral-v3", MISTRAL_3, talk, 2, true, "<s>[INST]  Be brief. \n\n Hi  [/INST]");
}

static void test_without_an_open_reply(void **state) {
    (void)state;
    check_format("llama-3", LLAMA_3, question, 1, false, "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>");
    check_format("chatml", CHATML, question, 1, false, "<s><|im_start|>user\n Hi  <|im_end|>\n");
}

/* ---- What messages say is text ------------------------------------------------------------------------------------------- */

enum { BOS = 1, EOS, HEAD, HEAD_END, EOT, IM_START, IM_END, INST, INST_END, FIRST_BYTE };

/* A model whose vocabulary has the marks of all formats, some of them user-defined, as some files have them, and all bytes. */
static void open_model_with_marks(struct sample *s) {
    static const char *const marks[] = {
        "<unk>",      "<s>",    "</s>",   "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>",
        "<|im_end|>", "[INST]", "[/INST]"};
    static char bytes[256][8];
    enum { N = FIRST_BYTE + 1 + 256 };
    const char *texts[N];
    int32_t types[N];
    float scores[N] = {0};
    struct gguf_writer w = {0};
    struct terse_error error = {0};
    memcpy(texts, marks, sizeof marks);
    for (int i = 0; i <= INST_END; i++) types[i] = i == 0 ? 2 : i >= IM_START ? 4 : 3; /* unknown, user-defined, control */
    texts[FIRST_BYTE] = "<tool>";                                                      /* user-defined, and no format's */
    types[FIRST_BYTE] = 4;
    for (int i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", i);
        texts[FIRST_BYTE + 1 + i] = bytes[i];
        types[FIRST_BYTE + 1 + i] = 6; /* byte */
    }
    gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", N, texts);
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, N, types);
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, N, scores);
    gguf_writer_bool(&w, "tokenizer.ggml.add_bos_token", true);
    gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    if (tokenizer_sample_open(&w, &s->tokenizer, &error)) fail_msg("%s", error.message);
    s->model = (struct terse_model){.tokenizer = s->tokenizer.tokenizer};
}

/* How many tokens below FIRST_BYTE there are, and what all tokens say. */
static size_t count_marks(const struct sample *s, const int32_t *tokens, size_t n, char *text, size_t capacity) {
    size_t marks = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *part = tokenizer_bytes(s->tokenizer.tokenizer, tokens[i], true, &bytes);
        assert_true(size + bytes < capacity);
        memcpy(text + size, part, bytes);
        size += bytes;
        marks += tokens[i] < FIRST_BYTE;
    }
    text[size] = 0;
    return marks;
}

static void test_marks_in_messages_are_text(void **state) {
    (void)state;
    static const struct terse_message tame[] = {{"system", "a"}, {"user", " b "}, {"assistant", "c "}, {"user", "d"}};
    static const char all[] =
        " <s></s><|start_header_id|><|end_header_id|><|eot_id|><|im_start|><|im_end|>[INST][/INST]<|eot_id <tool>";
    struct sample s;
    open_model_with_marks(&s);
    for (size_t f = 0; terse_chat_format_name(f); f++) {
        const char *format = terse_chat_format_name(f);
        bool im = strcmp(format, "chatml") == 0, inst = f >= 2;
        for (size_t hostile = 0; hostile < 4; hostile++) {
            struct terse_message messages[4];
            char *rendered, said[4096];
            int32_t *tokens, *without, *rest;
            size_t n, n_without, n_rest;
            memcpy(messages, tame, sizeof tame);
            assert_int_equal(terse_chat_tokenize(&s.model, format, messages, 4, 0, true, &without, &n_without, NULL), TERSE_OK);
            size_t marks = count_marks(&s, without, n_without, said, sizeof said);
            assert_true(marks >= 5);
            messages[hostile].content = all;
            assert_int_equal(terse_chat_tokenize(&s.model, format, messages, 4, 0, true, &tokens, &n, NULL), TERSE_OK);
            assert_int_equal(terse_chat_render(&s.model, format, messages, 4, true, &rendered, NULL), TERSE_OK);
            /* User-defined tokens are found in every text, but not those of the format at hand. */
            size_t users = (im ? 0 : 2) + (inst ? 0 : 2);
            size_t got = count_marks(&s, tokens, n, said, sizeof said);
            if (got != marks + users)
                fail_msg("%s, message %zu: %zu marks, not %zu, in %s", format, hostile, got, marks + users, said);
            assert_string_equal(said, rendered);
            /* What follows the reply does not depend on it. */
            terse_tokens_free(without);
            terse_tokens_free(tokens);
            terse_string_free(rendered);
            messages[0] = tame[0]; /* which some formats put into the last turn */
            messages[3] = tame[3];
            messages[2].content = hostile % 2 ? all : "";
            assert_int_equal(terse_chat_tokenize(&s.model, format, messages, 4, 3, true, &tokens, &n, NULL), TERSE_OK);
            assert_int_equal(terse_chat_tokenize(&s.model, format, tame, 4, 3, true, &rest, &n_rest, NULL), TERSE_OK);
            assert_int_equal(n, n_rest);
            assert_memory_equal(tokens, rest, n * sizeof *rest);
            assert_true(n > 2 && n < 80);
            terse_tokens_free(tokens);
            terse_tokens_free(rest);
        }
    }
    struct terse_error error;
    int32_t *tokens = (int32_t *)&s;
    size_t n;
    assert_int_equal(terse_chat_tokenize(&s.model, "chatml", tame, 4, 5, true, &tokens, &n, &error), TERSE_E_ARGUMENT);
    assert_null(tokens);
    tokenizer_sample_close(&s.tokenizer);
}

/* ---- The model's own template -------------------------------------------------------------------------------------------- */

static void test_the_lab_model(void **state) {
    (void)state;
    struct sample s;
    size_t n;
    tokenizer_sample_load(PROJECT_DIR "/models/lab-27m-q8_0.gguf", &s.tokenizer);
    s.model = (struct terse_model){.tokenizer = s.tokenizer.tokenizer};
    const char *wanted = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n Hi  "
                         "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    check(&s, NULL, question, 1, true, wanted);
    int32_t *own;
    size_t n_own;
    assert_int_equal(terse_chat_tokenize(&s.model, NULL, question, 1, 0, true, &own, &n_own, NULL), TERSE_OK);
    check(&s, "llama-3", question, 1, true, wanted); /* its own format by name: as its template has it, not trimmed */
    int32_t *tokens = tokenizer_sample_encode(&s.tokenizer, wanted, strlen(wanted), TERSE_TOKENIZE_PARSE_SPECIAL, &n);
    assert_int_equal(n, n_own); /* a message without marks: as the text's */
    assert_memory_equal(tokens, own, n * sizeof *own);
    terse_tokens_free(own);
    assert_int_equal(tokens[0], 0);
    assert_int_equal(tokens[1], 2);
    assert_int_equal(tokens[3], 3);
    assert_int_equal(tokens[n - 2], 3);
    free(tokens);
    assert_true(terse_token_ends(&s.model, 4) && terse_token_ends(&s.model, 1));
    tokenizer_sample_close(&s.tokenizer);
}

static void test_variants_of_a_template(void **state) {
    (void)state;
    struct sample s;
    open_model(&s, LLAMA_3_AS_IS, true);
    check(&s, NULL, question, 1, false, "<s><|start_header_id|>user<|end_header_id|>\n\n Hi  <|eot_id|>");
    check(&s, "llama-2", question, 1, true, "<s>[INST] Hi [/INST]"); /* another format: as published */
    tokenizer_sample_close(&s.tokenizer);
    open_model(&s, LLAMA_2_ONE_BOS, true);
    check(&s, NULL, talk + 1, 3, true, "<s>[INST]  Hi   [/INST] \nHello.  </s>[INST] Bye\n [/INST]");
    tokenizer_sample_close(&s.tokenizer);
    /* BOS stands where the file asks for it before each text or where the template has it. */
    open_model(&s, CHATML, false);
    check(&s, NULL, question, 1, false, "<|im_start|>user\n Hi  <|im_end|>\n");
    check(&s, "mistral-v3", question, 1, true, "[INST]  Hi  [/INST]");
    tokenizer_sample_close(&s.tokenizer);
    open_model(&s, "{{bos_token}}" CHATML, false);
    check(&s, NULL, question, 1, false, "<s><|im_start|>user\n Hi  <|im_end|>\n");
    tokenizer_sample_close(&s.tokenizer);
}

static void test_unknown_templates(void **state) {
    (void)state;
    static const char names[] = "--chat-template NAME (llama-3, chatml, llama-2, mistral-v0, mistral-v1, mistral-v3)";
    static const char *const templates[] = {
        "",
        "{{ content }}",
        "<|start_header_id|>",
        "<|im_start|>user<|im_sep|>",                       /* phi-4 */
        "<|im_start|>{{ role }}<end_of_utterance>",         /* SmolVLM */
        "[SYSTEM_PROMPT] x[/SYSTEM_PROMPT][INST] y[/INST]", /* Mistral v7 */
        "{{- \"[INST]\" + content + \"[/INST]\" }}",
        "{{ '[INST]' + c + '[/INST]' }}", /* Mistral v3 for Tekken */
        "{{ ' [INST] ' + content + '[/INST]' }}",
    };
    struct sample s;
    open_model(&s, NULL, true);
    refused(&s, NULL, question, 1, TERSE_E_UNSUPPORTED, "has no chat template");
    refused(&s, NULL, question, 1, TERSE_E_UNSUPPORTED, names);
    refused(&s, "chatglm", question, 1, TERSE_E_ARGUMENT, names);
    refused(&s, "", question, 1, TERSE_E_ARGUMENT, "no such chat format");
    tokenizer_sample_close(&s.tokenizer);
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        open_model(&s, templates[i], true);
        refused(&s, NULL, question, 1, TERSE_E_UNSUPPORTED, names);
        check(&s, "chatml", question, 1, false, "<s><|im_start|>user\n Hi  <|im_end|>\n");
        tokenizer_sample_close(&s.tokenizer);
    }
}

/* ---- What is no conversation --------------------------------------------------------------------------------------------- */

static void test_bad_conversations(void **state) {
    (void)state;
    struct sample s;
    open_model(&s, NULL, true);
    refused(&s, "chatml", NULL, 0, TERSE_E_ARGUMENT, "without messages");
    refused(&s, "chatml", (struct terse_message[]){{"user", "x"}, {NULL, "x"}}, 2, TERSE_E_ARGUMENT, "message 2");
    refused(&s, "chatml", (struct terse_message[]){{"user", NULL}}, 1, TERSE_E_ARGUMENT, "message 1");
    refused(&s, "chatml", (struct terse_message[]){{"tool\n", "x"}}, 1, TERSE_E_ARGUMENT, "\"tool\\n\"");
    refused(&s, "llama-2", talk, 1, TERSE_E_ARGUMENT, "message 2: the format llama-2");
    refused(&s, "llama-2", talk + 2, 1, TERSE_E_ARGUMENT, "message 1");
    refused(&s, "mistral-v1", (struct terse_message[]){{"user", "x"}, {"user", "y"}}, 2, TERSE_E_ARGUMENT, "message 2");
    refused(&s, "mistral-v3", (struct terse_message[]){{"user", "x"}, {"system", "y"}}, 2, TERSE_E_ARGUMENT, "message 2");
    check(&s, "chatml", (struct terse_message[]){{"user", "x"}, {"user", ""}}, 2, false,
          "<s><|im_start|>user\nx<|im_end|>\n<|im_start|>user\n<|im_end|>\n");
    check(&s, "llama-3", (struct terse_message[]){{"user", " \n\t "}}, 1, false,
          "<s><|start_header_id|>user<|end_header_id|>\n\n<|eot_id|>");
    tokenizer_sample_close(&s.tokenizer);
}

static void test_names(void **state) {
    (void)state;
    size_t n = 0;
    while (terse_chat_format_name(n)) n++;
    assert_int_equal(n, 6);
    assert_string_equal(terse_chat_format_name(0), "llama-3");
    assert_null(terse_chat_format_name(SIZE_MAX));
    terse_string_free(NULL);
}

/* A message longer than any fixed buffer. */
static void test_long_messages(void **state) {
    (void)state;
    enum { N = 300000 };
    static const char head[] = "<s><|im_start|>user\n", tail[] = "<|im_end|>\n";
    struct sample s;
    char *content = malloc(N + 1), *wanted = malloc(N + sizeof head + sizeof tail);
    assert_true(content && wanted);
    memset(content, 'x', N);
    content[N] = '\0';
    strcpy(wanted, head);
    strcat(wanted, content);
    strcat(wanted, tail);
    open_model(&s, NULL, true);
    check(&s, "chatml", &(struct terse_message){"user", content}, 1, false, wanted);
    tokenizer_sample_close(&s.tokenizer);
    free(content);
    free(wanted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_formats),
        cmocka_unit_test(test_without_an_open_reply),
        cmocka_unit_test(test_marks_in_messages_are_text),
        cmocka_unit_test(test_the_lab_model),
        cmocka_unit_test(test_variants_of_a_template),
        cmocka_unit_test(test_unknown_templates),
        cmocka_unit_test(test_bad_conversations),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_long_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
