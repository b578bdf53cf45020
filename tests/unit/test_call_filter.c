/* Replies byte by byte: text is free, and what opens a call can only go on as a call of a tool with arguments of its schema. */
#include "text/call_filter.h"
#include "text/chat_tools.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOOL(name, parameters) "{\"type\": \"function\", \"function\": {\"name\": \"" name "\", \"parameters\": " parameters "}}"
static const char tools[] = "[" TOOL(
    "unlock", "{\"type\": \"object\", \"properties\": {\"code\": {\"type\": \"integer\", \"minimum\": 3}}, \"required\": "
              "[\"code\"], \"additionalProperties\": false}") ", " TOOL("un", "{}") ", {\"function\": {\"name\": \"ping\"}}]";

static struct call_filter *filter_of(const char *format, const char *json, bool begun) {
    struct terse_error error;
    struct call_filter *filter;
    cJSON *parsed;
    if (chat_tools_parse(json, &parsed, &error)) fail_msg("%s", error.message);
    if (call_filter_new(chat_format_find(format), parsed, begun, &filter, &error)) fail_msg("%s", error.message);
    cJSON_Delete(parsed);
    return filter;
}

/* Returns how many bytes of a reply are allowed; *ends: and it may end there. */
static size_t allowed(const struct call_filter *f, const char *reply, bool *ends) {
    struct call_state *s = malloc(2 * sizeof *s), *whole = s + 1;
    size_t n = 0;
    assert_non_null(s);
    call_begin(f, s);
    while (reply[n] && call_allows(f, s, reply + n, 1)) {
        /* What is free is not asked, so that it must allow any byte. */
        for (int c = 0; c < 256 && call_is_free(f, s); c += 5) assert_true(call_allows(f, s, (char[]){(char)c}, 1));
        assert_true(call_push(f, s, reply + n++, 1));
    }
    *ends = call_may_end(f, s);
    call_begin(f, whole);
    assert_true(call_allows(f, whole, reply, n)); /* in one piece as byte by byte */
    assert_true(!reply[n] || !call_allows(f, whole, reply, n + 1));
    free(s);
    return n;
}

struct row {
    const char *reply;
    const char *stop; /* where it is refused; NULL: nowhere */
    bool ends;
};

static void check_rows(const char *format, bool begun, const struct row *rows, size_t n_rows) {
    struct call_filter *filter = filter_of(format, begun ? "[" TOOL("un", "{}") "]" : tools, begun);
    for (size_t i = 0; i < n_rows; i++) {
        bool ends;
        size_t n = allowed(filter, rows[i].reply, &ends);
        const char *stop = rows[i].stop ? rows[i].stop : "";
        if (strcmp(rows[i].reply + n, stop) != 0 || ends != rows[i].ends)
            fail_msg("%s: stopped before '%s', may end: %d", rows[i].reply, rows[i].reply + n, ends);
    }
    call_filter_free(filter);
}
#define CHECK(format, begun, rows) check_rows(format, begun, rows, sizeof(rows) / sizeof *(rows))

static void test_hermes(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"Hello <b> {\"name\": \"x\"}", NULL, true},
        {"<tool_call", NULL, true},
        {"<tool_call>\n{\"name\": \"unlock\", \"arguments\": {\"code\": 1}}\n</tool_call>", NULL, true},
        {"I do.\n<tool_call>{ \"name\":\"un\",\n\"arguments\":{\"any\": [1]} } </tool_call> Done.", NULL, true},
        {"<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"ping\", \"arguments\": {}}", NULL,
         false},
        {"<tool_call> call", "call", false},
        {"<tool_call>{\"name\": \"other", "other", false},
        {"<tool_call>{\"name\": \"unl\"", "\"", false},
        {"<tool_call>{\"arguments\"", "arguments\"", false},
        {"<tool_call>{\"name\": \"unlock\", \"arguments\": {\"code\": \"1", "\"1", false},
        {"<tool_call>{\"name\": \"unlock\", \"arguments\": {}", "}", false},
        {"<tool_call>{\"name\": \"ping\", \"arguments\": {\"a", "\"a", false},
        {"<tool_call>{\"name\": \"un\", \"arguments\": []", "[]", false},
        {"<tool_call>{\"name\": \"un\", \"arguments\": {}, ", ", ", false},
    };
    static const struct row thinks[] = {
        {"<think>a <tool_call> is</think> <tool_call> no", "no", false},
        {"<think>a <tool_call> is", NULL, true},
    };
    static const struct row begun[] = {
        {"{\"name\": \"un\", \"arguments\": {}}\n</tool_call>", NULL, true},
        {"{\"name\": \"un\", \"arguments\": {}}</tool_call>\n", "\n", true},
        {"{\"name\": \"ping", "ping", false},
    };
    CHECK("chatml", false, rows);
    CHECK("qwen-3", false, thinks);
    CHECK("chatml", true, begun);
}

