#include "routes.h"

#include "fields.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Answers */

static void answer_json(struct call *call, int status, cJSON *json) {
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    call->status = text ? status : 500;
    call->type = "application/json; charset=utf-8";
    if (text) buffer_add_text(&call->text, text);
    cJSON_free(text);
}

void routes_refuse(struct call *call, const struct api_error *error) { answer_json(call, error->status, api_error_json(error)); }

/* Returns the text of an address as it may be shown: printable ASCII, cut short. */
static const char *shown(const char *path, char *buffer, size_t capacity) {
    snprintf(buffer, capacity, "%s", path);
    for (char *c = buffer; *c; c++)
        if (*c < 0x20 || *c > 0x7e) *c = '?';
    return buffer;
}

/* ---- Replies */

static void refuse_task(const struct server *server, struct call *call, enum scheduler_answer answer) {
    struct api_error error = {0};
    if (answer == SCHEDULER_FULL)
        api_fail(&error, 429, "queue_full", NULL, "%u requests are waiting already: try again later", server->queue);
    else
        api_fail(&error, 503, NULL, NULL, answer == SCHEDULER_STOPPING ? "the server is stopping" : "no memory");
    routes_refuse(call, &error);
}

static void generate(struct server *server, struct call *call, enum api api) {
    struct api_error error = {0};
    struct request request;
    if (!request_read(&server->limits, api, call->body, call->n, &request, &error)) {
        routes_refuse(call, &error);
        return;
    }
    struct exchange *exchange = exchange_new();
    struct task *task = exchange ? task_new(&request, exchange, &server->limits, server->model_name, call->client) : NULL;
    if (!task) {
        if (exchange) exchange_release(exchange);
        if (exchange) exchange_release(exchange);
        request_free(&request);
        api_fail(&error, 503, NULL, NULL, "no memory");
        routes_refuse(call, &error);
        return;
    }
    enum scheduler_answer answer = scheduler_submit(server->scheduler, task);
    if (answer == SCHEDULER_TAKEN) {
        call->exchange = exchange;
        return;
    }
    task_free(task);
    exchange_release(exchange);
    refuse_task(server, call, answer);
}

static void chat(struct server *server, struct call *call) { generate(server, call, API_CHAT); }
static void completion(struct server *server, struct call *call) { generate(server, call, API_COMPLETION); }
static void responses(struct server *server, struct call *call) { generate(server, call, API_RESPONSES); }
static void infill(struct server *server, struct call *call) { generate(server, call, API_INFILL); }
static void llama_completion(struct server *server, struct call *call) { generate(server, call, API_LLAMA); }

/* ---- Text and tokens */

/* Returns a text, or numbers where the bytes are not whole characters. */
static cJSON *piece_of(const struct terse_model *model, int32_t token) {
    size_t n;
    const char *bytes = terse_token_bytes(model, token, &n);
    char *text = text_valid(bytes, n) == n ? strndup(bytes, n) : NULL;
    cJSON *piece = text ? cJSON_CreateString(text) : cJSON_CreateArray();
    for (size_t i = 0; i < n && !text; i++) cJSON_AddItemToArray(piece, cJSON_CreateNumber((unsigned char)bytes[i]));
    free(text);
    return piece;
}

static cJSON *with_their_pieces(const struct terse_model *model, const int32_t *tokens, size_t n) {
    cJSON *array = cJSON_CreateArray();
    for (size_t i = 0; i < n; i++) {
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddNumberToObject(entry, "id", tokens[i]);
        cJSON_AddItemToObject(entry, "piece", piece_of(model, tokens[i]));
        cJSON_AddItemToArray(array, entry);
    }
    return array;
}

static cJSON *tokens_of(struct server *server, const cJSON *body, struct api_error *error) {
    static const char *const names[] = {"content", "add_special", "parse_special", "with_pieces"};
    const char *content = NULL;
    bool add_special = false, parse_special = true, pieces = false;
    int32_t *tokens;
    size_t n;
    if (!fields_only(body, names, sizeof names / sizeof *names, error) || !json_text(body, "content", &content, error) ||
        !json_flag(body, "add_special", &add_special, error) || !json_flag(body, "parse_special", &parse_special, error) ||
        !json_flag(body, "with_pieces", &pieces, error))
        return NULL;
    if (!content) {
        api_fail(error, 400, NULL, "content", "\"content\" is missing");
        return NULL;
    }
    if (!request_tokenize(server->limits.model, content, strlen(content), add_special, parse_special, &tokens, &n, error))
        return NULL;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToObject(json, "tokens",
                          pieces ? with_their_pieces(server->limits.model, tokens, n) : cJSON_CreateIntArray(tokens, (int)n));
    free(tokens);
    return json;
}

