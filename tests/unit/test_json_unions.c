/* Schemas with anyOf, $ref and patterns: whatever is let through is whole JSON that a validator of this test accepts, what it accepts is let
 * through, and no text that was let through ends in nowhere. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "support/kernel_check.h"
#include "text/json_filter.h"

#include <cjson/cJSON.h>
#include <pcre2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- The validator */

static bool has_type(const char *type, const cJSON *value) {
    if (strcmp(type, "object") == 0) return cJSON_IsObject(value);
    if (strcmp(type, "array") == 0) return cJSON_IsArray(value);
    if (strcmp(type, "string") == 0) return cJSON_IsString(value);
    if (strcmp(type, "number") == 0) return cJSON_IsNumber(value);
    if (strcmp(type, "integer") == 0) return cJSON_IsNumber(value);
    if (strcmp(type, "boolean") == 0) return cJSON_IsBool(value);
    return strcmp(type, "null") == 0 && cJSON_IsNull(value);
}

static bool matches(const char *pattern, const char *text) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
    assert_non_null(compiled);
    pcre2_match_data *found = pcre2_match_data_create_from_pattern(compiled, NULL);
    code = pcre2_match(compiled, (PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, 0, 0, found, NULL);
    pcre2_match_data_free(found);
    pcre2_code_free(compiled);
    return code >= 0;
}

static const cJSON *get(const cJSON *object, const char *name) { return cJSON_GetObjectItemCaseSensitive(object, name); }

static const cJSON *referred(const cJSON *root, const char *pointer) {
    return strcmp(pointer, "#") == 0 ? root : get(get(root, "$defs"), pointer + strlen("#/$defs/"));
}

static bool valid(const cJSON *root, const cJSON *schema, const cJSON *value);

static bool valid_object(const cJSON *root, const cJSON *schema, const cJSON *value) {
    const cJSON *one, *properties = get(schema, "properties");
    cJSON_ArrayForEach(one, get(schema, "required")) if (!get(value, one->valuestring)) return false;
    cJSON_ArrayForEach(one, value) {
        const cJSON *property = get(properties, one->string);
        if (property && get(value, one->string) != one) return false; /* twice */
        if (property ? !valid(root, property, one) : cJSON_IsFalse(get(schema, "additionalProperties"))) return false;
    }
    return true;
}

static bool valid_any_of(const cJSON *root, const cJSON *schemas, const cJSON *value) {
    const cJSON *one;
    bool any = !schemas;
    cJSON_ArrayForEach(one, schemas) any |= valid(root, one, value);
    return any;
}

static bool valid(const cJSON *root, const cJSON *schema, const cJSON *value) {
    const cJSON *type = get(schema, "type"), *ref = get(schema, "$ref"), *constant = get(schema, "const"), *one;
    const cJSON *pattern = get(schema, "pattern"), *least = get(schema, "minItems"), *most = get(schema, "maxItems");
    if (ref) return valid(root, referred(root, ref->valuestring), value);
    if (type && !has_type(type->valuestring, value)) return false;
    if (constant && !cJSON_Compare(constant, value, true)) return false;
    if (pattern && cJSON_IsString(value) && !matches(pattern->valuestring, value->valuestring)) return false;
    if (cJSON_IsArray(value)) {
        int n = cJSON_GetArraySize(value);
        if ((least && n < least->valueint) || (most && n > most->valueint)) return false;
        cJSON_ArrayForEach(one, value) if (get(schema, "items") && !valid(root, get(schema, "items"), one)) return false;
    }
    if (cJSON_IsObject(value) && !valid_object(root, schema, value)) return false;
    return valid_any_of(root, get(schema, "anyOf"), value);
}

/* ---- Schemas */

