/* Chat formats against texts written out by hand from what the models' makers published and against what jinja2 renders their templates to
 * (fixtures/chats.json), and how a template is recognised. */
#include "model/model.h"
#include "support/vocabulary_sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "base/mapped_file.h"

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

/* A last message of the assistant's, where its reply is to be written: the text ends with what it says, as it says it. */
static void test_a_reply_that_goes_on(void **state) {
    (void)state;
    static const struct terse_message begun[] = {{"system", "S"}, {"user", "Hi"}, {"assistant", " <think>?</think>Well, "}};
    check_format("chatml", CHATML, begun + 1, 2, true,
                 "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n <think>?</think>Well, ");
    check_format("llama-3", LLAMA_3, begun + 1, 2, true,
                 "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
                 " <think>?</think>Well, ");
    check_format("mistral-v3", MISTRAL_3, begun, 3, true, "<s>[INST] S\n\nHi[/INST]  <think>?</think>Well, ");
    struct sample s;
    open_model(&s, NULL, true);
    for (size_t f = 0; terse_chat_format_name(f); f++) {
        const char *name = terse_chat_format_name(f);
        char *closed, *open;
        assert_int_equal(terse_chat_render(&s.model, name, begun + 1, 2, true, &open, NULL), TERSE_OK);
        assert_string_equal(open + strlen(open) - strlen(begun[2].content), begun[2].content);
        /* An open reply is the beginning of what a closed one renders to. */
        const struct terse_message plain[] = {{"user", "Hi"}, {"assistant", "Well"}};
        terse_string_free(open);
        assert_int_equal(terse_chat_render(&s.model, name, plain, 2, true, &open, NULL), TERSE_OK);
        assert_int_equal(terse_chat_render(&s.model, name, plain, 2, false, &closed, NULL), TERSE_OK);
        assert_memory_equal(open, closed, strlen(open));
        terse_string_free(open);
        terse_string_free(closed);
    }
    tokenizer_sample_close(&s.tokenizer);
}

/* ---- What jinja2 renders ------------------------------------------------------------------------------------------------- */

enum { MOST_MESSAGES = 5 };

/* The messages of a row of a fixture: how many there are. */
static size_t row_messages(const cJSON *row, struct terse_message messages[MOST_MESSAGES]) {
    size_t n = 0;
    const cJSON *pair;
    cJSON_ArrayForEach(pair, cJSON_GetObjectItem(row, "messages")) {
        assert_true(n < MOST_MESSAGES);
        messages[n++] = (struct terse_message){cJSON_GetArrayItem(pair, 0)->valuestring, cJSON_GetArrayItem(pair, 1)->valuestring};
    }
    return n;
}

static void test_rendered_templates(void **state) {
    (void)state;
    struct mapped_file file;
    struct terse_error error = {0};
    if (mapped_file_open(TESTS_DIR "/fixtures/chats.json", &file, &error)) fail_msg("%s", error.message);
    cJSON *rows = cJSON_ParseWithLength(file.data, file.size), *row;
    assert_true(cJSON_GetArraySize(rows) >= 80);
    cJSON_ArrayForEach(row, rows) {
        struct terse_message messages[MOST_MESSAGES];
        struct sample s;
        size_t n = row_messages(row, messages);
        open_model(&s, NULL, cJSON_IsTrue(cJSON_GetObjectItem(row, "bos")));
        check(&s, cJSON_GetObjectItem(row, "format")->valuestring, messages, n, true,
              cJSON_GetObjectItem(row, "text")->valuestring);
        tokenizer_sample_close(&s.tokenizer);
    }
    cJSON_Delete(rows);
    mapped_file_close(&file);
}

/* ---- Default system texts ------------------------------------------------------------------------------------------------ */

/* Templates of the forms that bring one, and of those that seem to, against what jinja2 renders. */
static void test_default_system_texts(void **state) {
    (void)state;
    struct mapped_file file;
    struct terse_error error = {0};
    if (mapped_file_open(TESTS_DIR "/fixtures/chat_defaults.json", &file, &error)) fail_msg("%s", error.message);
    cJSON *rows = cJSON_ParseWithLength(file.data, file.size), *row;
    assert_true(cJSON_GetArraySize(rows) >= 50);
    cJSON_ArrayForEach(row, rows) {
        struct terse_message messages[MOST_MESSAGES];
        struct sample s;
        size_t n = row_messages(row, messages);
        open_model(&s, cJSON_GetObjectItem(row, "template")->valuestring, false);
        check(&s, NULL, messages, n, true, cJSON_GetObjectItem(row, "text")->valuestring);
        tokenizer_sample_close(&s.tokenizer);
    }
    cJSON_Delete(rows);
    mapped_file_close(&file);
}