static cJSON *text_of(struct server *server, const cJSON *body, struct api_error *error) {
    static const char *const names[] = {"tokens"};
    const cJSON *tokens = json_field(body, "tokens"), *entry;
    struct terse_detokenizer *detokenizer;
    struct terse_error why;
    struct buffer text = {0};
    size_t n;
    if (!fields_only(body, names, 1, error)) return NULL;
    if (!cJSON_IsArray(tokens)) {
        api_fail(error, 400, NULL, "tokens", "\"tokens\" must be an array of whole numbers");
        return NULL;
    }
    cJSON_ArrayForEach(entry, tokens) {
        if (cJSON_IsNumber(entry) && entry->valuedouble >= 0 && entry->valuedouble < server->limits.vocabulary &&
            entry->valuedouble == (double)entry->valueint)
            continue;
        api_fail(error, 400, NULL, "tokens", "\"tokens\" must have whole numbers below %u, the vocabulary's size",
                 server->limits.vocabulary);
        return NULL;
    }
    if (terse_detokenizer_new(server->limits.model, true, &detokenizer, &why) != TERSE_OK) {
        api_fail(error, 500, NULL, NULL, "%s", why.message);
        return NULL;
    }
    buffer_add(&text, "", 0);
    cJSON_ArrayForEach(entry, tokens) {
        const char *piece = terse_detokenizer_push(detokenizer, entry->valueint, &n);
        if (n) buffer_add(&text, piece, n);
    }
    const char *piece = terse_detokenizer_finish(detokenizer, &n);
    if (n) buffer_add(&text, piece, n);
    terse_detokenizer_free(detokenizer);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "content", text.failed ? "" : text.bytes);
    buffer_free(&text);
    return json;
}

static void convert(struct server *server, struct call *call,
                    cJSON *(*converted)(struct server *, const cJSON *, struct api_error *)) {
    struct api_error error = {0};
    cJSON *body = json_read_object(call->body, call->n, &error), *json = body ? converted(server, body, &error) : NULL;
    cJSON_Delete(body);
    if (json)
        answer_json(call, 200, json);
    else
        routes_refuse(call, &error);
}

static void tokenize(struct server *server, struct call *call) { convert(server, call, tokens_of); }
static void detokenize(struct server *server, struct call *call) { convert(server, call, text_of); }

/* Answers with the text that a chat's prompt is. */
static void apply_template(struct server *server, struct call *call) {
    struct api_error error = {0};
    char *text;
    if (!request_render(&server->limits, call->body, call->n, &text, &error)) {
        routes_refuse(call, &error);
        return;
    }
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "prompt", text);
    terse_string_free(text);
    answer_json(call, 200, json);
}

/* ---- What other servers have */

static void no_embeddings(struct server *server, struct call *call) {
    struct api_error error = {0};
    api_fail(&error, 501, NULL, NULL, "there is no %s here: terse computes no embeddings, of %s or any other model", call->path,
             server->model_name);
    routes_refuse(call, &error);
}

static void no_ranks(struct server *server, struct call *call) {
    struct api_error error = {0};
    api_fail(&error, 501, NULL, NULL, "there is no %s here: terse ranks no documents, by %s or any other model", call->path,
             server->model_name);
    routes_refuse(call, &error);
}

/* ---- The server */

static void health(struct server *server, struct call *call) {
    bool stopping = atomic_load(&server->stopping);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "status", stopping ? "stopping" : "ok");
    answer_json(call, stopping ? 503 : 200, json);
}

