#include "tool_request.h"

#include <stdio.h>
#include <string.h>

static const cJSON *function_of(const cJSON *tool) {
    const cJSON *function = json_field(tool, "function");
    return cJSON_IsObject(function) ? function : NULL;
}

static const char *name_of(const cJSON *tool) {
    const cJSON *function = function_of(tool), *name = function ? json_field(function, "name") : NULL;
    return cJSON_IsString(name) ? name->valuestring : NULL;
}

static bool check_tools(const cJSON *tools, struct api_error *error) {
    const cJSON *tool;
    size_t i = 0;
    if (!cJSON_IsArray(tools)) return api_fail(error, 400, NULL, "tools", "\"tools\" must be an array, not %s", json_kind(tools));
    cJSON_ArrayForEach(tool, tools) {
        char param[32];
        const char *type = NULL, *name = cJSON_IsObject(tool) ? name_of(tool) : NULL;
        snprintf(param, sizeof param, "tools[%zu]", i++);
        if (!cJSON_IsObject(tool)) return api_fail(error, 400, NULL, param, "%s must be an object, not %s", param, json_kind(tool));
        if (!json_text(tool, "type", &type, error)) return false;
        if (!type || strcmp(type, "function") != 0)
            return api_fail(error, 400, "unsupported", param, "%s must be of type \"function\", not \"%.40s\"", param,
                            type ? type : "");
        if (!name || !*name || strpbrk(name, "\"\\\n"))
            return api_fail(error, 400, NULL, param, "%s has no \"function\": {\"name\": ..., \"parameters\": ...}", param);
        const cJSON *parameters = json_field(function_of(tool), "parameters");
        if (parameters && !cJSON_IsObject(parameters))
            return api_fail(error, 400, NULL, param, "%s: \"parameters\" must be a JSON schema, not %s", param,
                            json_kind(parameters));
    }
    return true;
}

/* Requires a call of the tool of that name, of any where it is NULL. */
static bool require_call(const cJSON *tools, const char *name, struct request *r, struct api_error *error) {
    const cJSON *tool, *found = NULL;
    if (r->require_json)
        return api_fail(error, 400, NULL, "tool_choice", "a reply cannot be both a tool call and of \"response_format\"");
    cJSON_ArrayForEach(tool, tools) if (!found && (!name || strcmp(name, name_of(tool)) == 0)) found = tool;
    if (!found) return api_fail(error, 400, NULL, "tool_choice", "\"tool_choice\" asks for a function that \"tools\" has not");
    r->open_call = true;
    if (!name) return true;
    cJSON *one = cJSON_CreateArray();
    cJSON_AddItemToArray(one, cJSON_Duplicate(found, true));
    r->callable = cJSON_PrintUnformatted(one);
    cJSON_Delete(one);
    return r->callable || api_fail(error, 503, NULL, NULL, "no memory");
}

/* ---- */

static bool read_choice(const cJSON *body, const cJSON *tools, struct request *r, bool *none, struct api_error *error) {
    const cJSON *choice = json_field(body, "tool_choice");
    const char *word = cJSON_IsString(choice) ? choice->valuestring : NULL;
    *none = word && strcmp(word, "none") == 0;
    if (!choice || *none || (word && strcmp(word, "auto") == 0)) return true;
    if (word && strcmp(word, "required") == 0) return require_call(tools, NULL, r, error);
    const char *name = cJSON_IsObject(choice) ? name_of(choice) : NULL;
    if (!name)
        return api_fail(
            error, 400, NULL, "tool_choice",
            "\"tool_choice\" must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
    return require_call(tools, name, r, error);
}

bool tool_request_read(const cJSON *body, struct request *r, struct api_error *error) {
    const cJSON *tools = json_field(body, "tools");
    bool many = true, none;
    if (!json_flag(body, "parallel_tool_calls", &many, error)) return false;
    if (tools && !check_tools(tools, error)) return false;
    if (!read_choice(body, tools, r, &none, error)) return false;
    r->one_call = !many;
    if (none || !tools || !tools->child) return true;
    r->tools = cJSON_PrintUnformatted(tools);
    return r->tools || api_fail(error, 503, NULL, NULL, "no memory");
}
