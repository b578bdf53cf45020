#include "reply.h"

#include "json_send.h"
#include "responses_reply.h"
#include "timings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Sending. cJSON's calls take NULL for an object that no memory was there for, so only the printed text is asked. */

static void send_event(struct task *task, cJSON *json) { json_send_event(task->exchange, NULL, json); }

/* ---- Tokens as text */

/* Returns the token as text. A SentencePiece text loses the space before its first token, so the token stands behind another one. */
char *reply_token_text(const struct terse_model *model, int32_t token, size_t *n, bool *whole) {
    struct terse_detokenizer *detokenizer;
    struct terse_error error;
    struct buffer text = {0};
    int32_t first[8];
    size_t n_first = 0, n_piece;
    if (terse_tokenize(model, "a", 1, TERSE_TOKENIZE_PLAIN, first, 8, &n_first, &error) != TERSE_OK) n_first = 0;
    if (terse_detokenizer_new(model, true, &detokenizer, &error) != TERSE_OK) return NULL;
    for (size_t i = 0; i < n_first; i++) (void)terse_detokenizer_push(detokenizer, first[i], &n_piece);
    const char *piece = terse_detokenizer_push(detokenizer, token, &n_piece);
    buffer_add(&text, piece ? piece : "", n_piece);
    piece = terse_detokenizer_finish(detokenizer, &n_piece);
    if (n_piece) buffer_add(&text, piece, n_piece);
    terse_detokenizer_free(detokenizer);
    *whole = n_piece == 0;
    *n = text.n;
    if (!text.failed) return text.bytes;
    buffer_free(&text);
    return NULL;
}

/* Returns a number that JSON can hold, as it has no infinities. */
static double finite_logprob(float logprob) { return logprob > -9999 ? (double)logprob : -9999; }

static cJSON *bytes_of(const char *text, size_t n, bool whole) {
    if (!whole) return cJSON_CreateNull();
    cJSON *array = cJSON_CreateArray();
    for (size_t i = 0; i < n; i++) cJSON_AddItemToArray(array, cJSON_CreateNumber((unsigned char)text[i]));
    return array;
}

static cJSON *chat_token(const struct task *task, int32_t token, float logprob) {
    size_t n = 0;
    bool whole = false;
    char *text = reply_token_text(task->limits->model, token, &n, &whole);
    cJSON *entry = cJSON_CreateObject();
    if (api_is_llama(task->request.api)) cJSON_AddNumberToObject(entry, "id", token);
    cJSON_AddStringToObject(entry, "token", text ? text : "");
    cJSON_AddNumberToObject(entry, "logprob", finite_logprob(logprob));
    cJSON_AddItemToObject(entry, "bytes", bytes_of(text ? text : "", n, whole));
    free(text);
    return entry;
}

/* Returns [{token, logprob, bytes, top_logprobs}] of the logs from `first` on. */
static cJSON *chat_logs(const struct generation *g, size_t first) {
    cJSON *array = cJSON_CreateArray();
    for (size_t i = first; i < g->n_logs; i++) {
        const struct token_log *log = &g->logs[i];
        cJSON *entry = chat_token(g->task, log->token, log->logprob), *top = cJSON_AddArrayToObject(entry, "top_logprobs");
        for (uint32_t j = 0; j < log->n_top; j++)
            cJSON_AddItemToArray(top, chat_token(g->task, log->top[j].token, log->top[j].logprob));
        cJSON_AddItemToArray(array, entry);
    }
    return array;
}

/* Returns {tokens, token_logprobs, top_logprobs, text_offset}, the older form. */
static cJSON *completion_logs(const struct generation *g, size_t first, size_t offset) {
    cJSON *logs = cJSON_CreateObject(), *tokens = cJSON_AddArrayToObject(logs, "tokens");
    cJSON *logprobs = cJSON_AddArrayToObject(logs, "token_logprobs"), *tops = cJSON_AddArrayToObject(logs, "top_logprobs");
    cJSON *offsets = cJSON_AddArrayToObject(logs, "text_offset");
    for (size_t i = first; i < g->n_logs; i++) {
        const struct token_log *log = &g->logs[i];
        size_t n = 0;
        bool whole;
        char *text = reply_token_text(g->task->limits->model, log->token, &n, &whole);
        cJSON_AddItemToArray(tokens, cJSON_CreateString(text ? text : ""));
        cJSON_AddItemToArray(logprobs, log->known ? cJSON_CreateNumber(finite_logprob(log->logprob)) : cJSON_CreateNull());
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)offset));
        if (i >= g->prompt->added || !g->task->request.echo) offset += n;
        free(text);
        cJSON *top = log->known ? cJSON_CreateObject() : cJSON_CreateNull();
        for (uint32_t j = 0; j < log->n_top; j++) {
            text = reply_token_text(g->task->limits->model, log->top[j].token, &n, &whole);
            if (text && !cJSON_GetObjectItemCaseSensitive(top, text))
                cJSON_AddNumberToObject(top, text, finite_logprob(log->top[j].logprob));
            free(text);
        }
        cJSON_AddItemToArray(tops, top);
    }
    return logs;
}