static cJSON *model_json(const struct server *server) {
    cJSON *model = cJSON_CreateObject();
    cJSON_AddStringToObject(model, "id", server->model_name);
    cJSON_AddStringToObject(model, "object", "model");
    cJSON_AddNumberToObject(model, "created", 0);
    cJSON_AddStringToObject(model, "owned_by", "terse");
    cJSON *meta = cJSON_AddObjectToObject(model, "meta");
    cJSON_AddNumberToObject(meta, "n_vocab", server->model.vocabulary);
    cJSON_AddNumberToObject(meta, "n_ctx_train", server->model.context);
    cJSON_AddNumberToObject(meta, "n_embd", server->model.width);
    cJSON_AddNumberToObject(meta, "n_params", (double)server->model.parameters);
    cJSON_AddNumberToObject(meta, "size", (double)server->model.bytes);
    return model;
}

static void models(struct server *server, struct call *call) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "object", "list");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(json, "data"), model_json(server));
    answer_json(call, 200, json);
}

/* Answers with the model whose name the address ends with. */
static void model(struct server *server, struct call *call) {
    struct api_error error = {0};
    char name[80];
    const char *asked = strstr(call->path, "models/") + strlen("models/");
    if (strcmp(asked, server->model_name) == 0) {
        answer_json(call, 200, model_json(server));
        return;
    }
    api_fail(&error, 404, "model_not_found", "model", "there is no model %s here: the server has %s",
             shown(asked, name, sizeof name), server->model_name);
    routes_refuse(call, &error);
}

/* Returns a setting as it was written: 0.8, not the float nearest to it. */
static double as_written(float value) {
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)value);
    return strtod(text, NULL);
}

static void props(struct server *server, struct call *call) {
    const struct terse_sampling s = terse_sampling_defaults();
    cJSON *json = cJSON_CreateObject(), *defaults = cJSON_AddObjectToObject(json, "default_generation_settings");
    cJSON_AddNumberToObject(defaults, "n_ctx", server->limits.context);
    cJSON *params = cJSON_AddObjectToObject(defaults, "params");
    cJSON_AddNumberToObject(params, "temperature", as_written(s.temperature));
    cJSON_AddNumberToObject(params, "top_k", s.top_k);
    cJSON_AddNumberToObject(params, "top_p", as_written(s.top_p));
    cJSON_AddNumberToObject(params, "min_p", as_written(s.min_p));
    cJSON_AddNumberToObject(params, "typical_p", as_written(s.typical_p));
    cJSON_AddNumberToObject(params, "repeat_penalty", as_written(s.repeat_penalty));
    cJSON_AddNumberToObject(params, "repeat_last_n", s.repeat_last);
    cJSON_AddNumberToObject(json, "total_slots", server->slots);
    cJSON_AddStringToObject(json, "model_path", server->model_name);
    cJSON_AddStringToObject(json, "build_info", terse_version());
    cJSON *model = cJSON_AddObjectToObject(json, "model");
    cJSON_AddStringToObject(model, "name", server->model_name);
    cJSON_AddStringToObject(model, "architecture", server->model.architecture);
    cJSON_AddStringToObject(model, "weights", server->model.weights);
    cJSON_AddNumberToObject(model, "layers", server->model.layers);
    cJSON_AddNumberToObject(model, "kv_heads", server->model.kv_heads);
    cJSON_AddNumberToObject(model, "head_dim", server->model.head_dim);
    cJSON *kv = cJSON_AddObjectToObject(json, "kv_cache");
    cJSON_AddStringToObject(kv, "method", server->method);
    cJSON_AddNumberToObject(kv, "budget", (double)server->kv_budget);
    answer_json(call, 200, json);
}

/* Returns the bytes that keys and values of so many tokens take at 16 bits each. */
static double f16_bytes(const struct server *server, uint64_t tokens) {
    const struct terse_model_info *m = &server->model;
    const double sides = m->latent ? 1 : 2;
    return 2.0 * sides * (double)(m->layers - m->recurrent_layers) * (double)m->kv_heads * (double)m->head_dim * (double)tokens;
}

static bool is_busy(const struct slot_view *view) { return view->state != GENERATION_QUEUED && view->state != GENERATION_DONE; }

/* Returns for each part of the tokens how much of it is exact, compressed, evicted and read by the last step, in percent. */
static cJSON *parts_json(const struct terse_token_share *parts) {
    cJSON *json = cJSON_CreateArray();
    for (size_t i = 0; i < SLOT_PARTS; i++) {
        const float shares[4] = {parts[i].exact, parts[i].compressed, parts[i].evicted, parts[i].read};
        int percent[4];
        for (size_t j = 0; j < 4; j++) percent[j] = (int)(100 * shares[j] + 0.5f);
        cJSON_AddItemToArray(json, cJSON_CreateIntArray(percent, 4));
    }
    return json;
}

