/* Conversations with tools against what jinja2 renders Qwen 2.5's template to (fixtures/chat_tools.json), their tokens, what is refused, and the tool
 * calls that are found in replies. */
#include "model/model.h"
#include "support/vocabulary_sample.h"
#include "text/json_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "base/mapped_file.h"

enum { MOST_MESSAGES = 8 };

struct sample {
    struct tokenizer_sample tokenizer;
    struct terse_model model;
};

/* Opens a model whose vocabulary has <tool_call> as a user-defined token, as Qwen 2.5's; the templates may be NULL. */
static void open_model_with(struct sample *s, const char *template, const char *tools_template) {
    struct gguf_writer w = {0};
    struct terse_error error = {0};
    const char *tokens[256 + 5] = {"<s>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"};
    int32_t types[256 + 5] = {3, 3, 3, 4, 4};
    char bytes[256][8];
    float scores[256 + 5] = {0};
    for (int i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i);
        tokens[5 + i] = bytes[i];
        types[5 + i] = 6;
    }
    gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", 261, tokens);
    gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 261, types);
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, 261, scores);
    gguf_writer_bool(&w, "tokenizer.ggml.add_bos_token", false);
    gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    if (template) gguf_writer_string(&w, "tokenizer.chat_template", template);
    if (tools_template) gguf_writer_string(&w, "tokenizer.chat_template.tool_use", tools_template);
    if (tokenizer_sample_open(&w, &s->tokenizer, &error)) fail_msg("%s", error.message);
    s->model = (struct terse_model){.tokenizer = s->tokenizer.tokenizer};
}

static void open_model(struct sample *s, const char *template) { open_model_with(s, template, NULL); }

static void close_model(struct sample *s) { tokenizer_sample_close(&s->tokenizer); }

static char *rendered(const struct sample *s, const struct terse_chat_options *options, const struct terse_message *messages,
                      size_t n) {
    struct terse_error error = {0};
    char *text;
    if (terse_chat_render_with(&s->model, options, messages, n, &text, &error)) fail_msg("%s", error.message);
    return text;
}

static void refused(const struct sample *s, const struct terse_chat_options *options, const struct terse_message *messages,
                    size_t n, enum terse_status status, const char *part) {
    struct terse_error error = {0};
    char *text = (char *)"";
    assert_int_equal(terse_chat_render_with(&s->model, options, messages, n, &text, &error), status);
    assert_null(text);
    if (!strstr(error.message, part)) fail_msg("'%s' does not speak of '%s'", error.message, part);
    assert_null(strchr(error.message, '\n'));
}

#define TOOLS "[{\"type\": \"function\", \"function\": {\"name\": \"clock\"}}]"
static const struct terse_message question[] = {{"user", "Now?"}};

static struct terse_chat_options options_with(const char *format, const char *tools) {
    struct terse_chat_options options = terse_chat_options_defaults();
    options.format = format;
    options.tools = tools;
    return options;
}

/* ---- Conversations -------------------------------------------------------------------------------------------------------- */

static cJSON *read_fixture(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/fixtures/%s", TESTS_DIR, name);
    struct mapped_file file;
    struct terse_error error = {0};
    if (mapped_file_open(path, &file, &error)) fail_msg("%s", error.message);
    cJSON *fixture = cJSON_ParseWithLength(file.data, file.size);
    mapped_file_close(&file);
    assert_non_null(fixture);
    return fixture;
}

/* Writes what a template has made as this vocabulary has it: it adds no BOS, and its EOS is <|im_end|>. */
static const char *with_own_marks(const char *text, char *out) {
    size_t n = 0;
    for (text += strncmp(text, "<s>", 3) == 0 ? 3 : 0; *text; text++) {
        bool eos = strncmp(text, "</s>", 4) == 0;
        n += (size_t)sprintf(out + n, eos ? "<|im_end|>" : "%c", *text);
        if (eos) text += 3;
    }
    return out;
}

