#include "responses_request.h"

#include "buffer.h"

#include <stdio.h>
#include <string.h>

static bool is(const char *text, const char *other) { return text && strcmp(text, other) == 0; }

/* ---- Messages: items of the input become messages, and calls a part of the message before them */

static cJSON *add_message(cJSON *messages, const char *role) {
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddItemToArray(messages, message);
    return message;
}

/* Adds the content: a text, or parts of which all are texts. */
static bool add_content(cJSON *message, const cJSON *content, const char *param, struct api_error *error) {
    const cJSON *part;
    if (!cJSON_IsArray(content)) {
        if (content) cJSON_AddItemToObject(message, "content", cJSON_Duplicate(content, true));
        return true; /* whatever is no text is refused as a message's content */
    }
    cJSON *parts = cJSON_AddArrayToObject(message, "content");
    cJSON_ArrayForEach(part, content) {
        const char *type = NULL, *text = NULL;
        if (!cJSON_IsObject(part)) return api_fail(error, 400, NULL, param, "%s: a part of the content must be an object", param);
        if (!json_text(part, "type", &type, error) || !json_text(part, "text", &text, error)) return false;
        if (!text || !(is(type, "input_text") || is(type, "output_text") || is(type, "text")))
            return api_fail(error, 400, "unsupported", param,
                            "%s: parts of the content must be of type \"input_text\" or \"output_text\", not \"%.40s\"", param,
                            type ? type : "");
        cJSON *copy = cJSON_CreateObject();
        cJSON_AddStringToObject(copy, "type", "text");
        cJSON_AddStringToObject(copy, "text", text);
        cJSON_AddItemToArray(parts, copy);
    }
    return true;
}

static cJSON *last_message(const cJSON *messages) {
    return messages->child ? messages->child->prev : NULL; /* cJSON's lists end there */
}

static bool is_role(const cJSON *message, const char *role) { return is(cJSON_GetStringValue(json_field(message, "role")), role); }

/* Returns the last message where it has nothing but thoughts so far, NULL where it has more. */
static cJSON *thinking_message(const cJSON *messages) {
    cJSON *last = last_message(messages);
    return last && json_field(last, "reasoning_content") && !json_field(last, "content") && !json_field(last, "tool_calls") ? last
                                                                                                                            : NULL;
}

/* Begins a message of the assistant's with thoughts, which the items behind it add to. A summary of thoughts is none. */
static bool add_thoughts(cJSON *messages, const cJSON *item, const char *param, struct api_error *error) {
    const cJSON *content = json_field(item, "content"), *part;
    struct buffer whole = {0};
    cJSON_ArrayForEach(part, content) {
        const char *text = NULL;
        if (!cJSON_IsObject(part) || !json_text(part, "text", &text, error) || !text) {
            buffer_free(&whole);
            if (!error->status) api_fail(error, 400, NULL, param, "%s: its content has parts with a \"text\"", param);
            return false;
        }
        buffer_add(&whole, text, strlen(text));
    }
    if (whole.n && !whole.failed) cJSON_AddStringToObject(add_message(messages, "assistant"), "reasoning_content", whole.bytes);
    bool failed = whole.failed;
    buffer_free(&whole);
    return !failed || api_fail(error, 503, NULL, NULL, "no memory");
}

static bool add_call(cJSON *messages, const cJSON *item, const char *param, struct api_error *error) {
    const char *name = NULL, *arguments = NULL, *id = NULL;
    if (!json_text(item, "name", &name, error) || !json_text(item, "arguments", &arguments, error) ||
        !json_text(item, "call_id", &id, error))
        return false;
    if (!name || !arguments)
        return api_fail(error, 400, NULL, param, "%s: a function_call has a \"name\" and \"arguments\"", param);
    cJSON *last = last_message(messages);
    if (!last || !is_role(last, "assistant")) last = add_message(messages, "assistant");
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(last, "tool_calls");
    if (!calls) calls = cJSON_AddArrayToObject(last, "tool_calls");
    cJSON *call = cJSON_CreateObject();
    if (id) cJSON_AddStringToObject(call, "id", id);
    cJSON_AddStringToObject(call, "type", "function");
    cJSON *function = cJSON_AddObjectToObject(call, "function");
    cJSON_AddStringToObject(function, "name", name);
    cJSON_AddStringToObject(function, "arguments", arguments);
    cJSON_AddItemToArray(calls, call);
    return true;
}

