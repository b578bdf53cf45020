#include "chat_prompt.h"

#include "buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MESSAGES = 4096 };

/* ---- Messages */

struct messages {
    struct terse_message *message; /* [n]; roles are the JSON's or literals, contents their own */
    char **calls;                  /* [n] the tool calls of each as JSON; NULL: none */
    const char **ids, **thoughts;  /* [n] the JSON's: of the call that a tool answers, of the assistant; or NULL */
    size_t n;
};

static void free_messages(struct messages *m) {
    for (size_t i = 0; i < m->n; i++) {
        free((char *)m->message[i].content);
        cJSON_free(m->calls[i]);
    }
    free(m->message);
    free(m->calls);
    free(m->ids);
    free(m->thoughts);
}

static bool read_part(const cJSON *part, struct buffer *text, const char *param, struct api_error *error) {
    const char *type = NULL, *piece = NULL;
    if (!cJSON_IsObject(part)) return api_fail(error, 400, NULL, param, "%s: a part of the content must be an object", param);
    if (!json_text(part, "type", &type, error)) return false;
    if (!type || strcmp(type, "text") != 0)
        return api_fail(error, 400, "unsupported", param, "%s: parts of the content must be of type \"text\", not \"%.40s\"", param,
                        type ? type : "");
    if (!json_text(part, "text", &piece, error)) return false;
    if (!piece) return api_fail(error, 400, NULL, param, "%s: a part of the content has no \"text\"", param);
    buffer_add_text(text, piece);
    return true;
}

/* Reads a string, parts of type text, or null where a reply has none. */
static bool read_content(const cJSON *content, bool reply, struct buffer *text, const char *param, struct api_error *error) {
    const cJSON *part;
    buffer_add(text, "", 0);
    if (cJSON_IsString(content)) {
        buffer_add_text(text, content->valuestring);
    } else if (cJSON_IsArray(content)) {
        cJSON_ArrayForEach(part, content) if (!read_part(part, text, param, error)) return false;
    } else if (content || !reply) {
        return api_fail(error, 400, NULL, param, "%s: \"content\" must be a string or an array of parts, not %s", param,
                        content ? json_kind(content) : "missing");
    }
    return !text->failed || api_fail(error, 503, NULL, NULL, "no memory");
}

/* Reads the tool calls of a message; *calls is NULL where there are none. */
static bool read_calls(const cJSON *entry, bool reply, char **calls, const char *param, struct api_error *error) {
    const cJSON *field = json_field(entry, "tool_calls");
    *calls = NULL;
    if (json_field(entry, "function_call"))
        return api_fail(error, 400, "unsupported", param, "%s has a \"function_call\": use \"tool_calls\"", param);
    if (!field || (cJSON_IsArray(field) && !field->child)) return true;
    if (!cJSON_IsArray(field) || !reply)
        return api_fail(error, 400, NULL, param, "%s: \"tool_calls\" must be an array, and of an assistant's message", param);
    *calls = cJSON_PrintUnformatted(field);
    return *calls || api_fail(error, 503, NULL, NULL, "no memory");
}

static bool read_message(const cJSON *entry, struct terse_message *message, char **calls, const char *param,
                         struct api_error *error) {
    const char *role = NULL;
    struct buffer text = {0};
    if (!cJSON_IsObject(entry)) return api_fail(error, 400, NULL, param, "%s must be an object, not %s", param, json_kind(entry));
    if (!json_text(entry, "role", &role, error)) return false;
    if (!role) return api_fail(error, 400, NULL, param, "%s has no \"role\"", param);
    if (strcmp(role, "developer") == 0) role = "system"; /* what OpenAI calls it now */
    bool reply = strcmp(role, "assistant") == 0;
    if (!reply && strcmp(role, "system") != 0 && strcmp(role, "user") != 0 && strcmp(role, "tool") != 0)
        return api_fail(error, 400, NULL, param, "%s has the role \"%.40s\": the roles are system, user, assistant and tool", param,
                        role);
    if (!read_calls(entry, reply, calls, param, error)) return false;
    if (!read_content(json_field(entry, "content"), reply, &text, param, error)) {
        buffer_free(&text);
        cJSON_free(*calls);
        return false;
    }
    *message = (struct terse_message){role, text.bytes};
    return true;
}