static void add_logs(cJSON *choice, const struct generation *g, size_t first, size_t offset) {
    if (g->task->request.logprobs < 0) {
        cJSON_AddNullToObject(choice, "logprobs");
    } else if (g->task->request.api == API_CHAT) {
        cJSON *logs = cJSON_AddObjectToObject(choice, "logprobs");
        cJSON_AddItemToObject(logs, "content", chat_logs(g, first));
    } else {
        cJSON_AddItemToObject(choice, "logprobs", completion_logs(g, first, offset));
    }
}

/* ---- OpenAI's forms */

static const char *finish_reason(const struct generation *g) {
    const struct terse_tool_call *calls;
    if (g->finish == FINISH_LENGTH) return "length";
    return generation_calls(g, &calls) ? "tool_calls" : "stop";
}

/* Adds the tool calls from the first-th on, if there are any; `numbered` as a stream has them. */
static void add_calls(cJSON *to, const struct generation *g, size_t first, bool numbered) {
    const struct terse_tool_call *calls;
    size_t n = generation_calls(g, &calls);
    cJSON *array = n > first ? cJSON_AddArrayToObject(to, "tool_calls") : NULL;
    for (size_t i = first; i < n; i++) {
        cJSON *entry = cJSON_CreateObject();
        char id[80];
        snprintf(id, sizeof id, "call_%s_%zu_%zu", task_number(g->task), g->index, i);
        if (numbered) cJSON_AddNumberToObject(entry, "index", (double)i);
        cJSON_AddStringToObject(entry, "id", id);
        cJSON_AddStringToObject(entry, "type", "function");
        cJSON *function = cJSON_AddObjectToObject(entry, "function");
        cJSON_AddStringToObject(function, "name", calls[i].name);
        cJSON_AddStringToObject(function, "arguments", calls[i].arguments);
        cJSON_AddItemToArray(array, entry);
    }
}

static void add_finish(cJSON *choice, const struct generation *g) {
    if (g->finish)
        cJSON_AddStringToObject(choice, "finish_reason", finish_reason(g));
    else
        cJSON_AddNullToObject(choice, "finish_reason");
}

static cJSON *envelope(const struct task *task, const char *object) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "id", task->id);
    cJSON_AddStringToObject(json, "object", object);
    cJSON_AddNumberToObject(json, "created", (double)task->created);
    cJSON_AddStringToObject(json, "model", task->model);
    return json;
}

static void add_usage(cJSON *json, const struct task *task) {
    double prompt = 0, cached = 0, written = 0;
    for (size_t i = 0; i < task->n_generations; i++) {
        const struct generation *g = &task->generations[i];
        written += (double)g->tokens;
        if (g->choice) continue; /* a prompt counts once */
        prompt += (double)g->prompt->n;
        cached += (double)g->cached;
    }
    cJSON *usage = cJSON_AddObjectToObject(json, "usage");
    cJSON_AddNumberToObject(usage, "prompt_tokens", prompt);
    cJSON_AddNumberToObject(usage, "completion_tokens", written);
    cJSON_AddNumberToObject(usage, "total_tokens", prompt + written);
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(usage, "prompt_tokens_details"), "cached_tokens", cached);
}

static const char *chunk_object(const struct task *task) {
    return task->request.api == API_CHAT ? "chat.completion.chunk" : "text_completion";
}

