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

static enum terse_status add_line(struct text_buffer *to, size_t depth, struct terse_error *error) {
    enum terse_status status = add_text(to, "\n", error);
    for (size_t i = 0; i < depth && !status; i++) status = add_text(to, "    ", error);
    return status;
}

enum terse_status tool_declare_indented(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                        struct terse_error *error) {
    (void)parsed;
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
        if (closes && --depth != SIZE_MAX && !empty) status = add_line(to, depth, error);
        if (!status) status = text_buffer_add(to, c, 1, error);
        if (opens) depth++;
        bool ends_line = (opens && !empty) || (!quoted && *c == ',');
        if (ends_line && !status) status = add_line(to, depth, error);
        if (!quoted && *c == ',') c++; /* the space */
    }
    free(spaced);
    return status;
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