#define CHATML_SAYING(text) \
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\n' + " text " + '<|im_end|>\\n' }}{% endif %}" CHATML

static void test_where_a_default_is_left_out(void **state) {
    (void)state;
    static const char without[] = "<|im_start|>user\n Hi  <|im_end|>\n",
                      with[] = "<|im_start|>system\nBe it.<|im_end|>\n<|im_start|>user\n Hi  <|im_end|>\n";
    static const struct terse_message silenced[] = {{"system", ""}, {"user", " Hi  "}};
    struct sample s;
    open_model(&s, CHATML_SAYING("'Be it.'"), false);
    check(&s, NULL, question, 1, false, with);
    check(&s, "chatml", question, 1, false, with); /* its own format by name */
    check(&s, "phi-3", question, 1, false, "<|user|>\n Hi  <|end|>\n");
    check(&s, NULL, silenced, 2, false, "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n Hi  <|im_end|>\n");
    tokenizer_sample_close(&s.tokenizer);
    /* These are not literals, or have unknown escapes. */
    static const char *const others[] = {CHATML_SAYING("'It is ' + strftime_now('%Y') + '.'"), CHATML_SAYING("text"),
                                         CHATML_SAYING("'\\x41'"), CHATML_SAYING("'Be it.")};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        open_model(&s, others[i], false);
        check(&s, NULL, question, 1, false, without);
        tokenizer_sample_close(&s.tokenizer);
    }
}

/* The text behind a message does not change with a default before the first. */
static void test_what_follows_a_reply_with_a_default(void **state) {
    (void)state;
    struct sample with, without;
    int32_t *tokens[2];
    size_t n[2];
    open_model(&with, CHATML_SAYING("'Be it.'"), false);
    open_model(&without, CHATML, false);
    assert_int_equal(terse_chat_tokenize(&with.model, NULL, talk + 1, 3, 2, true, &tokens[0], &n[0], NULL), TERSE_OK);
    assert_int_equal(terse_chat_tokenize(&without.model, NULL, talk + 1, 3, 2, true, &tokens[1], &n[1], NULL), TERSE_OK);
    assert_int_equal(n[0], n[1]);
    assert_true(n[0] > 0);
    assert_memory_equal(tokens[0], tokens[1], n[0] * sizeof *tokens[0]);
    terse_tokens_free(tokens[0]);
    terse_tokens_free(tokens[1]);
    tokenizer_sample_close(&with.tokenizer);
    tokenizer_sample_close(&without.tokenizer);
}

/* ---- What messages say is text ------------------------------------------------------------------------------------------- */

static void open_model_with_marks(struct sample *s, bool spm) {
    struct gguf_writer w = {0};
    struct terse_error error = {0};
    if (spm)
        vocabulary_sample_spm(&w, 0);
    else
        vocabulary_sample_bpe(&w, "llama-bpe");
    if (tokenizer_sample_open(&w, &s->tokenizer, &error)) fail_msg("%s", error.message);
    s->model = (struct terse_model){.tokenizer = s->tokenizer.tokenizer};
}

/* Returns how many tokens are marks, and writes the text of all tokens to text[capacity]. */
static size_t count_marks(const struct sample *s, const int32_t *tokens, size_t n, char *text, size_t capacity) {
    size_t marks = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *part = tokenizer_bytes(s->tokenizer.tokenizer, tokens[i], true, &bytes);
        assert_true(size + bytes < capacity);
        memcpy(text + size, part, bytes);
        size += bytes;
        marks += tokens[i] < VOCABULARY_SAMPLE_MARKS;
    }
    text[size] = 0;
    return marks;
}

/* Every mark there is, but what ends thoughts, which would take what is before it away. */
static const char *all_marks(void) {
    static char all[1024];
    strcpy(all, " ");
    for (size_t i = 0; i < VOCABULARY_SAMPLE_MARKS; i++) {
        const char *mark = vocabulary_sample_marks[i];
        if (strcmp(mark, "</think>") != 0 && strcmp(mark, "assistantfinal") != 0) strcat(strcat(all, mark), ".");
    }
    return all;
}

/* User-defined marks are found in every text, the longest first, but not those that the format has, which the tokens `tame` show. */
static size_t users_found(const char *text, const int32_t *tame, size_t n) {
    size_t users = 0, longest;
    for (; *text; text += longest ? longest : 1) {
        longest = 0;
        for (int32_t mark = VOCABULARY_SAMPLE_USER_DEFINED; mark < VOCABULARY_SAMPLE_MARKS; mark++) {
            bool formats = false;
            size_t length = strlen(vocabulary_sample_marks[mark]);
            for (size_t i = 0; i < n; i++) formats = formats || tame[i] == mark;
            if (!formats && length > longest && strncmp(text, vocabulary_sample_marks[mark], length) == 0) longest = length;
        }
        users += longest > 0;
    }
    return users;
}