/* Returns a chunk with one choice, which is returned in *choice. */
static cJSON *chunk(const struct generation *g, cJSON **choice) {
    cJSON *json = envelope(g->task, chunk_object(g->task)), *choices = cJSON_AddArrayToObject(json, "choices");
    *choice = cJSON_CreateObject();
    cJSON_AddNumberToObject(*choice, "index", (double)g->index);
    cJSON_AddItemToArray(choices, *choice);
    if (g->task->request.include_usage) cJSON_AddNullToObject(json, "usage");
    if (g->tokens && g->task->request.timings_per_token) cJSON_AddItemToObject(json, "timings", timings_json(g, 1));
    return json;
}

/* Adds the timings to the last chunk of a choice, unless each chunk has them. */
static void add_last_timings(cJSON *json, const struct generation *g) {
    if (g->finish && !cJSON_HasObjectItem(json, "timings")) cJSON_AddItemToObject(json, "timings", timings_json(g, 1));
}

static void send_chat_delta(const struct generation *g, const char *role, const char *thoughts, const char *text,
                            size_t first_log) {
    cJSON *choice, *json = chunk(g, &choice), *delta = cJSON_AddObjectToObject(choice, "delta");
    if (role) cJSON_AddStringToObject(delta, "role", role);
    if (thoughts) cJSON_AddStringToObject(delta, "reasoning_content", thoughts);
    if (text) cJSON_AddStringToObject(delta, "content", text);
    add_logs(choice, g, first_log, 0);
    if (text || thoughts)
        cJSON_AddNullToObject(choice, "finish_reason");
    else
        add_finish(choice, g);
    if (!text && !thoughts) add_last_timings(json, g);
    send_event(g->task, json);
}

static void send_calls(const struct generation *g) {
    cJSON *choice, *json = chunk(g, &choice);
    add_calls(cJSON_AddObjectToObject(choice, "delta"), g, g->calls_piece, true);
    add_logs(choice, g, g->n_logs, 0);
    cJSON_AddNullToObject(choice, "finish_reason");
    send_event(g->task, json);
}

static void send_chat_piece(struct generation *g) {
    const struct terse_tool_call *calls;
    bool thinks = g->thoughts.n > g->thoughts_piece, says = g->text.n > g->piece;
    size_t logs = thinks ? g->n_logs : g->logs_piece; /* the token's go with the first of both */
    if (thinks) send_chat_delta(g, NULL, g->thoughts.bytes + g->thoughts_piece, NULL, g->logs_piece);
    if (says || g->n_logs > logs) send_chat_delta(g, NULL, NULL, g->text.bytes + g->piece, logs);
    if (generation_calls(g, &calls) > g->calls_piece) send_calls(g);
    if (g->finish) send_chat_delta(g, NULL, NULL, NULL, g->n_logs);
}

static void send_completion_piece(const struct generation *g) {
    if (g->text.n == g->piece && g->n_logs == g->logs_piece && !g->finish) return;
    cJSON *choice, *json = chunk(g, &choice);
    cJSON_AddStringToObject(choice, "text", g->text.bytes + g->piece);
    add_logs(choice, g, g->logs_piece, g->piece);
    add_finish(choice, g);
    add_last_timings(json, g);
    send_event(g->task, json);
}

static cJSON *whole_choice(const struct generation *g) {
    cJSON *choice = cJSON_CreateObject();
    cJSON_AddNumberToObject(choice, "index", (double)g->index);
    if (g->task->request.api == API_CHAT) {
        cJSON *message = cJSON_AddObjectToObject(choice, "message");
        cJSON_AddStringToObject(message, "role", "assistant");
        const struct terse_tool_call *calls;
        if (generation_calls(g, &calls) && !g->text.n)
            cJSON_AddNullToObject(message, "content");
        else
            cJSON_AddStringToObject(message, "content", g->text.bytes);
        if (g->thoughts.n) cJSON_AddStringToObject(message, "reasoning_content", g->thoughts.bytes);
        add_calls(message, g, 0, false);
    } else {
        cJSON_AddStringToObject(choice, "text", g->text.bytes);
    }
    add_logs(choice, g, 0, 0);
    add_finish(choice, g);
    return choice;
}

static cJSON *whole(const struct task *task) {
    cJSON *json = envelope(task, task->request.api == API_CHAT ? "chat.completion" : "text_completion");
    cJSON *choices = cJSON_AddArrayToObject(json, "choices");
    for (size_t i = 0; i < task->n_generations; i++)
        if (task->generations[i].choice < (size_t)task->request.n)
            cJSON_AddItemToArray(choices, whole_choice(&task->generations[i]));
    add_usage(json, task);
    cJSON_AddItemToObject(json, "timings", timings_json(task->generations, task->n_generations));
    return json;
}

