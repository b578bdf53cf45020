#include "responses_reply.h"

#include "json_send.h"
#include "timings.h"

#include <stdio.h>
#include <string.h>

/* Of a response's items, from 1 on, g->response.thoughts_at are the thoughts and text_at the message, 0: there are none; the others are calls, in
 * their order. The thoughts end where the message or a call begins. */

/* ---- Items */

static void add_id(cJSON *item, const char *name, const char *kind, const struct generation *g, size_t i) {
    char id[80];
    snprintf(id, sizeof id, "%s_%s_%zu", kind, task_number(g->task), i);
    cJSON_AddStringToObject(item, name, id);
}

static const char *message_status(const struct generation *g) {
    return !g->finish ? "in_progress" : g->finish == FINISH_LENGTH ? "incomplete" : "completed";
}

static cJSON *text_part(const char *text) {
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "type", "output_text");
    cJSON_AddStringToObject(part, "text", text);
    cJSON_AddArrayToObject(part, "annotations");
    cJSON_AddArrayToObject(part, "logprobs");
    return part;
}

/* Returns the message with a text; NULL: none yet. */
static cJSON *message_item(const struct generation *g, const char *text) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "type", "message");
    add_id(item, "id", "msg", g, 0);
    cJSON_AddStringToObject(item, "status", message_status(g));
    cJSON_AddStringToObject(item, "role", "assistant");
    cJSON *content = cJSON_AddArrayToObject(item, "content");
    if (text) cJSON_AddItemToArray(content, text_part(text));
    return item;
}

static cJSON *thoughts_part(const char *text) {
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "type", "reasoning_text");
    cJSON_AddStringToObject(part, "text", text);
    return part;
}

/* Returns the first n bytes of the thoughts. */
static cJSON *thoughts_text(const struct generation *g, size_t n) {
    cJSON *text = cJSON_CreateString(g->thoughts.bytes);
    if (text) text->valuestring[n] = '\0';
    return text;
}

/* Returns the thoughts as an item, ended or empty. */
static cJSON *thoughts_item(const struct generation *g, bool ended) {
    cJSON *item = cJSON_CreateObject();
    const struct terse_tool_call *calls;
    bool cut = g->finish == FINISH_LENGTH && !g->text.n && !generation_calls(g, &calls);
    cJSON_AddStringToObject(item, "type", "reasoning");
    add_id(item, "id", "rs", g, 0);
    cJSON_AddArrayToObject(item, "summary");
    cJSON *content = cJSON_AddArrayToObject(item, "content"), *part = ended ? thoughts_part("") : NULL;
    if (part) cJSON_ReplaceItemInObjectCaseSensitive(part, "text", thoughts_text(g, g->response.thoughts));
    if (part) cJSON_AddItemToArray(content, part);
    cJSON_AddStringToObject(item, "status", !ended ? "in_progress" : cut ? "incomplete" : "completed");
    return item;
}

/* Returns the i-th call, with its arguments where it is `done`. */
static cJSON *call_item(const struct generation *g, size_t i, bool done) {
    const struct terse_tool_call *calls;
    cJSON *item = cJSON_CreateObject();
    (void)generation_calls(g, &calls);
    cJSON_AddStringToObject(item, "type", "function_call");
    add_id(item, "id", "fc", g, i);
    add_id(item, "call_id", "call", g, i);
    cJSON_AddStringToObject(item, "name", calls[i].name);
    cJSON_AddStringToObject(item, "arguments", done ? calls[i].arguments : "");
    cJSON_AddStringToObject(item, "status", done ? "completed" : "in_progress");
    return item;
}

/* ---- The response */

static void add_output(cJSON *response, const struct generation *g) {
    cJSON *output = cJSON_AddArrayToObject(response, "output");
    for (size_t at = 1, call = 0; g->finish && at <= g->response.items; at++)
        cJSON_AddItemToArray(output, at == g->response.thoughts_at ? thoughts_item(g, true)
                                     : at == g->response.text_at   ? message_item(g, g->text.bytes)
                                                                   : call_item(g, call++, true));
}

