#include "chat_prompt.h"

#include "buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MESSAGES = 4096 };

/* ---- Messages */

struct messages {
    struct terse_message *message; /* [n]; roles are the JSON's or literals, contents their own */
    size_t n;
};

static void free_messages(struct messages *m) {
    for (size_t i = 0; i < m->n; i++) free((char *)m->message[i].content);
    free(m->message);
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

/* A string, parts of type text, or null where a reply has none. */
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
    return !text->failed || api_fail(error, 500, NULL, NULL, "no memory");
}

static bool read_message(const cJSON *entry, struct terse_message *message, const char *param, struct api_error *error) {
    const char *role = NULL;
    struct buffer text = {0};
    if (!cJSON_IsObject(entry)) return api_fail(error, 400, NULL, param, "%s must be an object, not %s", param, json_kind(entry));
    if (!json_text(entry, "role", &role, error)) return false;
    if (!role) return api_fail(error, 400, NULL, param, "%s has no \"role\"", param);
    if (strcmp(role, "developer") == 0) role = "system"; /* what OpenAI calls it now */
    bool reply = strcmp(role, "assistant") == 0;
    if (!reply && strcmp(role, "system") != 0 && strcmp(role, "user") != 0)
        return api_fail(error, 400, NULL, param, "%s has the role \"%.40s\": the roles are system, user and assistant", param,
                        role);
    if (json_field(entry, "tool_calls") || json_field(entry, "function_call"))
        return api_fail(error, 400, "unsupported", param, "%s has tool calls, which terse has not", param);
    if (!read_content(json_field(entry, "content"), reply, &text, param, error)) {
        buffer_free(&text);
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
    if (!(m->message = calloc(n, sizeof *m->message))) return api_fail(error, 500, NULL, NULL, "no memory");
    cJSON_ArrayForEach(entry, field) {
        char param[48];
        snprintf(param, sizeof param, "messages[%zu]", m->n);
        if (!read_message(entry, &m->message[m->n], param, error)) return false;
        m->n++;
    }
    return true;
}

/* ---- Tokens */

static bool render(const struct request_limits *limits, const struct messages *m, char **text, struct api_error *error) {
    struct terse_error why;
    if (terse_chat_render(limits->model, limits->chat_format, m->message, m->n, true, text, &why) == TERSE_OK) return true;
    return api_fail(error, why.code == TERSE_E_MEMORY ? 500 : 400, NULL, "messages", "%s", why.message);
}

/* Whether the content would be other tokens if what looks like a special token in it were one. */
static bool imitates_special(const struct request_limits *limits, const char *content, bool *yes, struct api_error *error) {
    int32_t *plain = NULL, *parsed = NULL;
    size_t n_plain = 0, n_parsed = 0, n = strlen(content);
    bool good = request_tokenize(limits->model, content, n, false, false, &plain, &n_plain, error) &&
                request_tokenize(limits->model, content, n, false, true, &parsed, &n_parsed, error);
    *yes = good && (n_plain != n_parsed || memcmp(plain, parsed, n_plain * sizeof *plain) != 0);
    free(plain);
    free(parsed);
    return good;
}

static bool append_tokens(const struct request_limits *limits, const char *text, size_t n, bool special, struct prompt *prompt,
                          struct api_error *error) {
    int32_t *more;
    size_t n_more;
    if (!n) return true;
    if (!request_tokenize(limits->model, text, n, false, special, &more, &n_more, error)) return false;
    int32_t *larger = realloc(prompt->tokens, (prompt->n + n_more + 1) * sizeof *larger);
    if (larger) {
        memcpy(larger + prompt->n, more, n_more * sizeof *more);
        prompt->tokens = larger;
        prompt->n += n_more;
    }
    free(more);
    return larger || api_fail(error, 500, NULL, NULL, "no memory");
}

/* The conversation with marks in place of the contents that imitate special tokens, cut at the marks: what lies between them is tokenized as
 * the format's text, the contents as letters. */
static bool tokenize_apart(const struct request_limits *limits, const struct messages *m, const bool *apart, struct prompt *prompt,
                           struct api_error *error) {
    static const char mark[] = "\x02"
                               "content\x03";
    struct messages marked = {calloc(m->n, sizeof *marked.message), m->n};
    char *text = NULL;
    if (!marked.message) return api_fail(error, 500, NULL, NULL, "no memory");
    for (size_t i = 0; i < m->n; i++)
        marked.message[i] = (struct terse_message){m->message[i].role, apart[i] ? mark : m->message[i].content};
    bool good = render(limits, &marked, &text, error);
    const char *at = text;
    for (size_t i = 0; good && i < m->n; i++) {
        if (!apart[i]) continue;
        const char *found = strstr(at, mark);
        if (!found) good = api_fail(error, 400, NULL, "messages", "the chat format does not keep message %zu as it is", i + 1);
        good = good && append_tokens(limits, at, (size_t)(found - at), true, prompt, error) &&
               append_tokens(limits, m->message[i].content, strlen(m->message[i].content), false, prompt, error);
        at = found ? found + strlen(mark) : at;
    }
    good = good && append_tokens(limits, at, strlen(at), true, prompt, error);
    terse_string_free(text);
    free(marked.message);
    return good;
}

static bool tokenize_whole(const struct request_limits *limits, const struct messages *m, struct prompt *prompt,
                           struct api_error *error) {
    char *text;
    if (!render(limits, m, &text, error)) return false;
    bool good = append_tokens(limits, text, strlen(text), true, prompt, error);
    terse_string_free(text);
    return good;
}

static bool tokenize(const struct request_limits *limits, const struct messages *m, struct prompt *prompt,
                     struct api_error *error) {
    bool any = false, good = true, *apart = calloc(m->n, sizeof *apart);
    if (!apart) return api_fail(error, 500, NULL, NULL, "no memory");
    for (size_t i = 0; good && i < m->n; i++) {
        /* A mark of tokenize_apart in a content would be taken for one: such a content is set apart as well. */
        good = imitates_special(limits, m->message[i].content, &apart[i], error);
        apart[i] |= strchr(m->message[i].content, '\x02') != NULL;
        any |= apart[i];
    }
    if (good) good = any ? tokenize_apart(limits, m, apart, prompt, error) : tokenize_whole(limits, m, prompt, error);
    free(apart);
    return good;
}

bool chat_prompt_read(const struct request_limits *limits, const cJSON *body, struct prompt *prompt, struct api_error *error) {
    struct messages messages = {0};
    bool good = read_messages(body, &messages, error) && tokenize(limits, &messages, prompt, error);
    free_messages(&messages);
    return good;
}