/* ---- llama.cpp's form */

static cJSON *llama_piece(const struct generation *g, const char *text, size_t first_log) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "index", (double)g->index);
    cJSON_AddStringToObject(json, "content", text);
    cJSON_AddBoolToObject(json, "stop", g->finish != FINISH_NONE);
    cJSON_AddNumberToObject(json, "tokens_predicted", (double)g->tokens);
    cJSON_AddNumberToObject(json, "tokens_evaluated", (double)g->prompt->n);
    if (g->task->request.logprobs >= 0) cJSON_AddItemToObject(json, "completion_probabilities", chat_logs(g, first_log));
    if (g->finish || g->task->request.timings_per_token) cJSON_AddItemToObject(json, "timings", timings_json(g, 1));
    if (!g->finish) return json;
    cJSON_AddStringToObject(json, "model", g->task->model);
    cJSON_AddStringToObject(json, "stop_type", g->finish == FINISH_END ? "eos" : g->finish == FINISH_LENGTH ? "limit" : "word");
    cJSON_AddBoolToObject(json, "truncated", false);
    cJSON_AddNumberToObject(json, "tokens_cached", (double)g->cached);
    return json;
}

/* ---- */

void reply_begin(struct generation *g) {
    enum api api = g->task->request.api;
    if (!g->task->request.stream || g->announced || (api != API_CHAT && api != API_RESPONSES)) return;
    if (api == API_RESPONSES)
        responses_begin(g);
    else
        send_chat_delta(g, "assistant", NULL, "", g->n_logs);
    g->announced = true;
}

void reply_progress(struct generation *g) {
    cJSON *choice, *json;
    if (!g->task->request.stream || !g->task->request.progress) return;
    if (api_is_llama(g->task->request.api)) {
        json = llama_piece(g, "", g->n_logs);
    } else {
        json = chunk(g, &choice);
        if (g->task->request.api == API_CHAT)
            cJSON_AddObjectToObject(choice, "delta");
        else
            cJSON_AddStringToObject(choice, "text", "");
        cJSON_AddNullToObject(choice, "finish_reason");
    }
    cJSON_AddItemToObject(json, "prompt_progress", timings_progress(g));
    send_event(g->task, json);
}

void reply_piece(struct generation *g) {
    if (!g->task->request.stream) return;
    switch (g->task->request.api) {
    case API_CHAT: send_chat_piece(g); break;
    case API_RESPONSES: responses_piece(g); break;
    case API_COMPLETION: send_completion_piece(g); break;
    case API_LLAMA:
    case API_INFILL:
        if (g->finish || g->text.n > g->piece || g->n_logs > g->logs_piece)
            send_event(g->task, llama_piece(g, g->text.bytes + g->piece, g->logs_piece));
        break;
    }
    if (!exchange_begun(g->task->exchange)) exchange_begin(g->task->exchange, 200, true);
}

static void send_whole(struct task *task) {
    if (task->request.api == API_RESPONSES)
        responses_whole(task->generations);
    else if (api_is_llama(task->request.api))
        json_send(task->exchange, 200, llama_piece(task->generations, task->generations->text.bytes, 0));
    else
        json_send(task->exchange, 200, whole(task));
}

void reply_end(struct task *task) {
    bool chunks = task->request.api == API_CHAT || task->request.api == API_COMPLETION;
    if (!task->request.stream) {
        send_whole(task);
        return;
    }
    if (task->request.include_usage && chunks) {
        cJSON *json = envelope(task, chunk_object(task));
        cJSON_AddArrayToObject(json, "choices");
        add_usage(json, task);
        cJSON_AddItemToObject(json, "timings", timings_json(task->generations, task->n_generations));
        send_event(task, json);
    }
    if (chunks) exchange_add(task->exchange, "data: [DONE]\n\n", 14);
    exchange_end(task->exchange);
    if (!exchange_begun(task->exchange)) exchange_begin(task->exchange, 200, true);
}

void reply_fail(struct task *task, const struct api_error *error) {
    if (!exchange_begun(task->exchange)) {
        json_send(task->exchange, error->status, api_error_json(error));
        return;
    }
    send_event(task, api_error_json(error));
    exchange_end(task->exchange);
}
