#include "request.h"

#include "chat_prompt.h"
#include "console.h"
#include "fields.h"
#include "infill.h"
#include "responses_request.h"
#include "text.h"
#include "thinking_request.h"
#include "tool_request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- Settings */

/* These are numbers as JSON has them, before they become those of struct request. */
struct numbers {
    double temperature, top_p, min_p, typical_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, repeat_last, seed;
};

static struct numbers default_numbers(void) {
    const struct terse_sampling s = terse_sampling_defaults();
    return (struct numbers){.temperature = (double)s.temperature,
                            .top_p = (double)s.top_p,
                            .min_p = (double)s.min_p,
                            .typical_p = (double)s.typical_p,
                            .repeat_penalty = (double)s.repeat_penalty,
                            .presence_penalty = (double)s.presence_penalty,
                            .frequency_penalty = (double)s.frequency_penalty,
                            .top_k = s.top_k,
                            .repeat_last = s.repeat_last,
                            .seed = -1};
}

/* Returns the seed. Any but -1 is taken as it is; without one each request gets its own. */
static uint64_t choose_seed(int64_t seed) {
    uint64_t random;
    if (seed != -1) return (uint64_t)seed;
    return getrandom(&random, sizeof random, 0) == sizeof random ? random : 1;
}

static bool read_sampling(const cJSON *body, const struct request_limits *limits, struct request *r, struct api_error *error) {
    const int64_t most_seed = INT64_C(1) << 53; /* what a JSON number holds exactly */
    struct numbers v = default_numbers();
    if (limits->temperature) v.temperature = *limits->temperature;
    bool good = json_number(body, "temperature", 0, 100, &v.temperature, error) &&
                json_number(body, "top_p", 0, 1, &v.top_p, error) && json_number(body, "min_p", 0, 1, &v.min_p, error) &&
                json_number(body, "typical_p", 0, 1, &v.typical_p, error) &&
                json_number(body, "repeat_penalty", 0.01, 100, &v.repeat_penalty, error) &&
                json_number(body, "presence_penalty", -100, 100, &v.presence_penalty, error) &&
                json_number(body, "frequency_penalty", -100, 100, &v.frequency_penalty, error) &&
                json_whole(body, "top_k", -1, INT32_MAX, &v.top_k, error) &&
                json_whole(body, "repeat_last_n", -1, INT32_MAX, &v.repeat_last, error) &&
                json_whole(body, "seed", -most_seed, most_seed, &v.seed, error);
    if (!good) return false;
    r->sampling = terse_sampling_defaults();
    r->sampling.temperature = (float)v.temperature;
    r->sampling.top_p = (float)v.top_p;
    r->sampling.min_p = (float)v.min_p;
    r->sampling.typical_p = (float)v.typical_p;
    r->sampling.repeat_penalty = (float)v.repeat_penalty;
    r->sampling.presence_penalty = (float)v.presence_penalty;
    r->sampling.frequency_penalty = (float)v.frequency_penalty;
    r->sampling.top_k = v.top_k < 0 ? 0 : (uint32_t)v.top_k;
    r->sampling.repeat_last = v.repeat_last < 0 ? limits->context : (uint32_t)v.repeat_last;
    r->sampling.seed = choose_seed(v.seed);
    return true;
}

static bool bad_bias(struct api_error *error) {
    return api_fail(error, 400, NULL, "logit_bias",
                    "\"logit_bias\" must be an object of token numbers, with a number from -100 to 100 for each");
}

