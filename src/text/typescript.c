/* Writes a tool as a type of TypeScript, the way of gpt-oss's template, whose white space is kept, odd as it is. */
#include "text/json_text.h"
#include "text/tool_declare.h"
#include "text/tool_writing.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_type(const cJSON *schema, const char *type) { return strcmp(string_of(schema, "type"), type) == 0; }

/* Adds a value as JSON, strings as they are where they are `bare`. */
static void add_value(struct writing *w, const cJSON *value, bool bare) {
    if (bare && cJSON_IsString(value)) {
        writing_add(w, value->valuestring);
        return;
    }
    char *printed = cJSON_PrintUnformatted(value), *spaced = printed ? json_spaced(printed, strlen(printed)) : NULL;
    if (spaced)
        writing_add(w, spaced);
    else if (!w->status)
        w->status = status_no_memory(w->error, 64, "the tools of a conversation");
    free(spaced);
    cJSON_free(printed);
}

static void add_strings(struct writing *w, const cJSON *array, const char *between) {
    const cJSON *one;
    cJSON_ArrayForEach(one, array) {
        add_value(w, one, true);
        if (one->next) writing_add(w, between);
    }
}

static void add_type(struct writing *w, const cJSON *schema, unsigned depth);

static void add_nullable(struct writing *w, const cJSON *schema) {
    if (cJSON_IsTrue(member_of(schema, "nullable"))) writing_add(w, " | null");
}

static void add_array(struct writing *w, const cJSON *schema, unsigned depth) {
    const cJSON *items = member_of(schema, "items");
    size_t begin = w->to->size;
    if (cJSON_IsObject(items) && items->child) add_type(w, items, depth);
    size_t n = w->to->size - begin;
    bool object_or_object = n == 15 && memcmp(w->to->at + begin, "object | object", 15) == 0;
    if (!n || n > 50 || object_or_object) {
        w->to->size = begin;
        writing_add(w, "any");
    }
    writing_add(w, "[]");
    add_nullable(w, schema);
}

static void add_one_of(struct writing *w, const cJSON *variants, unsigned depth) {
    const cJSON *one;
    cJSON_ArrayForEach(one, variants) {
        add_type(w, one, depth);
        if (*string_of(one, "description")) writing_add(w, "// "), writing_add(w, string_of(one, "description"));
        if (member_of(one, "default"))
            writing_add(w, "                    // default: "), add_value(w, member_of(one, "default"), false);
        if (one->next) writing_add(w, " | \n");
    }
}

static bool is_required(const cJSON *schema, const char *name) {
    const cJSON *one;
    cJSON_ArrayForEach(one,
                       member_of(schema, "required")) if (cJSON_IsString(one) && strcmp(one->valuestring, name) == 0) return true;
    return false;
}

static void add_object(struct writing *w, const cJSON *schema, unsigned depth) {
    const cJSON *properties = member_of(schema, "properties"), *one;
    if (!cJSON_IsObject(properties) || !properties->child) {
        writing_add(w, "object");
        return;
    }
    writing_add(w, "{\n");
    cJSON_ArrayForEach(one, properties) {
        writing_add(w, one->string);
        if (!is_required(schema, one->string)) writing_add(w, "?");
        writing_add(w, ": \n                ");
        add_type(w, one, depth);
        if (one->next) writing_add(w, ", ");
    }
    writing_add(w, "}");
}

static void add_type(struct writing *w, const cJSON *schema, unsigned depth) {
    const cJSON *type = member_of(schema, "type"), *one_of = member_of(schema, "oneOf"), *choices = member_of(schema, "enum");
    if (depth == TOOL_DEEPEST) {
        writing_add(w, "any");
    } else if (is_type(schema, "array")) {
        add_array(w, schema, depth + 1);
    } else if (cJSON_IsArray(type) && type->child) {
        add_strings(w, type, " | ");
    } else if (cJSON_IsArray(one_of) && one_of->child) {
        add_one_of(w, one_of, depth + 1);
    } else if (is_type(schema, "string") && cJSON_IsArray(choices) && choices->child) {
        writing_add(w, "\"");
        add_strings(w, choices, "\" | \"");
        writing_add(w, "\"");
    } else if (is_type(schema, "string")) {
        writing_add(w, "string");
        add_nullable(w, schema);
    } else if (is_type(schema, "number") || is_type(schema, "integer")) {
        writing_add(w, "number");
    } else if (is_type(schema, "boolean")) {
        writing_add(w, "boolean");
    } else if (is_type(schema, "object")) {
        add_object(w, schema, depth + 1);
    } else {
        writing_add(w, "any");
    }
}

/* Returns where the default of a parameter stands in the tool's text json[n], so that a number stays as it is written. */
static struct text_span find_default(const char *json, size_t n, const char *parameter) {
    const char *const names[] = {"function", "parameters", "properties", parameter, "default"};
    struct text_span at = {0, n};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct text_span inner = json_member(json + at.begin, at.end - at.begin, names[i]);
        at = (struct text_span){at.begin + inner.begin, at.begin + inner.end};
    }
    return at;
}

static void add_default(struct writing *w, const char *json, size_t n, const cJSON *schema, bool bare) {
    const cJSON *value = member_of(schema, "default");
    struct text_span at = find_default(json, n, schema->string);
    char *spaced = bare && cJSON_IsString(value) ? NULL : json_spaced(json + at.begin, at.end - at.begin);
    if (spaced)
        writing_add(w, spaced);
    else
        add_value(w, value, bare);
    free(spaced);
}

static void add_parameter(struct writing *w, const char *json, size_t n, const cJSON *parameters, const cJSON *schema) {
    const cJSON *value = member_of(schema, "default");
    bool choices = cJSON_IsArray(member_of(schema, "enum")), one_of = cJSON_IsArray(member_of(schema, "oneOf"));
    if (*string_of(schema, "description"))
        writing_add(w, "// "), writing_add(w, string_of(schema, "description")), writing_add(w, "\n");
    writing_add(w, schema->string);
    if (!is_required(parameters, schema->string)) writing_add(w, "?");
    writing_add(w, ": ");
    add_type(w, schema, 0);
    if (value)
        writing_add(w, one_of && !choices ? "// default: " : ", // default: "), add_default(w, json, n, schema, choices || one_of);
    writing_add(w, ",\n");
}

enum terse_status tool_declare_typescript(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                          struct terse_error *error) {
    struct writing w = {to, error, TERSE_OK};
    const cJSON *function = member_of(parsed, "function"), *parameters = member_of(function, "parameters"), *one;
    const cJSON *properties = member_of(parameters, "properties");
    writing_add(&w, "// ");
    writing_add(&w, string_of(function, "description"));
    writing_add(&w, "\ntype ");
    writing_add(&w, string_of(function, "name"));
    writing_add(&w, " = ");
    if (cJSON_IsObject(properties) && properties->child) {
        writing_add(&w, "(_: {\n");
        cJSON_ArrayForEach(one, properties) add_parameter(&w, json, n, parameters, one);
        writing_add(&w, "}) => any;\n\n");
    } else {
        writing_add(&w, "() => any;\n\n");
    }
    return w.status;
}