static bool read_messages(const cJSON *body, struct messages *m, struct api_error *error) {
    const cJSON *field = json_field(body, "messages"), *entry;
    size_t n = cJSON_IsArray(field) ? (size_t)cJSON_GetArraySize(field) : 0;
    if (!n || n > MOST_MESSAGES)
        return api_fail(error, 400, NULL, "messages", "\"messages\" must be an array of 1 to %d messages", MOST_MESSAGES);
    m->message = calloc(n, sizeof *m->message);
    m->calls = calloc(n, sizeof *m->calls);
    m->ids = calloc(n, sizeof *m->ids);
    m->thoughts = calloc(n, sizeof *m->thoughts);
    if (!m->message || !m->calls || !m->ids || !m->thoughts) return api_fail(error, 503, NULL, NULL, "no memory");
    cJSON_ArrayForEach(entry, field) {
        char param[48];
        snprintf(param, sizeof param, "messages[%zu]", m->n);
        if (!read_message(entry, &m->message[m->n], &m->calls[m->n], param, error)) return false;
        size_t i = m->n++;
        if (!json_text(entry, "tool_call_id", &m->ids[i], error) || !json_text(entry, "reasoning_content", &m->thoughts[i], error))
            return false;
    }
    return true;
}

/* ---- Tokens */

static struct terse_chat_options options_of(const struct request_limits *limits, const struct messages *m,
                                            const struct request *r) {
    struct terse_chat_options options = request_chat_options(limits, r);
    options.tool_calls = (const char *const *)m->calls;
    options.tool_call_ids = m->ids;
    options.thoughts = m->thoughts;
    return options;
}

static bool refuse(const struct request *r, const struct terse_error *why, struct api_error *error) {
    bool unsupported = why->code == TERSE_E_UNSUPPORTED, thinks = unsupported && (r->effort || r->thinking != TERSE_THINKING_USUAL);
    const char *param = thinks && r->api == API_RESPONSES ? "reasoning"
                        : thinks && r->effort             ? "reasoning_effort"
                        : thinks                          ? "chat_template_kwargs"
                        : unsupported && r->tools         ? "tools"
                                                          : "messages";
    return api_fail(error, why->code == TERSE_E_MEMORY ? 503 : 400, unsupported ? "unsupported" : NULL, param, "%s%s%s%s",
                    thinks ? "\"" : "", thinks ? param : "", thinks ? "\": " : "", why->message);
}

/* Returns how many tokens behind the last message are marks of thoughts, which the next turn does not have. */
static size_t reply_marks(const struct request_limits *limits, const struct terse_chat_options *options, const struct messages *m) {
    struct terse_chat_options behind = *options;
    struct terse_error error;
    size_t n[2] = {0, 0};
    behind.after = m->n;
    for (int bare = 0; bare < 2; bare++) {
        int32_t *tokens;
        behind.bare_reply = bare;
        if (terse_chat_tokenize_with(limits->model, &behind, m->message, m->n, &tokens, &n[bare], &error)) return 0;
        terse_tokens_free(tokens);
    }
    return n[0] - n[1];
}

static bool tokenize(const struct request_limits *limits, const struct messages *m, const struct request *r, struct prompt *prompt,
                     struct api_error *error) {
    struct terse_chat_options options = options_of(limits, m, r);
    struct terse_error why;
    int32_t *tokens;
    size_t n;
    if (terse_chat_tokenize_with(limits->model, &options, m->message, m->n, &tokens, &n, &why) != TERSE_OK)
        return refuse(r, &why, error);
    prompt->tokens = malloc((n ? n : 1) * sizeof *tokens);
    if (prompt->tokens) memcpy(prompt->tokens, tokens, n * sizeof *tokens);
    prompt->n = n;
    prompt->turn = n - reply_marks(limits, &options, m);
    terse_tokens_free(tokens);
    return prompt->tokens || api_fail(error, 503, NULL, NULL, "no memory");
}

bool chat_prompt_read(const struct request_limits *limits, const cJSON *body, struct request *request, struct api_error *error) {
    struct messages messages = {0};
    bool good = read_messages(body, &messages, error) && tokenize(limits, &messages, request, request->prompts, error);
    free_messages(&messages);
    return good;
}

bool chat_prompt_render(const struct request_limits *limits, const cJSON *body, const struct request *request, char **text,
                        struct api_error *error) {
    struct messages messages = {0};
    struct terse_error why;
    bool good = read_messages(body, &messages, error);
    struct terse_chat_options options = options_of(limits, &messages, request);
    if (good && terse_chat_render_with(limits->model, &options, messages.message, messages.n, text, &why) != TERSE_OK)
        good = refuse(request, &why, error);
    free_messages(&messages);
    return good;
}