static bool read_bias(const cJSON *entry, uint32_t vocabulary, struct terse_logit_bias *bias, struct api_error *error) {
    const cJSON *value = entry;
    double token = -1;
    if (entry->string) {
        char *end;
        token = (double)strtol(entry->string, &end, 10);
        if (end == entry->string || *end) return bad_bias(error);
    } else { /* llama.cpp's [[token, bias], ...] */
        const cJSON *first = cJSON_IsArray(entry) ? entry->child : NULL;
        if (!cJSON_IsNumber(first) || !first->next || first->next->next) return bad_bias(error);
        token = first->valuedouble;
        value = first->next;
    }
    if (!(token >= 0 && token < vocabulary) || token != floor(token))
        return api_fail(error, 400, NULL, "logit_bias", "\"logit_bias\" names a token that is not in the vocabulary of %u tokens",
                        vocabulary);
    bias->token = (int32_t)token;
    if (cJSON_IsFalse(value)) {
        bias->bias = -INFINITY;
        return true;
    }
    if (!cJSON_IsNumber(value) || !(fabs(value->valuedouble) <= 100)) return bad_bias(error);
    bias->bias = (float)value->valuedouble;
    return true;
}

static bool read_biases(const cJSON *body, uint32_t vocabulary, struct request *r, struct api_error *error) {
    const cJSON *field = json_field(body, "logit_bias"), *entry;
    if (!field) return true;
    if (!cJSON_IsObject(field) && !cJSON_IsArray(field)) return bad_bias(error);
    size_t n = (size_t)cJSON_GetArraySize(field);
    if (!n) return true;
    if (!(r->biases = calloc(n, sizeof *r->biases))) return api_fail(error, 503, NULL, NULL, "no memory");
    cJSON_ArrayForEach(entry, field) if (!read_bias(entry, vocabulary, &r->biases[r->sampling.n_biases++], error)) return false;
    r->sampling.biases = r->biases;
    return true;
}

static bool add_stop(struct request *r, const cJSON *value, struct api_error *error) {
    if (!cJSON_IsString(value) || !value->valuestring[0])
        return api_fail(error, 400, NULL, "stop", "\"stop\" must be a string that is not empty, or an array of them");
    if (!(r->stops[r->n_stops] = strdup(value->valuestring))) return api_fail(error, 503, NULL, NULL, "no memory");
    r->n_stops++;
    return true;
}

static bool read_stops(const cJSON *body, struct request *r, struct api_error *error) {
    const cJSON *field = json_field(body, "stop"), *entry;
    if (!field) return true;
    size_t n = cJSON_IsArray(field) ? (size_t)cJSON_GetArraySize(field) : 1;
    if (!n) return true;
    if (n > REQUEST_STOPS) return api_fail(error, 400, NULL, "stop", "\"stop\" has more than %d strings", REQUEST_STOPS);
    if (!(r->stops = calloc(n, sizeof *r->stops))) return api_fail(error, 503, NULL, NULL, "no memory");
    if (!cJSON_IsArray(field)) return add_stop(r, field, error);
    cJSON_ArrayForEach(entry, field) if (!add_stop(r, entry, error)) return false;
    return true;
}

static bool set_schema(struct request *r, const cJSON *schema, const char *param, struct api_error *error) {
    r->require_json = true;
    if (!schema) return true;
    if (!cJSON_IsObject(schema))
        return api_fail(error, 400, NULL, param, "the JSON schema must be an object, not %s", json_kind(schema));
    r->schema = cJSON_PrintUnformatted(schema);
    return r->schema || api_fail(error, 503, NULL, NULL, "no memory");
}

static bool read_format(const cJSON *body, struct request *r, struct api_error *error) {
    const char *name = "response_format", *type = NULL;
    const cJSON *field = json_field(body, name);
    if (api_is_llama(r->api) && json_field(body, "json_schema"))
        return set_schema(r, json_field(body, "json_schema"), "json_schema", error);
    if (!field) return true;
    if (!cJSON_IsObject(field)) return api_fail(error, 400, NULL, name, "\"%s\" must be an object, not %s", name, json_kind(field));
    if (!json_text(field, "type", &type, error)) return false;
    if (type && strcmp(type, "text") == 0) return true;
    if (type && strcmp(type, "json_object") == 0) return set_schema(r, json_field(field, "schema"), name, error);
    if (!type || strcmp(type, "json_schema") != 0)
        return api_fail(error, 400, NULL, name, "\"%s\" has the type text, json_object or json_schema", name);
    const cJSON *inner = json_field(field, "json_schema"), *schema = cJSON_IsObject(inner) ? json_field(inner, "schema") : NULL;
    if (!schema)
        return api_fail(error, 400, NULL, name, "\"%s\" of type json_schema needs \"json_schema\": {\"schema\": {...}}", name);
    return set_schema(r, schema, name, error);
}

