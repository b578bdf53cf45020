/* JSON text byte by byte: what cJSON prints is accepted, what is let through parses and holds to its schema, and what is wrong is
 * refused where it goes wrong. */
#include "support/kernel_check.h"
#include "text/json_filter.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct json_schema *schema_of(const char *text) {
    struct terse_error error;
    struct json_schema *schema;
    if (json_schema_new(text, JSON_STRICT, &schema, &error) != TERSE_OK)
        fail_msg("%s: %s", text ? text : "any object", error.message);
    return schema;
}

/* Bytes of a text that are accepted; *ends: and it may end there. */
static size_t accepted(const struct json_schema *schema, const char *text, bool *ends) {
    struct json_state state = json_begin();
    size_t n = 0;
    while (text[n] && json_allows(schema, &state, text + n, 1)) {
        assert_true(json_push(schema, &state, text + n, 1));
        n++;
    }
    *ends = json_may_end(schema, &state);
    struct json_state whole = json_begin();
    assert_true(json_allows(schema, &whole, text, n)); /* in one piece as byte by byte */
    assert_true(!text[n] || !json_allows(schema, &whole, text, n + 1));
    return n;
}

static void takes(const char *schema_text, const char *text) {
    bool ends;
    struct json_schema *schema = schema_of(schema_text);
    size_t n = accepted(schema, text, &ends);
    if (n != strlen(text) || !ends) fail_msg("%s: took %zu bytes of %s, may end: %d", schema_text, n, text, ends);
    json_schema_free(schema);
}

/* `bytes` of the text are good, the next is not; or all are, but the text is not whole. */
static void stops(const char *schema_text, const char *text, size_t bytes) {
    bool ends;
    struct json_schema *schema = schema_of(schema_text);
    size_t n = accepted(schema, text, &ends);
    if (n != bytes || (!text[n] && ends))
        fail_msg("%s: took %zu bytes of %s, not %zu; may end: %d", schema_text, n, text, bytes, ends);
    json_schema_free(schema);
}

#define ANY "{}"

static void any_value(void **state) {
    (void)state;
    takes(ANY, " {\"a\": [1, -0.5e+10, true, null, {}], \"b\\u00e9\": \"\\ud83d\\ude00 \\\"x\\\"\"}  ");
    takes(ANY, "0");
    takes(ANY, "-12.5E-3");
    takes(ANY, "\"\xc3\xa9\xf0\x9f\x98\x80\"");
    takes(ANY, "[[],[[]]]");
    stops(ANY, "01", 1);
    stops(ANY, "-", 1);
    stops(ANY, "1.", 2);
    stops(ANY, "1.e5", 2);
    stops(ANY, "+1", 0);
    stops(ANY, "truth", 3);
    stops(ANY, "[1,]", 3);
    stops(ANY, "[1 2]", 3);
    stops(ANY, "{\"a\" 1}", 5);
    stops(ANY, "{a:1}", 1);
    stops(ANY, "{\"a\":1,}", 7);
    stops(ANY, "[1}", 2);
    stops(ANY, "\"\\x\"", 2);
    stops(ANY, "\"\\u12g4\"", 5);
    stops(ANY, "\"a\nb\"", 2);
    stops(ANY, "\"\\ude00\"", 4);      /* a lone low surrogate, whatever digits follow "de" */
    stops(ANY, "\"\\ud83d\\u00", 9);   /* a high one wants a low one behind it */
    stops(ANY, "\"\\ud83dx\"", 7);     /* a lone high one */
    stops(ANY, "\"\xc0\x80\"", 1);     /* overlong */
    stops(ANY, "\"\xed\xa0\x80\"", 2); /* a surrogate in UTF-8 */
    stops(ANY, "{} {}", 3);
    bool ends;
    struct json_schema *object = schema_of(NULL); /* any object */
    assert_int_equal(accepted(object, "[", &ends), 0);
    assert_int_equal(accepted(object, "{}", &ends), 2);
    json_schema_free(object);
}

static void nothing_goes_on_for_ever(void **state) {
    (void)state;
    char text[400];
    memset(text, ' ', sizeof text);
    text[sizeof text - 1] = 0;
    stops(ANY, text, JSON_SPACES);
    memset(text, '[', sizeof text - 1);
    stops(ANY, text, JSON_DEPTH);
    memset(text, '1', sizeof text - 1);
    struct json_schema *schema = schema_of(ANY);
    bool ends;
    assert_int_equal(accepted(schema, text, &ends), JSON_NUMBER);
    assert_true(ends);
    text[JSON_NUMBER - 1] = 'e'; /* no room for its digits */
    assert_int_equal(accepted(schema, text, &ends), JSON_NUMBER - 1);
    assert_true(ends);
    json_schema_free(schema);
}