/* The schemas that pydantic makes of nested models, an optional one, a list of two kinds, a tree. */
#define MODELS \
    "{\"$defs\":{" \
    "\"Cat\":{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"cat\",\"type\":\"string\"},\"lives\":{\"type\":" \
    "\"integer\"}}," \
    "\"required\":[\"kind\",\"lives\"],\"additionalProperties\":false}," \
    "\"Dog\":{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"dog\",\"type\":\"string\"},\"name\":{\"anyOf\":[{" \
    "\"type\":\"string\"}," \
    "{\"type\":\"null\"}],\"title\":\"Name\"}},\"required\":[\"kind\",\"name\"],\"additionalProperties\":false}}," \
    "\"type\":\"object\",\"properties\":{\"pets\":{\"type\":\"array\",\"items\":{\"anyOf\":[{\"$ref\":\"#/$defs/" \
    "Cat\"},{\"$ref\":\"#/$defs/Dog\"}]}}," \
    "\"best\":{\"anyOf\":[{\"$ref\":\"#/$defs/Dog\"},{\"type\":\"null\"}],\"default\":null}}," \
    "\"required\":[\"pets\",\"best\"],\"additionalProperties\":false}"
#define TREE \
    "{\"$ref\":\"#/$defs/" \
    "Node\",\"$defs\":{\"Node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":" \
    "[{\"$ref\":\"#/$defs/Node\"},{\"type\":\"null\"}]}},\"required\":[\"next\"],\"additionalProperties\":false}}}"
#define NESTED_UNIONS \
    "{\"$defs\":{\"A\":{\"anyOf\":[{\"$ref\":\"#/$defs/B\"},{\"type\":\"null\"}]},\"B\":{\"anyOf\":[{\"type\":\"boolean\"}," \
    "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}]}},\"anyOf\":[{\"$ref\":\"#/$defs/" \
    "A\"},{\"type\":\"integer\"},{\"type\":\"number\"}]}"
#define CIRCLE \
    "{\"$defs\":{\"A\":{\"anyOf\":[{\"$ref\":\"#/$defs/B\"},{\"type\":\"null\"}]},\"B\":{\"anyOf\":[{\"$ref\":\"#/$defs/A\"}," \
    "{\"type\":\"boolean\"}]}},\"$ref\":\"#/$defs/A\"}"
#define PATTERNS \
    "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-\\\\d{3}$\"},\"who\":{\"anyOf\":[{" \
    "\"type\":\"string\"," \
    "\"pattern\":\"^[a-z\\u00e9\\ud83e\\udd9e]+$\"},{\"type\":\"string\",\"pattern\":\"^\\\\\\\\\\\"?/" \
    "\"},{\"type\":\"null\"}]}},\"required\":[\"id\",\"who\"]," \
    "\"additionalProperties\":false}"
#define SAME_BEGINNINGS \
    "{\"type\":\"array\",\"minItems\":1,\"maxItems\":4,\"items\":{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"a\":{" \
    "\"type\":\"integer\"}}," \
    "\"required\":[\"a\"],\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}," \
    "\"ab\":true}," \
    "\"required\":[\"ab\"],\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"number\"}}},{" \
    "\"const\":\"x\"},{\"type\":" \
    "\"string\"}]}}"

static const char *const schemas[] = {MODELS, TREE, NESTED_UNIONS, PATTERNS, SAME_BEGINNINGS};
#define SCHEMAS (sizeof schemas / sizeof *schemas)

static struct json_schema *schema_of(const char *text) {
    struct terse_error error;
    struct json_schema *schema;
    if (json_schema_new(text, JSON_STRICT, &schema, &error) != TERSE_OK) fail_msg("%s: %s", text, error.message);
    return schema;
}

static bool accepts(const struct json_schema *schema, const char *text) {
    struct json_state state = json_begin();
    return json_push(schema, &state, text, strlen(text)) && json_may_end(schema, &state);
}

/* ---- What is taken */

static void texts(void **state) {
    (void)state;
    static const struct {
        const char *schema, *text;
        bool good;
    } cases[] = {
        {MODELS, "{\"pets\":[{\"kind\":\"cat\",\"lives\":9},{\"name\":null,\"kind\":\"dog\"}],\"best\":null}", true},
        {MODELS, "{\"best\":{\"kind\":\"dog\",\"name\":\"Rex\"},\"pets\":[]}", true},
        {MODELS, "{\"pets\":[{\"kind\":\"dog\",\"lives\":9", false},
        {MODELS, "{\"pets\":[{\"lives\":9,\"kind\":\"d", false},
        {MODELS, "{\"pets\":[],\"best\":{\"kind\":\"c", false},
        {TREE, "{\"next\":{\"next\":null,\"v\":1},\"v\":2}", true},
        {TREE, "{\"v\":2}", false},
        {NESTED_UNIONS, "[1, -2.5e3, null, [true, []]]", true},
        {NESTED_UNIONS, "\"", false},
        {CIRCLE, "true", true},
        {CIRCLE, "null", true},
        {CIRCLE, "1", false},
        {PATTERNS, "{\"id\":\"AB-123\",\"who\":\"caf\xc3\xa9\xf0\x9f\xa6\x9e\"}", true},
        {PATTERNS, "{\"id\":\"AB-123\",\"who\":\"\\\\\\\"\\/ and so on\\n\"}", true},
        {PATTERNS, "{\"id\":\"AB-123\",\"who\":\"\\\\x", false},
        {PATTERNS, "{\"id\":\"AB-12\"", false},
        {PATTERNS, "{\"id\":\"A\\u0042", false},
        {PATTERNS, "{\"id\":\"AB-123\",\"who\":\"caf\xc3\xa8", false},
        {PATTERNS, "{\"id\":\"AB-123\",\"who\":\"\xf0\x9f\xa6\x9f", false},
        {SAME_BEGINNINGS, "[{\"a\":1},{\"a\":\"1\",\"ab\":[]},{\"a\":[],\"b\":1.5},\"x\"]", true},
        {SAME_BEGINNINGS, "[{\"a\":\"1\"}]", true}, /* the third allows any others */
        {SAME_BEGINNINGS, "[{\"b\":\"1\"", false},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}],\"description\":\"x\"}", "1", true},
        {"{\"definitions\":{\"a/b~\":{\"enum\":[1]}},\"$ref\":\"#/definitions/a~1b~0\"}", "1", true},
        {"{\"$defs\":{\"x\":true},\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/x\"}}", "[{\"y\":[1]}]", true},
        {"{\"pattern\":\"^a$\"}", "5", true}, /* a pattern says nothing of what is no string */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_schema *schema = schema_of(cases[i].schema);
        if (accepts(schema, cases[i].text) != cases[i].good) fail_msg("%s: %s", cases[i].schema, cases[i].text);
        json_schema_free(schema);
    }
}