/* Reads the number of log probabilities: "logprobs" is a number of tokens for completions, a boolean beside "top_logprobs" for chats; llama.cpp
 * says "n_probs". */
static bool read_logprobs(const cJSON *body, struct request *r, struct api_error *error) {
    bool wanted = false;
    int64_t top = 0;
    r->logprobs = -1;
    if (r->api == API_COMPLETION) return json_whole(body, "logprobs", 0, REQUEST_LOGPROBS, &r->logprobs, error);
    if (api_is_llama(r->api)) {
        if (!json_whole(body, "n_probs", 0, REQUEST_LOGPROBS, &top, error)) return false;
        if (top) r->logprobs = top;
        return true;
    }
    if (!json_flag(body, "logprobs", &wanted, error) || !json_whole(body, "top_logprobs", 0, REQUEST_LOGPROBS, &top, error))
        return false;
    if (top && !wanted) return api_fail(error, 400, NULL, "top_logprobs", "\"top_logprobs\" needs \"logprobs\": true");
    if (wanted) r->logprobs = top;
    return true;
}

static bool read_amounts(const cJSON *body, const struct request_limits *limits, struct request *r, struct api_error *error) {
    r->n = r->best_of = 1;
    r->max_tokens = limits->reply_tokens ? (int64_t)limits->reply_tokens : r->api == API_COMPLETION ? 16 : -1;
    static const char *const names[] = {"max_tokens", "n_predict", "max_completion_tokens"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!json_whole(body, names[i], -1, INT32_MAX, &r->max_tokens, error)) return false;
    if (api_is_llama(r->api)) return true;
    if (!json_whole(body, "n", 1, limits->slots, &r->n, error)) return false;
    r->best_of = r->n;
    if (!json_whole(body, "best_of", 1, limits->slots, &r->best_of, error)) return false;
    if (r->best_of < r->n)
        return api_fail(error, 400, NULL, "best_of", "\"best_of\" must be at least \"n\", of which it is the choice");
    return r->best_of == r->n || !r->stream ||
           api_fail(error, 400, NULL, "best_of",
                    "\"best_of\" above \"n\" cannot be streamed: the best is known when all are written");
}

static bool read_stream(const cJSON *body, struct request *r, struct api_error *error) {
    const cJSON *options = json_field(body, "stream_options");
    if (!json_flag(body, "stream", &r->stream, error) || !options) return !error->status;
    if (!cJSON_IsObject(options))
        return api_fail(error, 400, NULL, "stream_options", "\"stream_options\" must be an object, not %s", json_kind(options));
    return json_flag(options, "include_usage", &r->include_usage, error);
}

static bool read_settings(const cJSON *body, const struct request_limits *limits, struct request *r, struct api_error *error) {
    const char *ignored = NULL;
    r->use_prefix = true;
    return json_text(body, "model", &ignored, error) && json_text(body, "user", &ignored, error) &&
           fields_check(body, r->api == API_RESPONSES ? API_CHAT : r->api, error) && read_stream(body, r, error) &&
           read_amounts(body, limits, r, error) && read_sampling(body, limits, r, error) &&
           read_biases(body, limits->vocabulary, r, error) && read_stops(body, r, error) && read_format(body, r, error) &&
           read_logprobs(body, r, error) && json_flag(body, "cache_prompt", &r->use_prefix, error) &&
           json_flag(body, "return_progress", &r->progress, error) &&
           json_flag(body, "timings_per_token", &r->timings_per_token, error) &&
           (r->api != API_COMPLETION || json_flag(body, "echo", &r->echo, error));
}