static void schemas(void **state) {
    (void)state;
    static const char person[] =
        "{\"type\":\"object\",\"title\":\"x\",\"properties\":{\"name\":{\"type\":\"string\"},\"names\":{\"type\":\"array\","
        "\"items\":{\"type\":\"string\"},\"minItems\":1,\"maxItems\":2},\"age\":{\"type\":\"integer\"}},"
        "\"required\":[\"name\",\"age\"],\"additionalProperties\":false}";
    takes(person, "{\"name\":\"a\",\"age\":1}");
    takes(person, "{\"age\":1, \"names\":[\"x\",\"y\"], \"name\":\"a\"}");
    stops(person, "{\"age\":1}", 8);
    stops(person, "{\"age\":1.5", 8);
    stops(person, "{\"nick", 3);
    stops(person, "{\"age\":1,\"age", 10);
    stops(person, "{\"name\":\"a\",\"names\":[]", 21);
    stops(person, "{\"names\":[\"x\",\"y\",", 17);
    stops(person, "{\"name\":\"a\",\"age\":1,\"names\":[\"b\"],", 33);
    stops(person, "[", 0);
    static const char open[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}}}";
    takes(open, "{\"b\":[1],\"a\":null,\"ab\":2}");
    stops(open, "{\"a\":1", 5);
    stops(open, "{\"a\":null,\"a\"", 12);
    static const char choice[] = "{\"enum\":[1,12,\"red\",\"re\",{\"x\":[true]},null]}";
    takes(choice, "1");
    takes(choice, "12");
    takes(choice, "\"re\"");
    takes(choice, "{\"x\":[true]}");
    stops(choice, "123", 2);
    stops(choice, "\"r\"", 2);
    takes("{\"const\":\"ok\"}", "\"ok\" ");
    takes("{\"type\":[\"integer\",\"null\"]}", "null");
    stops("{\"type\":[\"integer\",\"null\"]}", "\"", 0);
    takes("{\"type\":\"array\",\"items\":{\"enum\":[1,12]}}", "[1,12, 1 ]");
    takes("{\"type\":\"object\",\"properties\":{\"a\\\"b\":true},\"additionalProperties\":false}", "{\"a\\\"b\":[0]}");
    takes("{\"type\":\"array\",\"maxItems\":0}", "[]");
    stops("{\"type\":\"array\",\"maxItems\":0}", "[1", 1);
}

static void schemas_that_are_refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"{\"type\":\"object\",\"patternProperties\":{}}", "patternProperties"},
        {"{\"minimum\":1}", "minimum"},
        {"{\"type\":\"text\"}", "text"},
        {"{\"type\":1}", "type"},
        {"{\"items\":[{}]}", "object"},
        {"{\"items\":{\"$ref\":\"#/x\"}}", "$ref"},
        {"{\"required\":[\"a\"]}", "\"a\""},
        {"{\"enum\":[]}", "enum"},
        {"{\"minItems\":-1}", "minItems"},
        {"{\"minItems\":2,\"maxItems\":1}", "minItems"},
        {"{\"additionalProperties\":{}}", "additionalProperties"},
        {"{\"properties\":{},\"properties\":{\"a\":{}}}", "twice"},
        {"{\"properties\":{\"a\":{},\"a\":{\"type\":\"null\"}},\"required\":[\"a\"]}", "a property stands twice: \"a\""},
        {"{\"const\":\"\xff\"}", "UTF-8"},
        {"[", "no JSON"},
        {"{} x", "no JSON"},
        {"[]", "no object"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct terse_error error;
        struct json_schema *schema;
        assert_int_equal(json_schema_new(bad[i][0], JSON_STRICT, &schema, &error), TERSE_E_ARGUMENT);
        assert_null(schema);
        if (!strstr(error.message, bad[i][1])) fail_msg("%s: %s", bad[i][0], error.message);
    }
    char deep[40 * 70 + 8] = "";
    for (int i = 0; i < 70; i++) strcat(deep, "{\"items\":");
    strcat(deep, "{}");
    for (int i = 0; i < 70; i++) strcat(deep, "}");
    struct terse_error error;
    struct json_schema *schema;
    assert_int_equal(json_schema_new(deep, JSON_STRICT, &schema, &error), TERSE_E_ARGUMENT);
    assert_non_null(strstr(error.message, "deeper"));
}