static void a_chain_ends_in_time(void **state) {
    (void)state;
    struct json_schema *schema = schema_of(TREE);
    struct json_state at = json_begin();
    int n = 0;
    while (json_push(schema, &at, "{\"next\":", 8) && json_allows(schema, &at, "{", 1)) n++;
    assert_int_equal(n, JSON_DEPTH - 1);
    assert_true(json_push(schema, &at, "null", 4));
    for (; n >= 0; n--) assert_true(json_push(schema, &at, "}", 1));
    assert_true(json_may_end(schema, &at));
    json_schema_free(schema);
    /* Values that are deep of themselves begin only where there is room for them. */
    schema = schema_of(
        "{\"$defs\":{\"L\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
        "L\"}},\"D\":{\"type\":\"array\",\"minItems\":1,\"items\":"
        "{\"type\":\"array\",\"minItems\":1,\"items\":{\"const\":1}}}},\"type\":\"array\",\"items\":{\"anyOf\":[{\"$ref\":\"#\"},"
        "{\"$ref\":\"#/$defs/D\"}]}}");
    at = json_begin();
    for (n = 0; json_push(schema, &at, "[", 1); n++) {
        struct json_state rest = at;
        int closed = 0;
        while (!json_may_end(schema, &rest)) {
            const char *next = json_allows(schema, &rest, "]", 1) ? "]" : json_allows(schema, &rest, "1", 1) ? "1" : "[";
            assert_true(json_push(schema, &rest, next, 1));
            assert_true(++closed < 200);
        }
    }
    assert_int_equal(n, JSON_DEPTH);
    json_schema_free(schema);
}

/* ---- What is let through */