static void test_rendered_template(void **state) {
    (void)state;
    cJSON *fixture = read_fixture("chat_tools.json"), *row, *entry;
    struct sample s;
    open_model(&s, cJSON_GetObjectItem(fixture, "template")->valuestring);
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(fixture, "rows")) >= 9);
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(fixture, "rows")) {
        struct terse_message messages[MOST_MESSAGES];
        char *calls[MOST_MESSAGES] = {0};
        size_t n = 0;
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(row, "messages")) {
            const cJSON *made = cJSON_GetObjectItem(entry, "tool_calls");
            assert_true(n < MOST_MESSAGES);
            messages[n] = (struct terse_message){cJSON_GetObjectItem(entry, "role")->valuestring,
                                                 cJSON_GetObjectItem(entry, "content")->valuestring};
            if (made) calls[n] = cJSON_Print(made);
            n++;
        }
        struct terse_chat_options options = options_with(NULL, cJSON_GetObjectItem(row, "tools")->valuestring);
        options.tool_calls = (const char *const *)calls;
        char *text = rendered(&s, &options, messages, n);
        assert_string_equal(text, cJSON_GetObjectItem(row, "text")->valuestring);
        terse_string_free(text);
        for (size_t i = 0; i < n; i++) cJSON_free(calls[i]);
    }
    cJSON_Delete(fixture);
    close_model(&s);
}

/* The other formats, by their names, on a model without a template. */
static void test_rendered_formats(void **state) {
    (void)state;
    cJSON *rows = read_fixture("chat_tools_formats.json"), *row, *entry;
    struct sample plain, qwq;
    open_model(&plain, NULL);
    open_model(&qwq, "\"\\n\\n# Tools\" '<tool_call>' content.split('</think>') '<|im_start|>assistant\\n<think>\\n'");
    assert_true(cJSON_GetArraySize(rows) >= 200);
    cJSON_ArrayForEach(row, rows) {
        const char *format = cJSON_GetObjectItem(row, "format")->valuestring;
        bool is_qwq = strcmp(cJSON_GetObjectItem(row, "model")->valuestring, "QwQ") == 0; /* which its template alone tells */
        const struct sample s = is_qwq ? qwq : plain;
        struct terse_message messages[MOST_MESSAGES];
        char *calls[MOST_MESSAGES] = {0};
        const char *ids[MOST_MESSAGES] = {0}, *thoughts[MOST_MESSAGES] = {0};
        struct terse_chat_options options = options_with(is_qwq ? NULL : format, cJSON_GetObjectItem(row, "tools")->valuestring);
        struct terse_error error = {0};
        size_t n = 0;
        cJSON_ArrayForEach(entry, cJSON_GetObjectItem(row, "messages")) {
            const cJSON *made = cJSON_GetObjectItem(entry, "tool_calls");
            assert_true(n < MOST_MESSAGES);
            messages[n] = (struct terse_message){cJSON_GetObjectItem(entry, "role")->valuestring,
                                                 cJSON_GetObjectItem(entry, "content")->valuestring};
            if (made) calls[n] = cJSON_Print(made);
            ids[n] = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "tool_call_id"));
            thoughts[n++] = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "reasoning_content"));
        }
        options.tool_calls = (const char *const *)calls;
        options.tool_call_ids = ids;
        options.thoughts = thoughts;
        options.effort = cJSON_GetStringValue(cJSON_GetObjectItem(row, "reasoning_effort"));
        if (cJSON_HasObjectItem(row, "enable_thinking")) options.thinking = TERSE_THINKING_OFF;
        if (cJSON_HasObjectItem(row, "thinking")) options.thinking = TERSE_THINKING_ON;
        char *text, marked[16384];
        const char *wanted = with_own_marks(cJSON_GetObjectItem(row, "text")->valuestring, marked),
                   *title = cJSON_GetObjectItem(row, "title")->valuestring;
        if (terse_chat_render_with(&s.model, &options, messages, n, &text, &error)) {
            bool one_call = strcmp(format, "gpt-oss") == 0 &&
                            (strcmp(title, "two calls") == 0 || strcmp(title, "results in another order") == 0);
            if (!one_call || error.code != TERSE_E_UNSUPPORTED) fail_msg("%s, %s: %s", format, title, error.message);
        } else if (strcmp(wanted, text) != 0) {
            print_error("%s, %s:\n", format, title);
            assert_string_equal(text, wanted);
        }
        terse_string_free(text);
        for (size_t i = 0; i < n; i++) cJSON_free(calls[i]);
    }
    cJSON_Delete(rows);
    close_model(&plain);
    close_model(&qwq);
}

