/* Writes a tool as a function of Python, the way of Command R's template for tools. */
#include "text/tool_declare.h"
#include "text/tool_writing.h"

#include <stdbool.h>
#include <string.h>

/* Returns the Python name of a JSON type, or NULL where it has none of one word. */
static const char *plain_type(const char *type) {
    static const char *const names[][2] = {{"string", "str"}, {"number", "float"}, {"integer", "int"}, {"boolean", "bool"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(type, names[i][0]) == 0) return names[i][1];
    return NULL;
}

static void add_type(struct writing *w, const cJSON *schema, unsigned depth) {
    const cJSON *type = member_of(schema, "type"), *one;
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    bool array = strcmp(name, "array") == 0, object = strcmp(name, "object") == 0;
    if (plain_type(name)) {
        writing_add(w, plain_type(name));
    } else if ((array || object) && depth < TOOL_DEEPEST) {
        writing_add(w, array ? "List[" : "Dict[str, ");
        add_type(w, member_of(schema, array ? "items" : "additionalProperties"), depth + 1);
        writing_add(w, "]");
    } else if (cJSON_IsArray(type)) {
        writing_add(w, "Union[");
        cJSON_ArrayForEach(one, type) {
            const char *each = cJSON_IsString(one) ? plain_type(one->valuestring) : NULL;
            writing_add(w, each ? each : "Any");
            if (one->next) writing_add(w, ",");
        }
        writing_add(w, "]");
    } else {
        writing_add(w, "Any");
    }
}

static bool is_required(const cJSON *parameters, const char *name) {
    const cJSON *one;
    cJSON_ArrayForEach(one, member_of(parameters, "required")) if (cJSON_IsString(one) &&
                                                                   strcmp(one->valuestring, name) == 0) return true;
    return false;
}

/* Adds the type of a parameter, which may be left out unless it is required; then `optional` stands behind it. */
static void add_parameter(struct writing *w, const cJSON *parameters, const cJSON *one, const char *optional) {
    bool required = is_required(parameters, one->string);
    if (!required) writing_add(w, "Optional[");
    add_type(w, one, 0);
    if (!required) writing_add(w, optional);
}

enum terse_status tool_declare_python(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                      struct terse_error *error) {
    (void)json, (void)n;
    const cJSON *function = member_of(parsed, "function"), *parameters = member_of(function, "parameters"), *one;
    const cJSON *properties = member_of(parameters, "properties"), *first = cJSON_IsObject(properties) ? properties->child : NULL;
    struct writing w = {to, error, TERSE_OK};
    writing_add(&w, "```python\ndef ");
    writing_add(&w, string_of(function, "name"));
    writing_add(&w, "(");
    for (one = first; one; one = one->next) {
        writing_add(&w, one == first ? "" : ", ");
        writing_add(&w, one->string);
        writing_add(&w, ": ");
        add_parameter(&w, parameters, one, "] = None");
    }
    writing_add(&w, ") -> List[Dict]:\n    \"\"\"");
    writing_add(&w, string_of(function, "description"));
    for (one = first; one; one = one->next) {
        writing_add(&w, one == first ? "\n\n    Args:\n        " : "\n        ");
        writing_add(&w, one->string);
        writing_add(&w, " (");
        add_parameter(&w, parameters, one, "]");
        writing_add(&w, "): ");
        writing_add(&w, string_of(one, "description"));
    }
    writing_add(&w, "\n    \"\"\"\n    pass\n```");
    return w.status;
}