static void check_hostile(const struct sample *s, const char *format, size_t hostile) {
    static const struct terse_message tame[] = {{"system", "a"}, {"user", " b "}, {"assistant", "c "}, {"user", "d"}};
    struct terse_message messages[4];
    char *rendered, said[8192];
    int32_t *tokens, *without;
    size_t n, n_without;
    memcpy(messages, tame, sizeof tame);
    assert_int_equal(terse_chat_tokenize(&s->model, format, messages, 4, 0, true, &without, &n_without, NULL), TERSE_OK);
    size_t marks = count_marks(s, without, n_without, said, sizeof said);
    assert_true(marks >= 5);
    messages[hostile].content = all_marks();
    assert_int_equal(terse_chat_tokenize(&s->model, format, messages, 4, 0, true, &tokens, &n, NULL), TERSE_OK);
    assert_int_equal(terse_chat_render(&s->model, format, messages, 4, true, &rendered, NULL), TERSE_OK);
    size_t users = users_found(all_marks(), without, n_without), got = count_marks(s, tokens, n, said, sizeof said);
    if (got != marks + users)
        fail_msg("%s, message %zu: %zu marks, not %zu + %zu, in %s", format, hostile, got, marks, users, said);
    assert_string_equal(said, rendered);
    terse_tokens_free(without);
    terse_tokens_free(tokens);
    terse_string_free(rendered);
    /* The tokens that follow the reply do not depend on it. */
    memcpy(messages, tame, sizeof tame);
    messages[2].content = hostile % 2 ? all_marks() : "";
    assert_int_equal(terse_chat_tokenize(&s->model, format, messages, 4, 3, true, &tokens, &n, NULL), TERSE_OK);
    assert_int_equal(terse_chat_tokenize(&s->model, format, tame, 4, 3, true, &without, &n_without, NULL), TERSE_OK);
    assert_int_equal(n, n_without);
    assert_memory_equal(tokens, without, n * sizeof *without);
    assert_true(n > 1 && n < 80);
    terse_tokens_free(tokens);
    terse_tokens_free(without);
}