static void add_usage(cJSON *response, const struct generation *g) {
    cJSON *usage = cJSON_AddObjectToObject(response, "usage");
    double read = (double)g->prompt->n, written = (double)g->tokens;
    cJSON_AddNumberToObject(usage, "input_tokens", read);
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(usage, "input_tokens_details"), "cached_tokens", (double)g->cached);
    cJSON_AddNumberToObject(usage, "output_tokens", written);
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(usage, "output_tokens_details"), "reasoning_tokens", (double)g->thought);
    cJSON_AddNumberToObject(usage, "total_tokens", read + written);
}

/* Returns the response as it is: in progress, or with its end. */
static cJSON *response_json(const struct generation *g) {
    const struct task *task = g->task;
    cJSON *json = cJSON_Parse(task->request.shown); /* what the request said */
    cJSON_AddStringToObject(json, "id", task->id);
    cJSON_AddStringToObject(json, "object", "response");
    cJSON_AddNumberToObject(json, "created_at", (double)task->created);
    cJSON_AddStringToObject(json, "status", message_status(g));
    cJSON_AddStringToObject(json, "model", task->model);
    cJSON_AddNullToObject(json, "error");
    if (g->finish == FINISH_LENGTH)
        cJSON_AddStringToObject(cJSON_AddObjectToObject(json, "incomplete_details"), "reason", "max_output_tokens");
    else
        cJSON_AddNullToObject(json, "incomplete_details");
    cJSON_AddBoolToObject(json, "store", false);
    add_output(json, g);
    if (!g->finish) {
        cJSON_AddNullToObject(json, "usage");
        return json;
    }
    add_usage(json, g);
    cJSON_AddItemToObject(json, "timings", timings_json(g, 1));
    return json;
}

/* ---- Events */

static cJSON *event_new(struct generation *g, const char *type) {
    cJSON *event = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "type", type);
    cJSON_AddNumberToObject(event, "sequence_number", (double)g->response.events++);
    return event;
}

static void send(struct generation *g, cJSON *event) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(event, "type");
    json_send_event(g->task->exchange, type ? type->valuestring : NULL, event);
}

static void send_response(struct generation *g, const char *type) {
    cJSON *event = event_new(g, type);
    cJSON_AddItemToObject(event, "response", response_json(g));
    send(g, event);
}

/* Sends an event about the item at `at`, from 1 on. */
static void send_item(struct generation *g, const char *type, size_t at, cJSON *item) {
    cJSON *event = event_new(g, type);
    cJSON_AddNumberToObject(event, "output_index", (double)at - 1);
    cJSON_AddItemToObject(event, "item", item);
    send(g, event);
}

/* ---- Events of the thoughts and of the message, which are one part of an item */

static size_t place_of(const struct generation *g, bool thoughts) {
    return thoughts ? g->response.thoughts_at : g->response.text_at;
}

/* Returns an event about the text. */
static cJSON *text_event(struct generation *g, const char *type, bool thoughts) {
    cJSON *event = event_new(g, type);
    add_id(event, "item_id", thoughts ? "rs" : "msg", g, 0);
    cJSON_AddNumberToObject(event, "output_index", (double)place_of(g, thoughts) - 1);
    cJSON_AddNumberToObject(event, "content_index", 0);
    return event;
}

static void send_part(struct generation *g, const char *type, bool thoughts, const char *text) {
    cJSON *event = text_event(g, type, thoughts);
    cJSON_AddItemToObject(event, "part", thoughts ? thoughts_part(text) : text_part(text));
    send(g, event);
}