/* Returns the tokens that are held at each rate, in bits per value. */
static cJSON *rates_json(const struct terse_cache_report *cache) {
    cJSON *json = cJSON_CreateArray();
    for (uint32_t i = 0; i < cache->n_rates; i++) {
        cJSON *rate = cJSON_CreateObject();
        cJSON_AddNumberToObject(rate, "bits", (double)cache->rates[i]);
        cJSON_AddNumberToObject(rate, "tokens", (double)cache->rate_tokens[i]);
        cJSON_AddItemToArray(json, rate);
    }
    return json;
}

static cJSON *slot_json(const struct server *server, size_t id, const struct slot_view *view) {
    static const char *const states[] = {"idle", "prompt", "writing", "preempted", "writing", "idle"};
    const struct terse_cache_report *c = &view->cache;
    cJSON *json = cJSON_CreateObject(), *prompt, *cache;
    cJSON_AddNumberToObject(json, "id", (double)id);
    cJSON_AddStringToObject(json, "request", view->task);
    cJSON_AddStringToObject(json, "state", states[view->state]);
    cJSON_AddBoolToObject(json, "is_processing", is_busy(view));
    cJSON_AddNumberToObject(json, "n_ctx", server->limits.context);
    prompt = cJSON_AddObjectToObject(json, "prompt");
    cJSON_AddNumberToObject(prompt, "tokens", (double)view->prompt);
    cJSON_AddNumberToObject(prompt, "read", (double)view->read);
    cJSON_AddNumberToObject(prompt, "cached", (double)view->cached);
    cJSON_AddNumberToObject(json, "tokens", (double)view->tokens);
    cache = cJSON_AddObjectToObject(json, "cache");
    cJSON_AddNumberToObject(cache, "tokens", (double)c->tokens);
    cJSON_AddNumberToObject(cache, "kept", (double)c->kept);
    cJSON_AddNumberToObject(cache, "resident", (double)c->resident);
    cJSON_AddNumberToObject(cache, "codes", (double)c->codes);
    cJSON_AddNumberToObject(cache, "shared", (double)c->shared);
    cJSON_AddNumberToObject(cache, "exact", (double)c->exact);
    cJSON_AddNumberToObject(cache, "window", (double)c->window);
    cJSON_AddNumberToObject(cache, "tables", (double)c->tables);
    cJSON_AddNumberToObject(cache, "codebook", (double)c->codebook);
    cJSON_AddNumberToObject(cache, "bits_per_value", c->bits_per_value);
    cJSON_AddNumberToObject(cache, "f16", f16_bytes(server, c->tokens));
    if (c->n_rates) cJSON_AddItemToObject(cache, "rates", rates_json(c));
    if (c->tokens) cJSON_AddItemToObject(cache, "parts", parts_json(view->parts));
    return json;
}

static void slots(struct server *server, struct call *call) {
    struct metrics_state state;
    struct slot_view *views = calloc(server->slots, sizeof *views);
    cJSON *json = cJSON_CreateArray();
    if (views) scheduler_look(server->scheduler, views, &state);
    for (size_t i = 0; views && i < server->slots; i++) cJSON_AddItemToArray(json, slot_json(server, i, &views[i]));
    free(views);
    answer_json(call, 200, json);
}

/* Saves, restores or erases what the slot that the address ends with has left. */
static void slot_action(struct server *server, struct call *call) {
    struct api_error error = {0};
    struct slot_action *action = slot_action_read(call->path + strlen("/slots/"), call->action, call->body, call->n, server->slots,
                                                  server->slot_folder, &error);
    if (!action) {
        routes_refuse(call, &error);
        return;
    }
    struct exchange *exchange = action->exchange;
    enum scheduler_answer answer = scheduler_submit_action(server->scheduler, action);
    if (answer == SCHEDULER_TAKEN) {
        call->exchange = exchange;
        return;
    }
    slot_action_free(action);
    exchange_release(exchange);
    refuse_task(server, call, answer);
}

static void add_cache(struct terse_cache_report *sum, const struct terse_cache_report *c) {
    sum->tokens += c->tokens;
    sum->resident += c->resident;
    sum->codes += c->codes;
    sum->exact += c->exact;
    sum->window += c->window;
    sum->tables += c->tables;
}