/* Arguments as OpenAI's clients send them, a string, are written like an object, with numbers as they are. */
static void test_arguments_in_a_string(void **state) {
    (void)state;
    static const struct terse_message messages[] = {{"user", "?"}, {"assistant", ""}};
    static const char *const calls[] = {
        NULL, "[{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\":1.50,\\n\\\"b\\\" :[]}\"}}]"};
    struct sample s;
    open_model(&s, NULL);
    struct terse_chat_options options = options_with("chatml", NULL);
    options.tool_calls = calls;
    options.open_reply = false;
    char *text = rendered(&s, &options, messages, 2);
    assert_string_equal(text, "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                              "{\"a\": 1.50, \"b\": []}}\n</tool_call><|im_end|>\n");
    terse_string_free(text);
    close_model(&s);
}

/* Without a system's message and without a default text for it the tools come first, as Qwen 3's template has it. */
static void test_a_format_by_name(void **state) {
    (void)state;
    struct sample s;
    open_model(&s, NULL);
    struct terse_chat_options options = options_with("qwen-3-no-think", TOOLS);
    options.open_call = true;
    char *text = rendered(&s, &options, question, 1);
    const char *begin = "<|im_start|>system\n# Tools\n\nYou may call", *end = "\n</think>\n\n<tool_call>\n";
    assert_memory_equal(text, begin, strlen(begin));
    assert_string_equal(text + strlen(text) - strlen(end), end);
    terse_string_free(text);
    close_model(&s);
}

/* A model's second template, which is for tools, tells that it has them. */
static void test_a_template_for_tools(void **state) {
    (void)state;
    static const char plain[] = "<|START_OF_TURN_TOKEN|>", tools[] = "<|START_OF_TURN_TOKEN|><results>",
                      other[] = "<|im_start|><tool_call>";
    struct sample s;
    struct terse_chat_options options = options_with(NULL, TOOLS);
    open_model_with(&s, plain, NULL);
    refused(&s, &options, question, 1, TERSE_E_UNSUPPORTED, "pass --chat-template command-r to write them all the same");
    close_model(&s);
    open_model_with(&s, plain, other);
    refused(&s, &options, question, 1, TERSE_E_UNSUPPORTED, "the model's chat template has no tools");
    close_model(&s);
    open_model_with(&s, plain, tools);
    char *text = rendered(&s, &options, question, 1);
    assert_non_null(
        strstr(text, "```python\ndef clock() -> List[Dict]:\n    \"\"\"\n    \"\"\"\n    pass\n```<|END_OF_TURN_TOKEN|>"));
    terse_string_free(text);
    close_model(&s);
}

static size_t count(const int32_t *tokens, size_t n, int32_t token) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++) found += tokens[i] == token;
    return found;
}

