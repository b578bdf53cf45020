#include "tool_request.h"

#include <stdio.h>
#include <string.h>

enum { MOST_REQUIRED = 16 }; /* schemas in an anyOf */

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

/* ---- A call that is required ---------------------------------------------------------------------------------------------- */

/* Moves definitions of a function's parameters to where "$ref" looks for them: the whole schema. */
static bool lift_definitions(cJSON *parameters, cJSON *schema, struct api_error *error) {
    static const char *const keywords[] = {"$defs", "definitions"};
    for (size_t i = 0; i < 2; i++) {
        cJSON *from = cJSON_DetachItemFromObjectCaseSensitive(parameters, keywords[i]), *one;
        if (!from) continue;
        cJSON *to = cJSON_GetObjectItemCaseSensitive(schema, keywords[i]);
        if (!to) to = cJSON_AddObjectToObject(schema, keywords[i]);
        bool twice = false;
        while ((one = from->child) && !twice) {
            twice = cJSON_GetObjectItemCaseSensitive(to, one->string) != NULL;
            if (!twice) cJSON_AddItemToObject(to, one->string, cJSON_DetachItemViaPointer(from, one));
        }
        cJSON_Delete(from);
        if (twice)
            return api_fail(error, 400, "unsupported", "tools", "two tools have definitions of the same name in \"%s\"",
                            keywords[i]);
    }
    return true;
}

/* Returns the schema of a function's arguments, which are an object. */
static cJSON *arguments_schema(const cJSON *function) {
    const cJSON *given = json_field(function, "parameters");
    cJSON *parameters = given ? cJSON_Duplicate(given, true) : cJSON_CreateObject();
    if (!given) cJSON_AddBoolToObject(parameters, "additionalProperties", false); /* it has no parameters */
    bool open = !json_field(parameters, "type") && !json_field(parameters, "anyOf") && !json_field(parameters, "$ref");
    if (open) cJSON_AddStringToObject(parameters, "type", "object");
    return parameters;
}

static bool refers_to_itself(const cJSON *schema) {
    const cJSON *one;
    if (cJSON_IsString(schema) && schema->string && strcmp(schema->string, "$ref") == 0)
        return strcmp(schema->valuestring, "#") == 0;
    cJSON_ArrayForEach(one, schema) if (refers_to_itself(one)) return true;
    return false;
}

/* Returns the schema of a call; the definitions that it needs are added to `schema`. NULL: *error says why. */
static cJSON *call_schema(const cJSON *tool, cJSON *schema, struct api_error *error) {
    cJSON *call = cJSON_CreateObject(), *properties = cJSON_AddObjectToObject(call, "properties");
    cJSON *parameters = arguments_schema(function_of(tool));
    cJSON_AddStringToObject(call, "type", "object");
    cJSON_AddStringToObject(cJSON_AddObjectToObject(properties, "name"), "const", name_of(tool));
    bool good = !refers_to_itself(parameters) ||
                api_fail(error, 400, "unsupported", "tools", "\"$ref\": \"#\" is not understood in a tool's parameters");
    good = good && lift_definitions(parameters, schema, error);
    cJSON_AddItemToObject(properties, "arguments", parameters);
    static const char *const required[] = {"name", "arguments"};
    cJSON_AddItemToObject(call, "required", cJSON_CreateStringArray(required, 2));
    cJSON_AddBoolToObject(call, "additionalProperties", false);
    if (good) return call;
    cJSON_Delete(call);
    return NULL;
}

/* Requires a call of the tool of that name, of any where it is NULL. */
static bool require_call(const cJSON *tools, const char *name, struct request *r, struct api_error *error) {
    const cJSON *tool;
    if (r->require_json)
        return api_fail(error, 400, NULL, "tool_choice", "a reply cannot be both a tool call and of \"response_format\"");
    cJSON *schema = cJSON_CreateObject(), *calls = cJSON_AddArrayToObject(schema, "anyOf");
    bool good = true;
    cJSON_ArrayForEach(tool, tools) {
        if (!good || (name && strcmp(name, name_of(tool)) != 0)) continue;
        cJSON *call = call_schema(tool, schema, error);
        good = call && cJSON_AddItemToArray(calls, call);
    }
    int n = cJSON_GetArraySize(calls);
    if (good && n == 0)
        good = api_fail(error, 400, NULL, "tool_choice", "\"tool_choice\" asks for a function that \"tools\" has not");
    if (good && n > MOST_REQUIRED)
        good = api_fail(error, 400, "unsupported", "tool_choice", "of more than %d tools none can be required: name one",
                        MOST_REQUIRED);
    if (good) r->schema = cJSON_PrintUnformatted(schema);
    cJSON_Delete(schema);
    r->require_json = r->open_call = good;
    return good && (r->schema || api_fail(error, 503, NULL, NULL, "no memory"));
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