/* ---- Prompts */

bool request_tokenize(const struct terse_model *model, const char *text, size_t n, bool add_special, bool special, int32_t **tokens,
                      size_t *n_tokens, struct api_error *error) {
    unsigned flags = (add_special ? TERSE_TOKENIZE_ADD_SPECIAL : 0u) | (special ? TERSE_TOKENIZE_PARSE_SPECIAL : 0u);
    if (text_tokenize(model, text, n, flags, tokens, n_tokens) == EXIT_OK) return true;
    return api_fail(error, 503, NULL, NULL, "no memory for the tokens of %zu bytes of text", n);
}

static bool take_text(const struct request_limits *limits, const char *text, struct prompt *prompt, struct api_error *error) {
    bool added;
    int32_t bos = terse_token_bos(limits->model, &added);
    if (!request_tokenize(limits->model, text, strlen(text), true, true, &prompt->tokens, &prompt->n, error)) return false;
    prompt->added = added && prompt->n && prompt->tokens[0] == bos;
    if (prompt->n) return true;
    /* With an empty prompt the model begins a text of its own. */
    if (bos < 0) return api_fail(error, 400, NULL, "prompt", "the prompt is empty, and the model has no token to begin with");
    prompt->tokens[0] = bos; /* there is room: text_tokenize reserves more than the bytes of the text */
    prompt->n = prompt->added = 1;
    return true;
}

static bool take_tokens(const struct request_limits *limits, const cJSON *array, struct prompt *prompt, struct api_error *error) {
    const cJSON *entry;
    size_t n = (size_t)cJSON_GetArraySize(array);
    if (!n) return api_fail(error, 400, NULL, "prompt", "a prompt of no tokens");
    if (!(prompt->tokens = malloc(n * sizeof *prompt->tokens))) return api_fail(error, 503, NULL, NULL, "no memory");
    cJSON_ArrayForEach(entry, array) {
        double token = cJSON_IsNumber(entry) ? entry->valuedouble : -1;
        if (!(token >= 0 && token < limits->vocabulary) || token != floor(token))
            return api_fail(error, 400, NULL, "prompt",
                            "a prompt of tokens must have whole numbers below %u, the vocabulary's size", limits->vocabulary);
        prompt->tokens[prompt->n++] = (int32_t)token;
    }
    return true;
}

static bool take_prompt(const struct request_limits *limits, const cJSON *value, struct prompt *prompt, struct api_error *error) {
    if (cJSON_IsString(value)) return take_text(limits, value->valuestring, prompt, error);
    if (cJSON_IsArray(value)) return take_tokens(limits, value, prompt, error);
    return api_fail(error, 400, NULL, "prompt", "\"prompt\" must be a string, an array of strings, or an array of tokens, not %s",
                    json_kind(value));
}

static bool reserve_prompts(struct request *r, size_t n, struct api_error *error) {
    if (n > REQUEST_PROMPTS) return api_fail(error, 400, NULL, "prompt", "more than %d prompts in a request", REQUEST_PROMPTS);
    r->prompts = calloc(n, sizeof *r->prompts);
    return r->prompts || api_fail(error, 503, NULL, NULL, "no memory");
}

/* Reads a string, an array of tokens, or an array of either. */
static bool read_prompts(const struct request_limits *limits, const cJSON *body, struct request *r, struct api_error *error) {
    const cJSON *field = json_field(body, "prompt"), *entry;
    if (!field) return api_fail(error, 400, NULL, "prompt", "\"prompt\" is missing");
    bool many = cJSON_IsArray(field) && field->child && !cJSON_IsNumber(field->child);
    if (many && r->api == API_LLAMA)
        return api_fail(error, 400, NULL, "prompt", "\"prompt\" must be a string or an array of tokens");
    if (!reserve_prompts(r, many ? (size_t)cJSON_GetArraySize(field) : 1, error)) return false;
    if (!many) return take_prompt(limits, field, &r->prompts[r->n_prompts++], error);
    cJSON_ArrayForEach(entry, field) if (!take_prompt(limits, entry, &r->prompts[r->n_prompts++], error)) return false;
    return true;
}

