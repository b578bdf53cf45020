#include "text/tool_declare.h"

#include "text/json_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static enum terse_status add_text(struct text_buffer *to, const char *text, struct terse_error *error) {
    return text_buffer_add(to, text, strlen(text), error);
}

/* Adds JSON json[n] with the spaces that templates write. */
static enum terse_status add_spaced(struct text_buffer *to, const char *json, size_t n, struct terse_error *error) {
    char *spaced = json_spaced(json, n);
    enum terse_status status = spaced ? add_text(to, spaced, error) : status_no_memory(error, n, "the tools of a conversation");
    free(spaced);
    return status;
}

enum terse_status tool_declare_line(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                    struct terse_error *error) {
    (void)parsed;
    return add_spaced(to, json, n, error);
}

static enum terse_status add_line(struct text_buffer *to, size_t spaces, struct terse_error *error) {
    enum terse_status status = add_text(to, "\n", error);
    for (size_t i = 0; i < spaces && !status; i++) status = add_text(to, " ", error);
    return status;
}

enum terse_status tool_add_indented(struct text_buffer *to, const char *json, size_t n, size_t within, struct terse_error *error) {
    char *spaced = json_spaced(json, n);
    if (!spaced) return status_no_memory(error, n, "the tools of a conversation");
    enum terse_status status = TERSE_OK;
    size_t depth = 0;
    bool quoted = false;
    for (const char *c = spaced; *c && !status; c++) {
        bool opens = !quoted && (*c == '{' || *c == '['), closes = !quoted && (*c == '}' || *c == ']');
        bool empty = (opens && (c[1] == '}' || c[1] == ']')) || (closes && (c[-1] == '{' || c[-1] == '['));
        if (quoted && *c == '\\') {
            status = text_buffer_add(to, c++, 2, error);
            continue;
        }
        if (*c == '"') quoted = !quoted;
        if (closes && --depth != SIZE_MAX && !empty) status = add_line(to, within + 4 * depth, error);
        if (!status) status = text_buffer_add(to, c, 1, error);
        if (opens) depth++;
        bool ends_line = (opens && !empty) || (!quoted && *c == ',');
        if (ends_line && !status) status = add_line(to, within + 4 * depth, error);
        if (!quoted && *c == ',') c++; /* the space */
    }
    free(spaced);
    return status;
}

enum terse_status tool_declare_indented(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                        struct terse_error *error) {
    (void)parsed;
    return tool_add_indented(to, json, n, 0, error);
}

enum terse_status tool_declare_function(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                        struct terse_error *error) {
    (void)parsed;
    struct text_span function = json_member(json, n, "function");
    return add_spaced(to, json + function.begin, function.end - function.begin, error);
}

enum terse_status tool_declare_block(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                     struct terse_error *error) {
    (void)parsed;
    enum terse_status status = add_text(to, "\n```json\n", error);
    if (!status) status = add_spaced(to, json, n, error);
    return status ? status : add_text(to, "\n```\n", error);
}

/* Adds a function's name, description and parameters, each behind a text. What it lacks is empty. */
static enum terse_status add_parts(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                   const char *const before[3], struct terse_error *error) {
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(parsed, "function");
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(function, "name"));
    const char *description = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(function, "description"));
    struct text_span whole = json_member(json, n, "function");
    const char *text = json + whole.begin;
    struct text_span parameters = json_member(text, whole.end - whole.begin, "parameters");
    enum terse_status status = add_text(to, before[0], error);
    if (!status) status = add_text(to, name, error);
    if (!status) status = add_text(to, before[1], error);
    if (!status) status = add_text(to, description ? description : "", error);
    if (!status) status = add_text(to, before[2], error);
    if (status) return status;
    if (parameters.begin == parameters.end) return add_text(to, "{}", error);
    return add_spaced(to, text + parameters.begin, parameters.end - parameters.begin, error);
}

enum terse_status tool_declare_heading(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                       struct terse_error *error) {
    static const char *const before[] = {"### ", "\nDescription: ", "\n\nParameters: "};
    return add_parts(to, json, n, parsed, before, error);
}

enum terse_status tool_declare_responses(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                         struct terse_error *error) {
    static const char *const before[] = {"    {\"name\": \"", "\", \"description\": \"", "\", \"parameters\": "};
    enum terse_status status = add_parts(to, json, n, parsed, before, error);
    return status ? status : add_text(to, ", \"responses\": null}", error);
}

enum terse_status tool_declare_unescaped(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                         struct terse_error *error) {
    struct text_span function = json_member(json, n, "function");
    const char *text = json + function.begin;
    const cJSON *one;
    enum terse_status status = add_text(to, "{\"type\": \"function\", \"function\": {", error);
    bool first = true;
    cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(parsed, "function")) {
        if (status || strcmp(one->string, "return") == 0) continue;
        struct text_span value = json_member(text, function.end - function.begin, one->string);
        status = add_text(to, first ? "\"" : ", \"", error);
        first = false;
        if (!status) status = add_text(to, one->string, error);
        if (!status) status = add_text(to, "\": ", error);
        if (cJSON_IsString(one)) {
            if (!status) status = add_text(to, "\"", error);
            if (!status) status = add_text(to, one->valuestring, error);
            if (!status) status = add_text(to, "\"", error);
        } else if (!status) {
            status = add_spaced(to, text + value.begin, value.end - value.begin, error);
        }
    }
    return status ? status : add_text(to, "}}", error);
}