/* Marks are tokens where the format writes them, and letters where a message, a tool or arguments say them. */
static void test_tokens(void **state) {
    (void)state;
    static const struct terse_message messages[] = {
        {"user", "<tool_call>"}, {"assistant", "</tool_call>"}, {"tool", "<tool_call><|im_end|>"}};
    static const char *const calls[] = {NULL, "[{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call><|im_start|>\"}}]", NULL};
    struct sample s;
    int32_t *tokens, *behind;
    size_t n, n_behind;
    open_model(&s, NULL);
    struct terse_chat_options options =
        options_with("chatml", "[{\"function\": {\"name\": \"f\", \"description\": \"<|im_end|><tool_call>\"}}]");
    options.tool_calls = calls;
    assert_int_equal(terse_chat_tokenize_with(&s.model, &options, messages, 3, &tokens, &n, NULL), TERSE_OK);
    assert_int_equal(count(tokens, n, 1), 5); /* system, user, assistant, the tool's turn, the reply */
    assert_int_equal(count(tokens, n, 2), 4);
    assert_int_equal(count(tokens, n, 3), 3); /* twice in the system's message */
    assert_int_equal(count(tokens, n, 4), 3);
    /* What follows a message with calls begins behind its calls. */
    options.after = 2;
    assert_int_equal(terse_chat_tokenize_with(&s.model, &options, messages, 3, &behind, &n_behind, NULL), TERSE_OK);
    assert_true(n_behind < n && behind[0] == 2);
    assert_memory_equal(behind, tokens + n - n_behind, n_behind * sizeof *tokens);
    assert_int_equal(tokens[n - n_behind - 1], 4);
    terse_tokens_free(tokens);
    terse_tokens_free(behind);
    close_model(&s);
}