static void test_llama(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"{\"name\": \"unlock\", \"parameters\": {\"code\": 1}}", NULL, true},
        {"{\"name\": \"unlock\", \"parameters\": {\"code\": 1}} ", " ", true},
        {"\n<|python_tag|>{\"name\":\"ping\",\"parameters\":{}}", NULL, true},
        {"{\"type\": \"function\", \"name\": \"ping\", \"parameters\": {}", NULL, false},
        {"{\"name\": \"other", "other", false},
        {"{\"answer\": {\"name\": \"other\"}}", NULL, true},
        {"So {\"name\": \"other\"}", NULL, true},
    };
    static const struct row begun[] = {{"un\", \"parameters\": {}}", NULL, true}, {"ping", "ping", false}};
    CHECK("llama-3.1", false, rows);
    CHECK("llama-3.1", true, begun);
}

static void test_mistral(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"So. [TOOL_CALLS] [{\"name\": \"ping\", \"arguments\": {}}, {\"name\": \"un\", \"arguments\": {\"a\": []}}]", NULL, true},
        {"[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": {}}", NULL, false},
        {"[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": {}}] x", " x", true},
        {"[TOOL_CALLS]{", "{", false},
    };
    static const struct row begun[] = {{"un\", \"arguments\": {}}]", NULL, true}, {"un\", \"arguments\": {}}, ", ", ", false}};
    CHECK("mistral-v3", false, rows);
    CHECK("mistral-v3-tekken", true, begun);
}

static void test_harmony(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"<|channel|>analysis<|message|>a to=functions.x<|end|><|start|>assistant<|channel|>commentary to=functions.unlock "
         "<|constrain|>json<|message|>{\"code\": 7}",
         NULL, true},
        {" to=functions.ping<|channel|>commentary json<|message|>{}", NULL, true},
        {"<|channel|>commentary to=functions.ping json<|message|>{\"a", "\"a", false},
        {"<|channel|>commentary to=functions.un code<|message|>", "code<|message|>", false},
        {"<|channel|>commentary to=functions.other", "other", false},
        {"<|channel|>final<|message|>It is to=functions.other", NULL, true},
    };
    CHECK("gpt-oss", false, rows);
}

static void test_phi(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"So. <|tool_call|>{\"name\": \"un\", \"arguments\": {}}<|/tool_call|><|tool_call|>{\"name\": \"ping", NULL, false},
        {"<|tool_call|>{\"name\": \"unlock\", \"arguments\": {\"code\": \"", "\"", false},
        {"functools[", NULL, true},
    };
    static const struct row begun[] = {{"un\", \"arguments\": {}}<|/tool_call|>", NULL, true}, {"ping", "ping", false}};
    CHECK("phi-4-mini", false, rows);
    CHECK("phi-4-mini", true, begun);
}

static void test_command(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"I do.\nAction:\n```json\n[\n    {\n        \"tool_name\": \"unlock\",\n        \"parameters\": {\n            \"code\": "
         "1\n       "
         " }\n    },\n    {\n        \"tool_name\": \"ping\",\n        \"parameters\": {}\n    }\n]```",
         NULL, true},
        {"Action:\n```json\n[{\"tool_name\": \"directly", "directly", false},
        {"Action: none", NULL, true},
    };
    static const struct row begun[] = {{"un\",\n        \"parameters\": {}\n    }\n]```", NULL, true},
                                       {"un\", \"parameters\": {}},", ",", false}};
    static const struct row r7b[] = {
        {"<|START_THINKING|>a <|START_ACTION|> is<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"17\", \"tool_name\": "
         "\"ping\", "
         "\"parameters\": {}},\n    {\"tool_call_id\": \"18\", \"tool_name\": \"unlock\", \"parameters\": {\"code\": "
         "1}}\n]<|END_ACTION|>",
         NULL, true},
        {"<|START_ACTION|>[{\"tool_call_id\": \"a", "a", false},
        {"<|START_ACTION|>[{\"tool_name", "name", false},
        {"<|START_RESPONSE|>Yes [{", NULL, true},
    };
    static const struct row r7b_begun[] = {{"un\", \"parameters\": {}}\n]<|END_ACTION|>", NULL, true}};
    CHECK("command-r", false, rows);
    CHECK("command-r", true, begun);
    CHECK("command-r7b", false, r7b);
    CHECK("command-r7b", true, r7b_begun);
}

/* DeepSeek's marks. */
#define WIDE(name) "<\xef\xbd\x9ctool\xe2\x96\x81" name "\xef\xbd\x9c>"
#define CALLS(which) WIDE("calls\xe2\x96\x81" which)
#define CALL(which) WIDE("call\xe2\x96\x81" which)
#define SEPARATOR WIDE("sep")