static bool add_result(cJSON *messages, const cJSON *item, const char *param, struct api_error *error) {
    const char *id = NULL;
    const cJSON *output = json_field(item, "output");
    if (!json_text(item, "call_id", &id, error)) return false;
    if (!output) return api_fail(error, 400, NULL, param, "%s: a function_call_output has an \"output\"", param);
    cJSON *message = add_message(messages, "tool");
    if (id) cJSON_AddStringToObject(message, "tool_call_id", id);
    return add_content(message, output, param, error);
}

static bool add_item(cJSON *messages, const cJSON *item, const char *param, struct api_error *error) {
    const char *type = NULL, *role = NULL;
    if (!cJSON_IsObject(item)) return api_fail(error, 400, NULL, param, "%s must be an object, not %s", param, json_kind(item));
    if (!json_text(item, "type", &type, error) || !json_text(item, "role", &role, error)) return false;
    if (is(type, "function_call")) return add_call(messages, item, param, error);
    if (is(type, "function_call_output")) return add_result(messages, item, param, error);
    if (is(type, "reasoning")) return add_thoughts(messages, item, param, error);
    if (type && !is(type, "message"))
        return api_fail(error, 400, "unsupported", param,
                        "%s is of type \"%.40s\": items are messages, function calls and their outputs", param, type);
    if (!role) return api_fail(error, 400, NULL, param, "%s has no \"role\"", param);
    cJSON *thinking = thinking_message(messages), *message = is(role, "assistant") ? thinking : NULL;
    if (thinking && !message) cJSON_Delete(cJSON_DetachItemViaPointer(messages, thinking)); /* they led to nothing */
    return add_content(message ? message : add_message(messages, role), json_field(item, "content"), param, error);
}

static bool add_messages(cJSON *chat, const cJSON *body, struct api_error *error) {
    const cJSON *input = json_field(body, "input"), *item;
    const char *instructions = NULL;
    cJSON *messages = cJSON_AddArrayToObject(chat, "messages");
    size_t i = 0;
    if (!json_text(body, "instructions", &instructions, error)) return false;
    if (!input) return api_fail(error, 400, NULL, "input", "\"input\" is missing");
    if (!cJSON_IsString(input) && !(cJSON_IsArray(input) && input->child))
        return api_fail(error, 400, NULL, "input", "\"input\" must be a string or an array of items");
    if (instructions) cJSON_AddStringToObject(add_message(messages, "system"), "content", instructions);
    if (cJSON_IsString(input)) return add_content(add_message(messages, "user"), input, "input", error);
    cJSON_ArrayForEach(item, input) {
        char param[48];
        snprintf(param, sizeof param, "input[%zu]", i++);
        if (!add_item(messages, item, param, error)) return false;
    }
    cJSON_Delete(cJSON_DetachItemViaPointer(messages, thinking_message(messages)));
    return true;
}

/* ---- Tools and formats, whose members a chat has one level deeper */

/* Returns an object that has the others' members but "type" in `inner`. */
static cJSON *deeper(const cJSON *object, const char *inner) {
    const cJSON *member;
    cJSON *outer = cJSON_CreateObject(), *deep = cJSON_CreateObject();
    cJSON_ArrayForEach(member, object)
        cJSON_AddItemToObject(strcmp(member->string, "type") == 0 ? outer : deep, member->string, cJSON_Duplicate(member, true));
    cJSON_AddItemToObject(outer, inner, deep); /* behind the type, as chats have it: prompts repeat the order */
    return outer;
}

static bool is_function(const cJSON *value) {
    const cJSON *type = cJSON_IsObject(value) ? json_field(value, "type") : NULL;
    return cJSON_IsString(type) && strcmp(type->valuestring, "function") == 0;
}

static void add_tools(cJSON *chat, const cJSON *body) {
    const cJSON *tools = json_field(body, "tools"), *choice = json_field(body, "tool_choice"), *tool;
    cJSON *copies = tools ? cJSON_Duplicate(tools, false) : NULL;
    cJSON_ArrayForEach(tool, tools)
        cJSON_AddItemToArray(copies, is_function(tool) ? deeper(tool, "function") : cJSON_Duplicate(tool, true));
    if (tools) cJSON_AddItemToObject(chat, "tools", copies);
    if (choice)
        cJSON_AddItemToObject(chat, "tool_choice",
                              is_function(choice) ? deeper(choice, "function") : cJSON_Duplicate(choice, true));
}