static cJSON *random_value(struct random *random, int depth) {
    static const char *const strings[] = {"", "a", "\xc3\xa9\xe2\x82\xac", "\"\\/\n\t\x01", "name"};
    cJSON *value;
    switch (random_bits(random) % (depth > 4 ? 5 : 7)) {
    case 0: return cJSON_CreateNull();
    case 1: return cJSON_CreateBool(random_bits(random) % 2);
    case 2: return cJSON_CreateNumber((double)random_normal(random));
    case 3: return cJSON_CreateNumber((double)(int)(100 * random_normal(random)));
    case 4: return cJSON_CreateString(strings[random_bits(random) % 5]);
    case 5:
        value = cJSON_CreateArray();
        for (size_t n = random_bits(random) % 4; n > 0; n--) cJSON_AddItemToArray(value, random_value(random, depth + 1));
        return value;
    default:
        value = cJSON_CreateObject();
        for (size_t n = random_bits(random) % 4; n > 0; n--)
            cJSON_AddItemToObject(value, strings[n], random_value(random, depth + 1));
        return value;
    }
}

static void what_is_printed_is_taken(void **state) {
    (void)state;
    struct random random = {1};
    struct json_schema *schema = schema_of(ANY);
    for (int i = 0; i < 3000; i++) {
        bool ends;
        cJSON *value = random_value(&random, 0);
        char *text = i % 2 ? cJSON_Print(value) : cJSON_PrintUnformatted(value);
        if (accepted(schema, text, &ends) != strlen(text) || !ends) fail_msg("refused: %s", text);
        cJSON_free(text);
        cJSON_Delete(value);
    }
    json_schema_free(schema);
}

/* Random walks over what is allowed, with a preference for bytes that end things. */
static size_t random_text(struct random *random, const struct json_schema *schema, char *text, size_t most) {
    static const char some[] = "\"\"\"}}]]{[:,,,0123456789-.eE\\\\u/bntrfalsetruenull ageinamesx\xc3\xa9\xf0\x9f\x98\x80";
    struct json_state state = json_begin();
    size_t n = 0, tries = 0;
    while (n < most && !(json_may_end(schema, &state) && random_bits(random) % 3 == 0)) {
        char c = n > most / 2 ? some[random_bits(random) % 12] : some[random_bits(random) % (sizeof some - 1)];
        if (tries++ % 64 == 63) c = (char)random_bits(random);
        if (tries > 200000) return 0;
        if (!json_allows(schema, &state, &c, 1)) continue;
        assert_true(json_push(schema, &state, &c, 1));
        text[n++] = c;
    }
    text[n] = 0;
    return json_may_end(schema, &state) ? n : 0;
}

static void what_is_let_through_parses(void **state) {
    (void)state;
    static const char *const texts[] = {
        ANY, "{\"type\":\"object\"}",
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"}},"
        "\"required\":[\"age\"],\"additionalProperties\":false}"};
    struct random random = {2};
    size_t whole[3] = {0};
    for (int i = 0; i < 6000; i++) {
        char text[256];
        struct json_schema *schema = schema_of(texts[i % 3]);
        size_t n = random_text(&random, schema, text, sizeof text - 1);
        json_schema_free(schema);
        if (!n) continue;
        whole[i % 3]++;
        cJSON *value = cJSON_ParseWithOpts(text, NULL, true);
        if (!value) fail_msg("does not parse: %s", text);
        if (i % 3) assert_true(cJSON_IsObject(value));
        if (i % 3 == 2) {
            const cJSON *age = cJSON_GetObjectItemCaseSensitive(value, "age"),
                        *name = cJSON_GetObjectItemCaseSensitive(value, "name");
            assert_true(cJSON_IsNumber(age) && (!name || cJSON_IsString(name)));
            assert_int_equal(cJSON_GetArraySize(value), name ? 2 : 1);
        }
        cJSON_Delete(value);
    }
    for (int i = 0; i < 3; i++) assert_true(whole[i] > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_value),
        cmocka_unit_test(nothing_goes_on_for_ever),
        cmocka_unit_test(schemas),
        cmocka_unit_test(schemas_that_are_refused),
        cmocka_unit_test(what_is_printed_is_taken),
        cmocka_unit_test(what_is_let_through_parses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