/* A random byte of those that are allowed: half of the time of what gives texts their form, later on always if any of it is. */
static bool choose(struct random *random, const struct json_schema *schema, const struct json_state *state, bool hurry, char *c) {
    static const char form[] = "\"}],:{[0123456789nabcdghiklmeopstvw-ABZ\\/\xc3\xa9";
    char allowed[256];
    size_t n = 0, n_form = 0;
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        if (json_allows(schema, state, &byte, 1)) allowed[n++] = byte;
    }
    if (!n) return false;
    *c = allowed[random_bits(random) % n];
    if (hurry || random_bits(random) % 2) {
        char some[sizeof form];
        for (size_t i = 0; i + 1 < sizeof form; i++)
            if (memchr(allowed, form[i], n)) some[n_form++] = form[i];
        size_t first = n_form < 3 || !hurry ? n_form : 3;
        if (n_form) *c = some[random_bits(random) % first];
    }
    return true;
}

static void what_is_let_through_is_valid(void **state) {
    (void)state;
    struct random random = {3};
    for (size_t i = 0; i < SCHEMAS; i++) {
        struct json_schema *schema = schema_of(schemas[i]);
        cJSON *root = cJSON_Parse(schemas[i]);
        int whole = 0;
        for (int k = 0; k < 120; k++) {
            char text[1500];
            size_t n = 0;
            struct json_state at = json_begin();
            while (n < sizeof text - 1 && !(json_may_end(schema, &at) && random_bits(&random) % 3 == 0)) {
                if (!choose(&random, schema, &at, n > 60, &text[n])) break;
                assert_true(json_push(schema, &at, &text[n++], 1));
            }
            text[n] = 0;
            if (!json_may_end(schema, &at)) {
                if (n < sizeof text - 1) fail_msg("%s: nothing leads on from %s", schemas[i], text);
                continue;
            }
            cJSON *value = cJSON_ParseWithOpts(text, NULL, true);
            if (!value || !valid(root, root, value)) fail_msg("%s: %s", schemas[i], text);
            cJSON_Delete(value);
            whole++;
        }
        if (whole < 60) fail_msg("%s: only %d texts ended", schemas[i], whole);
        cJSON_Delete(root);
        json_schema_free(schema);
    }
}

static void refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"{\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"null\"},{\"minimum\":1}]}}}",
         "at #/properties/a/anyOf/1: this keyword is not understood: \"minimum\""},
        {"{\"items\":{\"$ref\":\"#/$defs/y\"},\"$defs\":{\"x\":{}}}",
         "at #/items: $ref names neither # nor what the schema has in $defs: \"#/$defs/y\""},
        {"{\"$ref\":\"other.json\"}", "other.json"},
        {"{\"$ref\":5}", "$ref"},
        {"{\"$defs\":{\"x\":{\"format\":\"uuid\"}},\"$ref\":\"#/$defs/x\"}",
         "at #/$defs/x: this keyword is not understood: \"format\""},
        {"{\"items\":{\"properties\":{\"a\":{\"pattern\":\"^(?!b)\"}}}}",
         "at #/items/properties/a/pattern: character 3 of the pattern"},
        {"{\"pattern\":5}", "pattern"},
        {"{\"pattern\":\"a\",\"enum\":[\"a\"]}", "beside a pattern"},
        {"{\"anyOf\":[]}", "anyOf"},
        {"{\"anyOf\":{}}", "anyOf"},
        {"{\"anyOf\":[{}],\"type\":\"object\"}", "beside anyOf or $ref this keyword is not understood: \"type\""},
        {"{\"anyOf\":[{}],\"$ref\":\"#\"}", "side by side"},
        {"{\"$ref\":\"#\"}", "needs itself"},
        {"{\"$defs\":{\"A\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/"
         "A\"}},\"required\":[\"a\"]}},\"$ref\":\"#/$defs/A\"}",
         "needs itself"},
        {"{\"anyOf\":[{\"anyOf\":[true,{},{},{},{},{},{},{},{}]},{\"anyOf\":[{},{},{},{},{},{},{},{}]}]}", "more than 16"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct terse_error error;
        struct json_schema *schema;
        if (json_schema_new(bad[i][0], JSON_STRICT, &schema, &error) != TERSE_E_ARGUMENT) fail_msg("%s is taken", bad[i][0]);
        assert_null(schema);
        if (!strstr(error.message, bad[i][1])) fail_msg("%s: %s", bad[i][0], error.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(a_chain_ends_in_time),
        cmocka_unit_test(what_is_let_through_is_valid),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
