/* Reads tools and tool calls, which callers give as JSON, into the pieces of text that a conversation is written from. */
#ifndef TERSE_TEXT_CHAT_TOOLS_H
#define TERSE_TEXT_CHAT_TOOLS_H

#include "text/tokenizer.h"
#include "text/tool_form.h"

#include <cjson/cJSON.h>
#include <stddef.h>

/* Parses and checks tools, a JSON array in the form of OpenAI's `tools`; cJSON_Delete releases them. *tools is NULL where there is none.
 * TERSE_E_ARGUMENT: not such an array. */
enum terse_status chat_tools_parse(const char *json, cJSON **tools, struct terse_error *error);
/* Tools as a form declares them. */
struct chat_declared {
    struct text_buffer text;
    struct text_span *span; /* [n] where it has each of them */
    size_t n;
};
/* Declares tools, which chat_tools_parse has read from json. chat_declared_free releases it, also after a failure. */
enum terse_status chat_tools_write(const struct tool_form *form, const char *json, const cJSON *tools, struct chat_declared *to,
                                   struct terse_error *error);
void chat_declared_free(struct chat_declared *declared);

struct chat_call {
    char *name, *arguments; /* arguments: a JSON object, spaced as templates write it */
    char *id;               /* NULL: it has none */
};
struct chat_calls {
    struct chat_call *call; /* [n] */
    size_t n;
};
/* Reads the calls of the message-th message, a JSON array in the form of OpenAI's `tool_calls`; NULL: none. Arguments are a JSON object or a string that
 * holds one. On failure there are none. */
enum terse_status chat_calls_read(const char *json, size_t message, struct chat_calls *calls, struct terse_error *error);
void chat_calls_free(struct chat_calls *calls);

#endif