static bool add_format(cJSON *chat, const cJSON *body, struct api_error *error) {
    const cJSON *text = json_field(body, "text"), *format, *member;
    const char *type = NULL;
    if (!text) return true;
    if (!cJSON_IsObject(text)) return api_fail(error, 400, NULL, "text", "\"text\" must be an object, not %s", json_kind(text));
    cJSON_ArrayForEach(member, text) {
        bool medium = cJSON_IsString(member) && strcmp(member->valuestring, "medium") == 0;
        if (is(member->string, "format") || cJSON_IsNull(member) || (is(member->string, "verbosity") && medium)) continue;
        return api_fail(error, 400, "unsupported", "text", "terse has no \"%.40s\" in \"text\" with this value: leave it out",
                        member->string);
    }
    if (!(format = json_field(text, "format"))) return true;
    if (cJSON_IsObject(format) && !json_text(format, "type", &type, error)) return false;
    cJSON_AddItemToObject(chat, "response_format",
                          is(type, "json_schema") ? deeper(format, "json_schema") : cJSON_Duplicate(format, true));
    return true;
}

/* Reads how much a reply thinks. Of thoughts there are no summaries. */
static bool add_effort(cJSON *chat, const cJSON *body, struct api_error *error) {
    static const char *const efforts[] = {"none", "low", "medium", "high"};
    const cJSON *reasoning = json_field(body, "reasoning"), *member;
    const char *effort = NULL;
    if (!reasoning) return true;
    if (!cJSON_IsObject(reasoning))
        return api_fail(error, 400, NULL, "reasoning", "\"reasoning\" must be an object, not %s", json_kind(reasoning));
    cJSON_ArrayForEach(member, reasoning) {
        if (cJSON_IsNull(member) || is(member->string, "effort")) continue;
        return api_fail(error, 400, "unsupported", "reasoning",
                        "terse has no \"%.40s\" in \"reasoning\" with this value: leave it out", member->string);
    }
    if (!json_text(reasoning, "effort", &effort, error)) return false;
    bool known = !effort;
    for (size_t i = 0; i < 4 && effort; i++) known |= strcmp(effort, efforts[i]) == 0;
    if (effort) cJSON_AddStringToObject(chat, "reasoning_effort", effort);
    return known ||
           api_fail(error, 400, NULL, "reasoning",
                    "the effort in \"reasoning\" must be \"none\", \"low\", \"medium\" or \"high\", not \"%.40s\"", effort);
}

/* ---- */

static bool is_written_otherwise(const char *name) {
    static const char *const names[] = {"input", "instructions", "tools", "tool_choice", "text", "max_output_tokens", "reasoning"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static bool add_all(cJSON *chat, const cJSON *body, struct api_error *error) {
    const cJSON *field, *most = json_field(body, "max_output_tokens");
    int64_t tokens = 0;
    cJSON_ArrayForEach(field, body) if (!is_written_otherwise(field->string))
        cJSON_AddItemToObject(chat, field->string, cJSON_Duplicate(field, true));
    if (!json_whole(body, "max_output_tokens", 1, INT32_MAX, &tokens, error)) return false;
    if (most) cJSON_AddNumberToObject(chat, "max_completion_tokens", (double)tokens);
    add_tools(chat, body);
    return add_effort(chat, body, error) && add_format(chat, body, error) && add_messages(chat, body, error);
}

/* Returns what replies repeat: the request's values, or what holds without them. */
static char *text_shown(const cJSON *body) {
    static const struct {
        const char *name, *usual;
    } fields[] = {{"instructions", "null"},
                  {"max_output_tokens", "null"},
                  {"metadata", "{}"},
                  {"parallel_tool_calls", "true"},
                  {"previous_response_id", "null"},
                  {"reasoning", "{\"effort\":null,\"summary\":null}"},
                  {"temperature", "null"},
                  {"text", "{\"format\":{\"type\":\"text\"}}"},
                  {"tool_choice", "\"auto\""},
                  {"tools", "[]"},
                  {"top_p", "null"},
                  {"truncation", "\"disabled\""}};
    cJSON *shown = cJSON_CreateObject();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const cJSON *given = json_field(body, fields[i].name);
        cJSON_AddItemToObject(shown, fields[i].name, given ? cJSON_Duplicate(given, true) : cJSON_Parse(fields[i].usual));
    }
    char *text = cJSON_PrintUnformatted(shown);
    cJSON_Delete(shown);
    return text;
}

cJSON *responses_chat(const cJSON *body, char **shown, struct api_error *error) {
    cJSON *chat = cJSON_CreateObject();
    *shown = NULL;
    if (add_all(chat, body, error) && ((*shown = text_shown(body)) || api_fail(error, 503, NULL, NULL, "no memory"))) return chat;
    cJSON_Delete(chat);
    return NULL;
}