static void open_item(struct generation *g, bool thoughts) {
    size_t *at = thoughts ? &g->response.thoughts_at : &g->response.text_at;
    if (*at) return;
    *at = ++g->response.items;
    cJSON *item = thoughts ? thoughts_item(g, false) : message_item(g, NULL);
    cJSON_ReplaceItemInObjectCaseSensitive(item, "status", cJSON_CreateString("in_progress")); /* even if its end is known */
    send_item(g, "response.output_item.added", *at, item);
    send_part(g, "response.content_part.added", thoughts, "");
}

/* Sends more of the text, or at its end (`type`: "...done") all of it. */
static void send_text(struct generation *g, const char *type, bool thoughts, const char *name, const char *text) {
    cJSON *event = text_event(g, type, thoughts);
    cJSON_AddStringToObject(event, name, text);
    if (!thoughts) cJSON_AddArrayToObject(event, "logprobs");
    send(g, event);
}

static void close_item(struct generation *g, bool thoughts) {
    const char *text = thoughts ? g->thoughts.bytes : g->text.bytes;
    if (!place_of(g, thoughts) || (thoughts && g->response.thoughts)) return;
    if (thoughts) g->response.thoughts = g->thoughts.n;
    send_text(g, thoughts ? "response.reasoning_text.done" : "response.output_text.done", thoughts, "text", text);
    send_part(g, "response.content_part.done", thoughts, text);
    send_item(g, "response.output_item.done", place_of(g, thoughts), thoughts ? thoughts_item(g, true) : message_item(g, text));
}

/* ---- Events of calls */

static void send_call(struct generation *g, size_t i) {
    static const char *const types[] = {"response.function_call_arguments.delta", "response.function_call_arguments.done"};
    const struct terse_tool_call *calls;
    size_t at = ++g->response.items;
    (void)generation_calls(g, &calls);
    send_item(g, "response.output_item.added", at, call_item(g, i, false));
    for (size_t j = 0; j < 2; j++) {
        cJSON *event = event_new(g, types[j]);
        add_id(event, "item_id", "fc", g, i);
        cJSON_AddNumberToObject(event, "output_index", (double)at - 1);
        if (j) cJSON_AddStringToObject(event, "name", calls[i].name);
        cJSON_AddStringToObject(event, j ? "arguments" : "delta", calls[i].arguments);
        send(g, event);
    }
    send_item(g, "response.output_item.done", at, call_item(g, i, true));
}

/* ---- */

void responses_begin(struct generation *g) {
    send_response(g, "response.created");
    send_response(g, "response.in_progress");
}

void responses_piece(struct generation *g) {
    const struct terse_tool_call *calls;
    size_t n = generation_calls(g, &calls);
    bool thinks = g->thoughts.n > g->thoughts_piece && !g->response.thoughts && g->response.items == g->response.thoughts_at;
    if (thinks) {
        open_item(g, true);
        send_text(g, "response.reasoning_text.delta", true, "delta", g->thoughts.bytes + g->thoughts_piece);
    }
    if (g->text.n || n || g->finish) close_item(g, true);
    if (g->text.n > g->piece) {
        open_item(g, false);
        send_text(g, "response.output_text.delta", false, "delta", g->text.bytes + g->piece);
    }
    for (size_t i = g->calls_piece; i < n; i++) send_call(g, i);
    if (!g->finish) return;
    if (!g->response.items) open_item(g, false); /* an empty reply is one, too */
    close_item(g, false);
    send_response(g, g->finish == FINISH_LENGTH ? "response.incomplete" : "response.completed");
}

void responses_whole(struct generation *g) {
    const struct terse_tool_call *calls;
    size_t n = generation_calls(g, &calls);
    bool thinks = g->thoughts.n > 0, speaks = g->text.n || (!n && !thinks);
    g->response.thoughts = g->thoughts.n;
    g->response.thoughts_at = thinks;
    g->response.text_at = speaks ? thinks + 1u : 0;
    g->response.items = n + thinks + speaks;
    json_send(g->task->exchange, 200, response_json(g));
}
