/* Reads tools and tool calls. cJSON says whether the JSON is what it shall be; what is written comes from the caller's text, so that
 * numbers stay as they are. */
#include "text/chat_tools.h"

#include "text/json_text.h"
#include "text/utf8.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Returns whether a function's name can be written between quotes as it is. */
static bool is_name(const cJSON *name) {
    if (!cJSON_IsString(name) || !name->valuestring[0]) return false;
    for (const char *at = name->valuestring; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == '"' || *at == '\\') return false;
    return true;
}

/* Parses an array; NULL where the text is none. */
static cJSON *parse_array(const char *json) {
    size_t n = strlen(json);
    cJSON *array = utf8_prefix(json, n) == n ? cJSON_ParseWithOpts(json, NULL, true) : NULL;
    if (cJSON_IsArray(array)) return array;
    cJSON_Delete(array);
    return NULL;
}

/* ---- Tools --------------------------------------------------------------------------------------------------------------- */

enum terse_status chat_tools_parse(const char *json, cJSON **tools, struct terse_error *error) {
    const cJSON *tool;
    size_t i = 1;
    *tools = NULL;
    if (!json) return TERSE_OK;
    cJSON *array = parse_array(json);
    if (!array) return status_fail(error, TERSE_E_ARGUMENT, "the tools are no JSON array");
    enum terse_status status = TERSE_OK;
    cJSON_ArrayForEach(tool, array) {
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(tool, "type");
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        if (!status && type && (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0))
            status = status_fail(error, TERSE_E_UNSUPPORTED, "tool %zu is of another type than \"function\"", i);
        if (!status && !is_name(cJSON_GetObjectItemCaseSensitive(function, "name")))
            status =
                status_fail(error, TERSE_E_ARGUMENT,
                            "tool %zu has no function with a name: give {\"type\": \"function\", \"function\": {\"name\": ..., "
                            "\"parameters\": ...}}",
                            i);
        i++;
    }
    if (status || i == 1)
        cJSON_Delete(array);
    else
        *tools = array;
    return status;
}

enum terse_status chat_tools_write(const struct tool_form *form, const char *json, const cJSON *tools, struct chat_declared *to,
                                   struct terse_error *error) {
    struct text_span item = {0, 0};
    const cJSON *tool;
    size_t n = strlen(json), n_tools = (size_t)cJSON_GetArraySize(tools);
    enum terse_status status = TERSE_OK;
    *to = (struct chat_declared){.span = calloc(n_tools + 1, sizeof *to->span)};
    if (!to->span) return status_no_memory(error, n_tools * sizeof *to->span, "the tools of a conversation");
    cJSON_ArrayForEach(tool, tools) {
        size_t begin = to->text.size;
        json_next_item(json, n, &item);
        if (!status) status = form->declare(&to->text, json + item.begin, item.end - item.begin, tool, error);
        to->span[to->n++] = (struct text_span){begin, to->text.size};
    }
    return status;
}

void chat_declared_free(struct chat_declared *declared) {
    text_buffer_free(&declared->text);
    free(declared->span);
    *declared = (struct chat_declared){0};
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

/* Returns the arguments of a call as spaced text; NULL where they are no object. *refused: where there is no memory. */
static char *read_arguments(const cJSON *arguments, bool *refused) {
    bool is_string = cJSON_IsString(arguments);
    char *printed = is_string || !cJSON_IsObject(arguments) ? NULL : cJSON_PrintUnformatted(arguments);
    const char *text = is_string ? arguments->valuestring : printed;
    cJSON *read = text ? cJSON_ParseWithOpts(text, NULL, true) : NULL;
    char *spaced = cJSON_IsObject(read) ? json_spaced(text, strlen(text)) : NULL;
    *refused = !spaced && (cJSON_IsObject(read) || (cJSON_IsObject(arguments) && !printed));
    cJSON_Delete(read);
    cJSON_free(printed);
    return spaced;
}

static enum terse_status read_call(const cJSON *entry, size_t message, struct chat_call *call, struct terse_error *error) {
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(entry, "function"), *from = function ? function : entry;
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(from, "name");
    bool refused;
    if (!is_name(name)) return status_fail(error, TERSE_E_ARGUMENT, "message %zu has a tool call without a name", message);
    call->arguments = read_arguments(cJSON_GetObjectItemCaseSensitive(from, "arguments"), &refused);
    if (!call->arguments && !refused)
        return status_fail(error, TERSE_E_ARGUMENT, "message %zu: the arguments of its tool calls must be JSON objects", message);
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(entry, "id");
    size_t size = strlen(name->valuestring) + 1, n_id = cJSON_IsString(id) ? strlen(id->valuestring) + 1 : 0;
    call->name = malloc(size);
    if (n_id && !(call->id = malloc(n_id))) return status_no_memory(error, n_id, "the tool calls of a conversation");
    if (n_id) memcpy(call->id, id->valuestring, n_id);
    if (!call->name || !call->arguments) return status_no_memory(error, size, "the tool calls of a conversation");
    memcpy(call->name, name->valuestring, size);
    return TERSE_OK;
}

enum terse_status chat_calls_read(const char *json, size_t message, struct chat_calls *calls, struct terse_error *error) {
    const cJSON *entry;
    *calls = (struct chat_calls){0};
    if (!json) return TERSE_OK;
    cJSON *array = parse_array(json);
    if (!array) return status_fail(error, TERSE_E_ARGUMENT, "message %zu: its tool calls are no JSON array", message);
    size_t n = (size_t)cJSON_GetArraySize(array);
    enum terse_status status = TERSE_OK;
    if (!(calls->call = calloc(n + 1, sizeof *calls->call)))
        status = status_no_memory(error, n + 1, "the tool calls of a conversation");
    cJSON_ArrayForEach(entry, array) if (!status) status = read_call(entry, message, &calls->call[calls->n++], error);
    cJSON_Delete(array);
    if (status) chat_calls_free(calls);
    return status;
}

void chat_calls_free(struct chat_calls *calls) {
    for (size_t i = 0; i < calls->n; i++) {
        free(calls->call[i].name);
        free(calls->call[i].arguments);
        free(calls->call[i].id);
    }
    free(calls->call);
    *calls = (struct chat_calls){0};
}