static bool check_lengths(const struct request_limits *limits, const struct request *r, struct api_error *error) {
    static const char *const params[] = {[API_CHAT] = "messages",
                                         [API_COMPLETION] = "prompt",
                                         [API_LLAMA] = "prompt",
                                         [API_INFILL] = "prompt",
                                         [API_RESPONSES] = "input"};
    for (size_t i = 0; !api_is_chat(r->api) && i < r->n_prompts; i++) r->prompts[i].turn = r->prompts[i].n;
    for (size_t i = 0; i < r->n_prompts; i++)
        if (r->prompts[i].n + (r->max_tokens != 0) > limits->context)
            return api_fail(error, 400, "context_length_exceeded", params[r->api],
                            "the prompt has %zu tokens, and the context holds %u: shorten it, or raise -c", r->prompts[i].n,
                            limits->context);
    return true;
}

static bool read_all(const struct request_limits *limits, const cJSON *body, struct request *r, struct api_error *error) {
    if (!read_settings(body, limits, r, error)) return false;
    if (r->api == API_COMPLETION || r->api == API_LLAMA)
        return read_prompts(limits, body, r, error) && check_lengths(limits, r, error);
    if (!reserve_prompts(r, 1, error)) return false;
    r->n_prompts = 1;
    if (r->api == API_INFILL) return infill_read(limits, body, r, error) && check_lengths(limits, r, error);
    return thinking_request_read(body, r, error) && tool_request_read(body, r, error) && chat_prompt_read(limits, body, r, error) &&
           check_lengths(limits, r, error);
}

/* Returns the chat's body in place of a response's, which is deleted; NULL, with *error. */
static cJSON *chat_of_response(cJSON *body, struct request *r, struct api_error *error) {
    cJSON *chat = fields_check(body, API_RESPONSES, error) ? responses_chat(body, &r->shown, error) : NULL;
    cJSON_Delete(body);
    return chat;
}

bool request_read(const struct request_limits *limits, enum api api, const char *body, size_t n, struct request *request,
                  struct api_error *error) {
    *request = (struct request){.api = api};
    cJSON *json = json_read_object(body, n, error);
    if (json && api == API_RESPONSES) json = chat_of_response(json, request, error);
    if (!json) return false;
    bool good = read_all(limits, json, request, error);
    cJSON_Delete(json);
    if (!good) request_free(request);
    return good;
}

bool request_render(const struct request_limits *limits, const char *body, size_t n, char **text, struct api_error *error) {
    struct request request = {.api = API_CHAT};
    cJSON *json = json_read_object(body, n, error);
    if (!json) return false;
    bool good = read_settings(json, limits, &request, error) && thinking_request_read(json, &request, error) &&
                tool_request_read(json, &request, error) && chat_prompt_render(limits, json, &request, text, error);
    cJSON_Delete(json);
    request_free(&request);
    return good;
}

struct terse_chat_options request_chat_options(const struct request_limits *limits, const struct request *r) {
    struct terse_chat_options options = terse_chat_options_defaults();
    options.format = limits->chat_format;
    options.template_text = limits->chat_template;
    options.tools = r->tools;
    options.open_call = r->open_call;
    options.thinking = r->thinking;
    options.effort = r->effort;
    return options;
}

void request_free(struct request *r) {
    for (size_t i = 0; i < r->n_prompts; i++) free(r->prompts[i].tokens);
    for (size_t i = 0; i < r->n_stops; i++) free(r->stops[i]);
    free(r->prompts);
    free(r->stops);
    free(r->biases);
    cJSON_free(r->schema);
    cJSON_free(r->tools);
    cJSON_free(r->shown);
    cJSON_free(r->callable);
    *r = (struct request){0};
}
