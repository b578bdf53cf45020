/* Has what the ways of declaring a tool share: a text that grows, and members of JSON. */
#ifndef TERSE_TEXT_TOOL_WRITING_H
#define TERSE_TEXT_TOOL_WRITING_H

#include "text/text_buffer.h"

#include <cjson/cJSON.h>
#include <string.h>

/* How deep a type may stand within others before it is written as any. */
enum { TOOL_DEEPEST = 64 };

/* A writing keeps the first failure, so that its steps need not ask for it. */
struct writing {
    struct text_buffer *to;
    struct terse_error *error;
    enum terse_status status;
};

static inline void writing_add(struct writing *w, const char *text) {
    if (!w->status) w->status = text_buffer_add(w->to, text, strlen(text), w->error);
}

static inline const cJSON *member_of(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* Returns "" where the member is no string. */
static inline const char *string_of(const cJSON *object, const char *name) {
    const char *value = cJSON_GetStringValue(member_of(object, name));
    return value ? value : "";
}

#endif
