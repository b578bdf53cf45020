#include "thinking_request.h"

#include "fields.h"

#include <string.h>

/* Reads an effort; "none" is OpenAI's word for no thoughts at all. */
static bool read_effort(const cJSON *object, struct request *r, struct api_error *error) {
    static const char *const efforts[] = {"low", "medium", "high"};
    const char *effort = NULL;
    if (!json_text(object, "reasoning_effort", &effort, error)) return false;
    if (effort && strcmp(effort, "none") == 0) {
        r->thinking = TERSE_THINKING_OFF;
        return true;
    }
    for (size_t i = 0; effort && i < 3; i++)
        if (strcmp(effort, efforts[i]) == 0) r->effort = efforts[i];
    if (!effort || r->effort) return true;
    return api_fail(error, 400, NULL, "reasoning_effort",
                    "\"reasoning_effort\" must be \"none\", \"low\", \"medium\" or \"high\", not \"%.40s\"", effort);
}

bool thinking_request_read(const cJSON *body, struct request *r, struct api_error *error) {
    static const char *const names[] = {"enable_thinking", "reasoning_effort"};
    const char *param = "chat_template_kwargs";
    const cJSON *kwargs = json_field(body, param);
    bool thinks = true;
    if (!read_effort(body, r, error) || !kwargs) return !error->status;
    if (!cJSON_IsObject(kwargs))
        return api_fail(error, 400, NULL, param, "\"%s\" must be an object, not %s", param, json_kind(kwargs));
    if (!fields_only(kwargs, names, sizeof names / sizeof *names, error) || !read_effort(kwargs, r, error) ||
        !json_flag(kwargs, "enable_thinking", &thinks, error))
        return false;
    if (json_field(kwargs, "enable_thinking")) r->thinking = thinks ? TERSE_THINKING_ON : TERSE_THINKING_OFF;
    return true;
}