static void metrics(struct server *server, struct call *call) {
    struct slot_view *views = calloc(server->slots, sizeof *views);
    struct metrics_state state = {0};
    if (views) scheduler_look(server->scheduler, views, &state);
    for (size_t i = 0; views && i < server->slots; i++) {
        if (!is_busy(&views[i])) continue;
        state.busy++;
        add_cache(&state.cache, &views[i].cache);
    }
    free(views);
    state.kv_budget = server->kv_budget;
    double f16 = f16_bytes(server, state.cache.tokens);
    state.bits_per_value = f16 > 0 ? 16 * (double)state.cache.resident / f16 : 0;
    metrics_write(&server->metrics, &state, &call->text);
    call->status = call->text.failed ? 500 : 200;
    call->type = "text/plain; version=0.0.4; charset=utf-8";
}

/* embedded.S has page.html. */
extern const char page_begin[], page_end[];

static void page(struct server *server, struct call *call) {
    (void)server;
    call->status = 200;
    call->type = "text/html; charset=utf-8";
    buffer_add(&call->text, page_begin, (size_t)(page_end - page_begin));
}

/* ---- Addresses */

static const struct route {
    const char *method, *path; /* one that ends with / stands before any name, but for the first */
    void (*answer)(struct server *server, struct call *call);
    bool open; /* to clients without a key */
} routes[] = {
    {"GET", "/", page, true},
    {"GET", "/health", health, true},
    {"GET", "/v1/health", health, true},
    {"GET", "/v1/models", models, false},
    {"GET", "/models", models, false},
    {"GET", "/v1/models/", model, false},
    {"GET", "/models/", model, false},
    {"GET", "/props", props, false},
    {"GET", "/slots", slots, false},
    {"POST", "/slots/", slot_action, false},
    {"GET", "/metrics", metrics, false},
    {"POST", "/v1/chat/completions", chat, false},
    {"POST", "/chat/completions", chat, false},
    {"POST", "/v1/responses", responses, false},
    {"POST", "/responses", responses, false},
    {"POST", "/v1/completions", completion, false},
    {"POST", "/completions", llama_completion, false},
    {"POST", "/completion", llama_completion, false},
    {"POST", "/infill", infill, false},
    {"POST", "/tokenize", tokenize, false},
    {"POST", "/detokenize", detokenize, false},
    {"POST", "/apply-template", apply_template, false},
    {"POST", "/v1/embeddings", no_embeddings, false},
    {"POST", "/embeddings", no_embeddings, false},
    {"POST", "/embedding", no_embeddings, false},
    {"POST", "/v1/rerank", no_ranks, false},
    {"POST", "/v1/reranking", no_ranks, false},
    {"POST", "/rerank", no_ranks, false},
    {"POST", "/reranking", no_ranks, false},
};

/* Finds a route. Returns NULL, and *path_known, where the address is there by another method. */
static const struct route *find(const char *method, const char *path, bool *path_known) {
    *path_known = false;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        size_t n = strlen(routes[i].path);
        bool before_name = n > 1 && routes[i].path[n - 1] == '/' && strncmp(routes[i].path, path, n) == 0;
        if (!before_name && strcmp(routes[i].path, path) != 0) continue;
        *path_known = true;
        if (strcmp(routes[i].method, method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(routes[i].method, "GET") == 0))
            return &routes[i];
    }
    return NULL;
}

bool routes_takes_body(const char *method, const char *path) {
    bool known;
    const struct route *route = find(method, path, &known);
    return route && strcmp(route->method, "POST") == 0;
}

void routes_answer(struct server *server, struct call *call) {
    struct api_error error = {0};
    char path[80];
    bool path_known;
    const struct route *route = find(call->method, call->path, &path_known);
    if (!call->known && !(route && route->open))
        api_fail(&error, 401, "invalid_api_key", NULL, "this server wants an API key: Authorization: Bearer KEY");
    else if (!route && path_known)
        api_fail(&error, 405, NULL, NULL, "%s does not take this method", shown(call->path, path, sizeof path));
    else if (!route)
        api_fail(&error, 404, NULL, NULL, "there is nothing at %s", shown(call->path, path, sizeof path));
    if (error.status)
        routes_refuse(call, &error);
    else
        route->answer(server, call);
}