static void test_what_is_refused(void **state) {
    (void)state;
    static const struct terse_message result[] = {{"user", "?"}, {"tool", "1"}}, begun[] = {{"user", "?"}, {"assistant", "We"}};
    struct sample s;
    open_model(&s, "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>'}}");
    struct terse_chat_options options = options_with("phi-3", TOOLS);
    refused(&s, &options, question, 1, TERSE_E_UNSUPPORTED,
            "the format phi-3 has no tools in terse; those that have: llama-3.1, chatml, mistral-v3, mistral-v3-tekken, "
            "phi-4-mini, command-r, command-r7b, gpt-oss, gpt-oss-no-think, qwen-3, qwen-3-no-think, qwen-3-thinking, deepseek-v3, "
            "deepseek-v3.1");
    options.tools = NULL;
    refused(&s, &options, result, 2, TERSE_E_UNSUPPORTED, "phi-3");
    options = options_with(NULL, TOOLS);
    refused(&s, &options, question, 1, TERSE_E_UNSUPPORTED, "the model's chat template has no tools");
    options.tools = "[]";
    terse_string_free(rendered(&s, &options, question, 1)); /* no tools, so nothing that is missing */
    static const struct {
        const char *tools, *part;
        enum terse_status status;
    } bad[] = {{"", "no JSON array", TERSE_E_ARGUMENT},
               {"{}", "no JSON array", TERSE_E_ARGUMENT},
               {"[] x", "no JSON array", TERSE_E_ARGUMENT},
               {"[\"\xff\"]", "no JSON array", TERSE_E_ARGUMENT},
               {"[1]", "tool 1", TERSE_E_ARGUMENT},
               {"[{\"function\": {\"name\": \"f\"}}, {\"function\": {\"name\": \"\"}}]", "tool 2", TERSE_E_ARGUMENT},
               {"[{\"function\": {\"name\": \"a\\\"b\"}}]", "tool 1", TERSE_E_ARGUMENT},
               {"[{\"type\": \"web_search\"}]", "tool 1 is of another type", TERSE_E_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options = options_with("chatml", bad[i].tools);
        refused(&s, &options, question, 1, bad[i].status, bad[i].part);
    }
    options = options_with("chatml", NULL);
    static const char *const bad_calls[] = {"x",
                                            "{}",
                                            "[1]",
                                            "[{\"name\": \"f\"}]",
                                            "[{\"name\": \"f\", \"arguments\": \"[]\"}]",
                                            "[{\"name\": \"f\", \"arguments\": \"{\"}]",
                                            "[{\"arguments\": {}}]"};
    for (size_t i = 0; i < sizeof bad_calls / sizeof *bad_calls; i++) {
        options.tool_calls = (const char *const[]){NULL, bad_calls[i]};
        refused(&s, &options, begun, 2, TERSE_E_ARGUMENT, "message 2");
    }
    options.tool_calls = (const char *const[]){"[]", NULL};
    refused(&s, &options, begun, 2, TERSE_E_ARGUMENT, "message 1 has tool calls");
    options = options_with("chatml", TOOLS);
    options.open_call = true;
    refused(&s, &options, begun, 2, TERSE_E_ARGUMENT, "a reply that is a call");
    static const char *const two = "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]";
    struct terse_chat_options others = options_with("llama-3.1", NULL);
    others.tool_calls = (const char *const[]){NULL, two};
    refused(&s, &others, begun, 2, TERSE_E_UNSUPPORTED, "message 2 has 2 tool calls: the format llama-3.1 takes one a message");
    others = options_with("deepseek-r1", NULL);
    others.thinking = TERSE_THINKING_OFF;
    refused(&s, &others, question, 1, TERSE_E_UNSUPPORTED, "models of the format deepseek-r1 always think");
    others.thinking = (enum terse_thinking)3;
    refused(&s, &others, question, 1, TERSE_E_ARGUMENT, "there is no thinking 3");
    others = options_with("deepseek-v3.1", TOOLS);
    others.thinking = TERSE_THINKING_ON;
    refused(&s, &others, question, 1, TERSE_E_UNSUPPORTED, "the format deepseek-v3.1-thinking has no tools in terse");
    others = options_with("deepseek-r1", TOOLS);
    refused(&s, &others, question, 1, TERSE_E_UNSUPPORTED, "the format deepseek-r1 has no tools in terse");
    others = options_with("gpt-oss", NULL);
    others.effort = "most";
    refused(&s, &others, question, 1, TERSE_E_ARGUMENT, "\"high\"");
    others = options_with("chatml", NULL);
    others.effort = "low";
    refused(&s, &others, question, 1, TERSE_E_UNSUPPORTED, "the format chatml has no effort of thinking");
    others.effort = NULL;
    others.thinking = TERSE_THINKING_ON;
    refused(&s, &others, question, 1, TERSE_E_UNSUPPORTED, "models of the format chatml do not think");
    others.format = "gpt-oss";
    others.effort = "most";
    refused(&s, &others, question, 1, TERSE_E_ARGUMENT, "\"high\"");
    options.size--;
    refused(&s, &options, begun, 2, TERSE_E_ARGUMENT, "terse_chat_options_defaults()");
    close_model(&s);
}

/* ---- JSON text ------------------------------------------------------------------------------------------------------------ */

static void test_members(void **state) {
    (void)state;
    static const char text[] = "{ \"a\" :{\"b\": [1, \"}\"]} , \"b\":1e5,\"c\" : \"\\\"\", \"b\": 2 }";
    static const struct {
        const char *name, *value;
    } rows[] = {{"a", "{\"b\": [1, \"}\"]}"}, {"b", "1e5"}, {"c", "\"\\\"\""}, {"d", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct text_span found = json_member(text, strlen(text), rows[i].name);
        assert_int_equal(found.end - found.begin, strlen(rows[i].value));
        assert_memory_equal(text + found.begin, rows[i].value, found.end - found.begin);
    }
}

/* ---- Calls in replies ----------------------------------------------------------------------------------------------------- */

static struct terse_reply_reader *reader_of(const struct sample *s, const struct terse_chat_options *options) {
    struct terse_reply_reader *reader;
    struct terse_error error;
    if (terse_reply_reader_new(&s->model, options, &reader, &error)) fail_msg("%s", error.message);
    return reader;
}

/* Reads a reply that comes in pieces of `step` bytes. The result has its text, thoughts behind '~', then name and arguments of each call, behind '|'. */
static void read_reply(const struct sample *s, const struct terse_chat_options *options, const char *reply, size_t step,
                       char *result) {
    struct terse_reply_reader *reader = reader_of(s, options);
    struct terse_reply_piece piece;
    char thoughts[512] = "";
    size_t n, size = strlen(reply);
    *result = '\0';
    for (size_t at = 0; at <= size; at += step) {
        if (at + step <= size)
            assert_int_equal(terse_reply_reader_push(reader, reply + at, step, &piece, NULL), TERSE_OK);
        else
            assert_int_equal(terse_reply_reader_push(reader, reply + at, size - at, &piece, NULL), TERSE_OK);
        strncat(result, piece.text, piece.n_text);
        strncat(thoughts, piece.thoughts, piece.n_thoughts);
    }
    assert_int_equal(terse_reply_reader_finish(reader, &piece, NULL), TERSE_OK);
    strncat(result, piece.text, piece.n_text);
    strncat(thoughts, piece.thoughts, piece.n_thoughts);
    if (*thoughts) strcat(strcat(result, "~"), thoughts);
    const struct terse_tool_call *calls = terse_reply_reader_calls(reader, &n);
    for (size_t i = 0; i < n; i++) {
        strcat(strcat(result, "|"), calls[i].name);
        strcat(strcat(result, "|"), calls[i].arguments);
    }
    terse_reply_reader_free(reader);
}

static void check_reply(const struct sample *s, const struct terse_chat_options *options, const char *reply, const char *found) {
    char result[1024];
    for (size_t step = 1; step <= strlen(reply) + 1; step++) {
        read_reply(s, options, reply, step, result);
        assert_string_equal(result, found);
    }
}

static void test_calls_in_replies(void **state) {
    (void)state;
    static const struct {
        const char *reply, *found;
    } rows[] = {
        {"", ""},
        {"Hello. \n", "Hello. \n"},
        {"1 < 2 <tool", "1 < 2 <tool"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.0}}\n</tool_call>", "|f|{\"a\": 1.0}"},
        {"I look.\n<tool_call>{\"arguments\":{},\"name\":\"f\"}</tool_call>\n", "I look.|f|{}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\":\"g\",\"arguments\":{\"b\":\"</"
         "b>\"}}\n</tool_call>\n",
         "|f|{}|g|{\"b\":\"</b>\"}"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nDone.", "\nDone.|f|{}"},
        /* The reply's end ends a call. */
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n", "|f|{}"},
        /* Broken calls stay text, all of it. */
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}\n</tool_call> ",
         "<tool_call>\n{\"name\": \"f\", \"arguments\": {}\n</tool_call> "},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {", "<tool_call>{\"name\": \"f\", \"arguments\": {"},
        {"<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": []}</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": []}</tool_call>"},
        {"<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
         "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}} x</tool_call>",
         "<tool_call>{\"name\": \"f\", \"arguments\": {}} x</tool_call>"},
        {"<tool_call></tool_call>", "<tool_call></tool_call>"},
        {"a <tool_call> is <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "a <tool_call> is|f|{}"},
    };
    struct sample s;
    open_model(&s, NULL);
    const struct terse_chat_options options = options_with("chatml", TOOLS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_reply(&s, &options, rows[i].reply, rows[i].found);
    close_model(&s);
}

/* Text is shown as soon as no call can begin with it. */
static void test_text_comes_at_once(void **state) {
    (void)state;
    static const struct {
        const char *push, *shown;
    } steps[] = {{"Yes", "Yes"}, {", \n", ","}, {"and <", " \nand"}, {"b>", " <b>"}, {"<tool_call", ""}, {">", ""}, {"{\"", ""}};
    struct sample s;
    open_model(&s, NULL);
    const struct terse_chat_options options = options_with("chatml", TOOLS);
    struct terse_reply_reader *reader = reader_of(&s, &options);
    struct terse_reply_piece piece;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(terse_reply_reader_push(reader, steps[i].push, strlen(steps[i].push), &piece, NULL), TERSE_OK);
        assert_int_equal(piece.n_text, strlen(steps[i].shown));
        assert_memory_equal(piece.text, steps[i].shown, piece.n_text);
    }
    terse_reply_reader_free(reader);
    close_model(&s);
}

/* A reply behind the mark of a call. */
static void test_an_open_call(void **state) {
    (void)state;
    struct sample s;
    open_model(&s, NULL);
    struct terse_chat_options options = options_with("chatml", TOOLS);
    options.open_call = true;
    check_reply(&s, &options, "{\"name\": \"f\", \"arguments\": {}}", "|f|{}");
    close_model(&s);
}

/* Without tools calls are text. */
static void test_no_tools_no_calls(void **state) {
    (void)state;
    static const char reply[] = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> ";
    struct sample s;
    open_model(&s, NULL);
    const struct terse_chat_options options = options_with("chatml", NULL);
    check_reply(&s, &options, reply, reply);
    close_model(&s);
}

/* DeepSeek's marks. */
#define WIDE(name) "<\xef\xbd\x9ctool\xe2\x96\x81" name "\xef\xbd\x9c>"
#define CALLS(which) WIDE("calls\xe2\x96\x81" which)
#define CALL(which) WIDE("call\xe2\x96\x81" which)
#define SEPARATOR WIDE("sep")

static void test_replies_of_other_formats(void **state) {
    (void)state;
    static const struct {
        const char *format, *reply, *found;
    } rows[] = {
        {"llama-3.1", "{\"name\": \"f\", \"parameters\": {\"a\": 1.0}}", "|f|{\"a\": 1.0}"},
        {"llama-3.1", "\n{\n  \"parameters\": {}, \"name\": \"f\"}\n", "|f|{}"},
        {"llama-3.1", "{\"name\": \"f\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}}"},
        {"llama-3.1", "So: {\"name\": \"f\", \"parameters\": {}}", "So: {\"name\": \"f\", \"parameters\": {}}"},
        {"llama-3.1", "{\"a\": [1, 2]}", "{\"a\": [1, 2]}"},
        {"mistral-v3",
         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}, \"id\": \"123456789\"}, {\"name\": \"g\", \"arguments\": "
         "{}}]",
         "|f|{\"a\": \"]\"}|g|{}"},
        {"mistral-v3-tekken", "Yes. [TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}]", "Yes.|f|{}"},
        {"mistral-v3", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"name\": 1}]",
         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"name\": 1}]"},
        {"mistral-v3", "a [TOOL", "a [TOOL"},
        {"gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", "Yes.~Hm."},
        {"gpt-oss",
         "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
         "<|constrain|>json<|message|>{\"a\": \"<|end|>\"}",
         "~Hm|f|{\"a\": \"<|end|>\"}"},
        {"gpt-oss", " to=functions.f<|channel|>commentary json<|message|>{}", "|f|{}"},
        {"gpt-oss",
         "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f json<|message|>{}",
         "I look.|f|{}"},
        {"gpt-oss-no-think", "Yes <b>", "Yes <b>"},
        {"phi-4-mini", "<|tool_call|>{\"name\": \"f\", \"arguments\": {}}<|/tool_call|>", "|f|{}"},
        {"phi-4-mini",
         "So: <|tool_call|>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]<|/tool_call|>",
         "So:|f|{}|g|{}"},
        {"command-r",
         "I look.\nAction:\n```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {\n            \"a\": 1\n    "
         "    "
         "}\n    },\n    {\n        \"tool_name\": \"g\",\n        \"parameters\": {}\n    }\n]```",
         "I look.|f|{\n            \"a\": 1\n        }|g|{}"},
        {"command-r", "Action:\n```json\n[{\"tool_name\": \"f\", \"parameters\": {}}]", "|f|{}"},
        {"command-r", "Action:\n```json\n{\"a\": 1}```", "Action:\n```json\n{\"a\": 1}```"},
        {"command-r", "Action: none", "Action: none"},
        {"command-r7b",
         "<|START_THINKING|>Hm<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
         "\"parameters\": {\"a\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
         "~Hm|f|{\"a\": 1}|g|{}"},
        {"command-r7b", "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Yes."},
        {"deepseek-v3",
         CALLS("begin") CALL("begin") "function" SEPARATOR "f\n```json\n{\"a\": \"```\"}\n```" CALL("end") "\n" CALL(
             "begin") "function" SEPARATOR "g\n```json\n{}\n```" CALL("end") CALLS("end"),
         "|f|{\"a\": \"```\"}|g|{}"},
        {"deepseek-v3", "<think>\nHm</think>Yes. " CALLS("begin") CALL("begin") "function" SEPARATOR "f\n```json\n{}",
         "Yes.~Hm|f|{}"},
        {"deepseek-v3", CALLS("begin") CALL("begin") "function" SEPARATOR "f\n```json\n[]\n```" CALL("end"),
         CALLS("begin") CALL("begin") "function" SEPARATOR "f\n```json\n[]\n```" CALL("end")},
        {"deepseek-v3.1",
         "I look." CALLS("begin") CALL("begin") "f" SEPARATOR "{\"a\": 1}" CALL("end") CALL("begin") "g" SEPARATOR "{}" CALL("end")
             CALLS("end"),
         "I look.|f|{\"a\": 1}|g|{}"},
        {"deepseek-v3.1", CALLS("begin") CALL("begin") "f" SEPARATOR "{}" CALL("end"), "|f|{}"},
        {"deepseek-v3.1", CALLS("begin") CALL("begin") "f{}", CALLS("begin") CALL("begin") "f{}"},
        {"deepseek-r1", "Hm</think>\n\nYes", "Yes~Hm"},
        {"deepseek-v3", "<think>\nHm</think>Yes", "Yes~Hm"},
    };
    struct sample s;
    open_model(&s, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool tools = strcmp(rows[i].format, "deepseek-r1") != 0;
        const struct terse_chat_options options = options_with(rows[i].format, tools ? TOOLS : NULL);
        check_reply(&s, &options, rows[i].reply, rows[i].found);
    }
    close_model(&s);
}