static void test_deepseek(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"So. " CALLS("begin") CALL("begin") "function" SEPARATOR "unlock\n```json\n{\"code\": 1}\n```" CALL("end") "\n" CALL(
             "begin") "function" SEPARATOR "ping\n```json\n{}\n```" CALL("end") CALLS("end"),
         NULL, true},
        {CALLS("begin") CALL("begin") "function" SEPARATOR "other", "other", false},
        {CALLS("begin") CALL("begin") "function" SEPARATOR "un\n```python", "python", false},
    };
    static const struct row begun[] = {{"un\n```json\n{}\n```" CALL("end") CALLS("end"), NULL, true},
                                       {"un\n```json\n{}\n```" CALL("end") CALL("begin"), CALL("begin") + 15, false}};
    static const struct row v31[] = {
        {CALLS("begin") CALL("begin") "unlock" SEPARATOR "{\"code\": 1}" CALL("end") CALL("begin") "un" SEPARATOR "{}" CALL("end"),
         NULL, false},
        {CALLS("begin") CALL("begin") "ping" SEPARATOR "{}" CALL("end") CALLS("end") " So", " So", true},
        {"It is " SEPARATOR, NULL, true},
    };
    static const struct row v31_begun[] = {{"un" SEPARATOR "{}" CALL("end") CALLS("end"), NULL, true}};
    CHECK("deepseek-v3", false, rows);
    CHECK("deepseek-v3", true, begun);
    CHECK("deepseek-v3.1", false, v31);
    CHECK("deepseek-v3.1", true, v31_begun);
}

/* What of a schema is not understood is refused where a call is asked for, and left out where one may come. */
static void test_schemas(void **state) {
    (void)state;
    static const struct {
        const char *parameters, *good, *bad;
    } rows[] = {
        {"{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\", \"minimum\": 3}}, \"minProperties\": 1}",
         "{\"n\": 1}", "{\"n\": \"a\"}"},
        {"{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"number\"}}, \"required\": [\"m\"]}", "{}", "{\"n\": true}"},
        {"{\"properties\": {\"n\": {\"type\": \"file\"}, \"m\": {\"type\": \"null\"}}}", "{\"n\": [1], \"m\": null}", "{\"m\": 1}"},
        {"{\"properties\": {\"n\": false, \"m\": {\"oneOf\": []}}, \"additionalProperties\": {\"type\": \"string\"}}",
         "{\"n\": 1, \"m\": 2, \"o\": 3}", "[]"},
        {"{\"properties\": {\"n\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"pattern\": \"(\"}, \"minItems\": 3, "
         "\"maxItems\": 2}}}",
         "{\"n\": [\"a\"]}", "{\"n\": [1"},
        {"{\"properties\": 1, \"required\": [\"n\"], \"additionalProperties\": false}", "{\"n\": 1}", "1"},
        {"{\"anyOf\": [], \"$ref\": \"http://x\"}", "{\"a\": 1}", "1"},
        {"{\"type\": \"string\", \"format\": \"date\"}", "{}", "\"a"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[512], reply[256];
        bool ends;
        snprintf(json, sizeof json, "[" TOOL("f", "%s") "]", rows[i].parameters);
        struct call_filter *filter = filter_of("chatml", json, false);
        snprintf(reply, sizeof reply, "<tool_call>{\"name\": \"f\", \"arguments\": %s}", rows[i].good);
        if (allowed(filter, reply, &ends) != strlen(reply)) fail_msg("%s is refused by %s", rows[i].good, json);
        snprintf(reply, sizeof reply, "<tool_call>{\"name\": \"f\", \"arguments\": %s}", rows[i].bad);
        if (allowed(filter, reply, &ends) == strlen(reply)) fail_msg("%s is taken by %s", rows[i].bad, json);
        call_filter_free(filter);
        struct terse_error error;
        cJSON *parsed;
        assert_int_equal(chat_tools_parse(json, &parsed, &error), TERSE_OK);
        assert_int_equal(call_filter_new(chat_format_find("chatml"), parsed, true, &filter, &error), TERSE_E_ARGUMENT);
        assert_null(filter);
        cJSON_Delete(parsed);
    }
}

/* A call that breaks off, as a caller may have appended it, is text; another one is held to the tools again. */
static void test_a_broken_call(void **state) {
    (void)state;
    struct call_filter *filter = filter_of("chatml", tools, false);
    struct call_state *s = malloc(sizeof *s);
    static const char broken[] = "<tool_call> is no call; <tool_call>";
    assert_non_null(s);
    call_begin(filter, s);
    assert_false(call_push(filter, s, broken, strlen(broken)));
    assert_true(call_is_free(filter, s) && call_may_end(filter, s));
    assert_true(call_push(filter, s, "<tool_call>{", 12));
    assert_false(call_allows(filter, s, "a", 1));
    free(s);
    call_filter_free(filter);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hermes),   cmocka_unit_test(test_llama),   cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_harmony),  cmocka_unit_test(test_phi),     cmocka_unit_test(test_command),
        cmocka_unit_test(test_deepseek), cmocka_unit_test(test_schemas), cmocka_unit_test(test_a_broken_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