static void test_marks_in_messages_are_text(void **state) {
    (void)state;
    struct sample s;
    for (int spm = 0; spm < 2; spm++) {
        open_model_with_marks(&s, spm);
        for (size_t f = 0; terse_chat_format_name(f); f++)
            for (size_t hostile = 0; hostile < 4; hostile++) check_hostile(&s, terse_chat_format_name(f), hostile);
        struct terse_error error;
        int32_t *tokens = (int32_t *)&s;
        size_t n;
        assert_int_equal(terse_chat_tokenize(&s.model, "chatml", question, 1, 2, true, &tokens, &n, &error), TERSE_E_ARGUMENT);
        assert_null(tokens);
        tokenizer_sample_close(&s.tokenizer);
    }
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

/* A template is told by what only its format has. */
static void test_recognised_templates(void **state) {
    (void)state;
#define DEEPSEEK_MARKS \
    "<\xef\xbd\x9cUser\xef\xbd\x9c>{{ '<\xef\xbd\x9c" \
    "Assistant\xef\xbd\x9c>"
    static const struct {
        const char *format, *template;
    } cases[] = {
        {"phi-4", "<|im_start|>user<|im_sep|>{{ content }}<|im_end|>"},
        {"qwen-3", "<|im_start|>assistant\\n</think>{% if enable_thinking is false %}<think>\\n\\n</think>"},
        {"qwen-3-thinking", "'<|im_start|>assistant\\n<think>\\n' content.split('</think>')"},
        {"mistral-v3-tekken", "{{ '[INST]' + c + '[/INST]' }}"},
        {"mistral-v3-tekken", "{{- \"[INST]\" + content + \"[/INST]\" }}"},
        {"mistral-v7", "'[SYSTEM_PROMPT] ' + system + '[/SYSTEM_PROMPT]' '[INST] ' + content + '[/INST]'"},
        {"mistral-v7-tekken", "'[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' '[INST]' + content + '[/INST]'"},
        {"gemma", "'<start_of_turn>' + role + content | trim + '<end_of_turn>'"},
        {"phi-3", "'<|user|>\\n' + content + '<|end|>\\n<|assistant|>\\n'"},
        {"phi-3", "'<|user|>' + '\\n' + content + '<|end|>' + '<|assistant|>' + '\\n'"},
        {"phi-3", "'<|user|>\n' + content + '<|end|>\n<|assistant|>\n'"},
        {"phi-4-mini", "'<|' + role + '|>' + content + '<|end|>' '<|assistant|>'"},
        {"command-r", "'<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>'"},
        {"gpt-oss", "'<|start|>assistant<|channel|>final<|message|>' + content + '<|end|>' '<|assistant|>'"},
        {"deepseek-coder", "'### Instruction:\\n' + content + '<|EOT|>'"},
        {"deepseek-v2", "'User: ' + content + 'Assistant: ' + content"},
        {"deepseek-v3", "'</think>' in content " DEEPSEEK_MARKS "' + content }}"},
        {"deepseek-r1", "'</think>' in content " DEEPSEEK_MARKS "<think>\\n' }}"},
        {"deepseek-v3.1", "{% if thinking %}" DEEPSEEK_MARKS "</think>' }}"},
        {"command-r7b", "<|START_OF_TURN_TOKEN|># System Preamble\nYour information cutoff date is June 2024.\n# Default Preamble\n"
                        "<|START_RESPONSE|>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sample own, named;
        char *text;
        open_model(&own, cases[i].template, false);
        open_model(&named, NULL, false);
        assert_int_equal(terse_chat_render(&named.model, cases[i].format, talk, 4, true, &text, NULL), TERSE_OK);
        check(&own, NULL, talk, 4, true, text);
        terse_string_free(text);
        tokenizer_sample_close(&own.tokenizer);
        tokenizer_sample_close(&named.tokenizer);
    }
}

static void test_unknown_templates(void **state) {
    (void)state;
    static const char names[] = "--chat-template NAME (llama-3, llama-3.1, chatml, llama-2, mistral-v0, mistral-v1, mistral-v3, ";
    static const char *const templates[] = {
        "",
        "{{ content }}",
        "<|start_header_id|>",
        "<|im_start|>{{ role }}<end_of_utterance>", /* SmolVLM */
        "[SYSTEM_PROMPT] x[/SYSTEM_PROMPT] [INST] y [/INST]",
        "{{ ' [INST] ' + content + '[/INST]' }}",
        "{{ '[INST]' + content + ' [/INST]' }}",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>", /* Command R7B */
        "<|start|>{{ role }}<|message|>",
        "{% if thinking %}<\xef\xbd\x9cUser\xef\xbd\x9c><\xef\xbd\x9c"
        "Assistant\xef\xbd\x9c>",             /* DeepSeek V3.1 */
        "<|user|>{{ content }}<|assistant|>", /* GLM */
    };
    struct sample s;
    open_model(&s, NULL, true);
    refused(&s, NULL, question, 1, TERSE_E_UNSUPPORTED, "has no chat template");
    refused(&s, NULL, question, 1, TERSE_E_UNSUPPORTED, names);
    refused(&s, "chatglm", question, 1, TERSE_E_ARGUMENT, names);
    refused(&s, "", question, 1, TERSE_E_ARGUMENT, "no such chat format");
    struct terse_chat_options options = terse_chat_options_defaults();
    struct terse_error error;
    char *text;
    options.template_text = CHATML; /* in the place of the model's */
    assert_int_equal(terse_chat_render_with(&s.model, &options, question, 1, &text, NULL), TERSE_OK);
    assert_string_equal(text, "<s><|im_start|>user\n Hi  <|im_end|>\n<|im_start|>assistant\n");
    terse_string_free(text);
    options.template_text = "[gMASK]<|user|>{{ a[0] }}<|user|>{{ b < c }}<think>";
    assert_int_equal(terse_chat_render_with(&s.model, &options, question, 1, &text, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "the chat template is none that terse knows, by its marks <|user|>, <think>: pass "));
    options.template_text = "{{ content }}";
    assert_int_equal(terse_chat_render_with(&s.model, &options, question, 1, &text, &error), TERSE_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "it has no marks"));
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
    assert_int_equal(n, 27);
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
        cmocka_unit_test(test_default_system_texts),
        cmocka_unit_test(test_where_a_default_is_left_out),
        cmocka_unit_test(test_what_follows_a_reply_with_a_default),
        cmocka_unit_test(test_a_reply_that_goes_on),
        cmocka_unit_test(test_rendered_templates),
        cmocka_unit_test(test_marks_in_messages_are_text),
        cmocka_unit_test(test_the_lab_model),
        cmocka_unit_test(test_variants_of_a_template),
        cmocka_unit_test(test_recognised_templates),
        cmocka_unit_test(test_unknown_templates),
        cmocka_unit_test(test_bad_conversations),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_long_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