static void test_thoughts_in_replies(void **state) {
    (void)state;
    static const struct {
        const char *format, *reply, *found;
    } rows[] = {
        {"qwen-3", "<think>\nHm, <tool_call>\n</think>\n\nYes. ", "Yes. ~Hm, <tool_call>"},
        {"qwen-3", " <think>\n\n</think>\n\nYes", "Yes"},
        {"qwen-3", "Yes <think>no</think>", "Yes <think>no</think>"},
        {"qwen-3", "<think>\nHm", "~Hm"},
        {"qwen-3", "<think>Hm</think>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "~Hm|f|{}"},
        {"qwen-3-thinking", "Hm\n</think>\n\nYes", "Yes~Hm"},
        {"qwen-3-no-think", "\nYes <think>", "Yes <think>"},
        {"chatml", "<think>Hm</think>Yes", "<think>Hm</think>Yes"},
    };
    struct sample s;
    open_model(&s, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct terse_chat_options options = options_with(rows[i].format, TOOLS);
        check_reply(&s, &options, rows[i].reply, rows[i].found);
    }
    close_model(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rendered_template),     cmocka_unit_test(test_rendered_formats),
        cmocka_unit_test(test_arguments_in_a_string), cmocka_unit_test(test_a_format_by_name),
        cmocka_unit_test(test_a_template_for_tools),  cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_what_is_refused),       cmocka_unit_test(test_members),
        cmocka_unit_test(test_calls_in_replies),      cmocka_unit_test(test_text_comes_at_once),
        cmocka_unit_test(test_an_open_call),          cmocka_unit_test(test_no_tools_no_calls),
        cmocka_unit_test(test_thoughts_in_replies),   cmocka_unit_test(test_replies_of_other_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
