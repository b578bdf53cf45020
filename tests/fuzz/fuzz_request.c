/* Fuzz target of the server's requests: the first byte chooses the API and the chat format, the rest is a body up to U+001F, and behind that a
 * reply. What is read must keep what struct request promises, and what is refused must be said in a printable line with an HTTP status. A chat's
 * reply is taken apart, whole and in two pieces, and read by the filter that holds calls to their tools. Run it with the corpus in
 * corpus/request; see CMakeLists.txt. */
#include "serve/buffer.h"
#include "serve/request.h"
#include "text.h"
#include "text/call_filter.h"
#include "text/chat_tools.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static const char *const formats[] = {"chatml", "qwen-3", "llama-3.1", "mistral-v3", "gpt-oss", "llama-3"};
enum { APIS = 5, FORMATS = sizeof formats / sizeof *formats };

static struct request_limits *limits(void) {
    static struct request_limits l;
    struct terse_model *model;
    struct terse_model_info info;
    if (l.model) return &l;
    require(terse_model_load(TESTS_DIR "/fixtures/models/qwen3.gguf", &model, NULL) == TERSE_OK);
    terse_model_describe(model, &info);
    l = (struct request_limits){.model = model, .vocabulary = info.vocabulary, .context = 4096, .slots = 4};
    return &l;
}

static void check_request(const struct request *r, enum api api) {
    require(r->api == api && r->n_prompts >= 1 && r->n_prompts <= REQUEST_PROMPTS && r->n_stops <= REQUEST_STOPS);
    require(r->n >= 1 && r->n <= r->best_of && r->best_of <= limits()->slots && (r->n == r->best_of || !r->stream));
    require(r->max_tokens >= -1 && r->logprobs >= -1 && r->logprobs <= REQUEST_LOGPROBS);
    require(r->sampling.temperature >= 0 && r->sampling.top_p >= 0 && r->sampling.top_p <= 1);
    for (size_t i = 0; i < r->n_prompts; i++) {
        const struct prompt *p = &r->prompts[i];
        require(p->n >= 1 && p->n <= limits()->context && p->added <= 1 && p->turn <= p->n);
        for (size_t j = 0; j < p->n; j++) require(p->tokens[j] >= 0 && (uint32_t)p->tokens[j] < limits()->vocabulary);
    }
    for (size_t i = 0; i < r->n_stops; i++)
        require(r->stops[i][0] && text_valid(r->stops[i], strlen(r->stops[i])) == strlen(r->stops[i]));
    for (size_t i = 0; i < r->sampling.n_biases; i++)
        require(r->biases[i].token >= 0 && (uint32_t)r->biases[i].token < limits()->vocabulary && r->biases[i].bias <= 100);
    require(!r->schema || r->schema[0] == '{');
    require(!r->tools || (api_is_chat(api) && r->tools[0] == '['));
    require(!r->callable || (r->tools && r->open_call && r->callable[0] == '['));
    require(!r->open_call || (r->tools && !r->require_json));
}

/* ---- Replies */

/* A reply as it was taken apart. */
struct taken {
    struct terse_reply_reader *reader;
    struct buffer text, thoughts;
    const struct terse_tool_call *calls;
    size_t n_calls;
};

static void add_piece(struct taken *t, const struct terse_reply_piece *piece) {
    if (piece->n_text) buffer_add(&t->text, piece->text, piece->n_text);
    if (piece->n_thoughts) buffer_add(&t->thoughts, piece->thoughts, piece->n_thoughts);
}

/* Takes reply[n] apart, of which the first `cut` bytes come before the others. */
static bool take_apart(struct taken *t, const struct terse_chat_options *options, const char *reply, size_t n, size_t cut) {
    struct terse_reply_piece piece;
    struct terse_error error;
    *t = (struct taken){0};
    if (terse_reply_reader_new(limits()->model, options, &t->reader, &error)) return false;
    buffer_add(&t->text, "", 0);
    buffer_add(&t->thoughts, "", 0);
    require(terse_reply_reader_push(t->reader, reply, cut, &piece, &error) == TERSE_OK);
    add_piece(t, &piece);
    require(terse_reply_reader_push(t->reader, reply + cut, n - cut, &piece, &error) == TERSE_OK);
    add_piece(t, &piece);
    require(terse_reply_reader_finish(t->reader, &piece, &error) == TERSE_OK);
    add_piece(t, &piece);
    t->calls = terse_reply_reader_calls(t->reader, &t->n_calls);
    return true;
}

static void drop(struct taken *t) {
    terse_reply_reader_free(t->reader);
    buffer_free(&t->text);
    buffer_free(&t->thoughts);
}

static bool is_object(const char *text) {
    cJSON *json = cJSON_Parse(text);
    bool is = cJSON_IsObject(json);
    cJSON_Delete(json);
    return is;
}

static bool has_tool(const cJSON *tools, const char *name) {
    const cJSON *tool;
    cJSON_ArrayForEach(tool, tools) {
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(tool, "function"), "name");
        if (cJSON_IsString(own) && strcmp(own->valuestring, name) == 0) return true;
    }
    return false;
}

/* Checks that the filter takes a reply byte by byte as it does at once, and that a reply which it takes to an end has calls of its tools alone. */
static void check_filter(const struct terse_chat_options *options, const struct taken *whole, const char *reply, size_t n) {
    struct terse_error error;
    struct call_filter *filter;
    struct call_state *state = malloc(2 * sizeof *state), *at_once = state + 1;
    cJSON *tools;
    size_t allowed = 0;
    require(state && chat_tools_parse(options->tools, &tools, &error) == TERSE_OK);
    if (call_filter_new(chat_format_find(options->format), tools, options->open_call, &filter, &error) == TERSE_OK) {
        call_begin(filter, state);
        while (allowed < n && call_allows(filter, state, reply + allowed, 1)) {
            if (call_is_free(filter, state)) require(call_allows(filter, state, "x", 1) && call_allows(filter, state, "<", 1));
            require(call_push(filter, state, reply + allowed++, 1));
        }
        call_begin(filter, at_once);
        require(call_push(filter, at_once, reply, allowed));
        require(call_may_end(filter, at_once) == call_may_end(filter, state));
        bool ends = allowed == n && call_may_end(filter, state);
        for (size_t i = 0; ends && i < whole->n_calls; i++) require(has_tool(tools, whole->calls[i].name));
        call_filter_free(filter);
    }
    cJSON_Delete(tools);
    free(state);
}

static void check_reply(const struct request *r, const char *reply, size_t n) {
    struct terse_chat_options options = request_chat_options(limits(), r);
    struct taken whole, cut;
    if (r->callable) options.tools = r->callable;
    if (!take_apart(&whole, &options, reply, n, n)) return;
    require(take_apart(&cut, &options, reply, n, n / 2));
    require(whole.n_calls == cut.n_calls && strcmp(whole.text.bytes, cut.text.bytes) == 0);
    require(strcmp(whole.thoughts.bytes, cut.thoughts.bytes) == 0 && (options.tools || !whole.n_calls));
    for (size_t i = 0; i < whole.n_calls; i++) {
        require(strcmp(whole.calls[i].name, cut.calls[i].name) == 0 &&
                strcmp(whole.calls[i].arguments, cut.calls[i].arguments) == 0);
        require(whole.calls[i].name[0] && is_object(whole.calls[i].arguments));
    }
    if (options.tools) check_filter(&options, &whole, reply, n);
    drop(&whole);
    drop(&cut);
}

/* ---- */

static void check_error(const struct api_error *error) {
    size_t n = strlen(error->message);
    require((error->status == 400 || error->status == 501 || error->status == 503) && n > 0 && text_valid(error->message, n) == n);
    for (const char *c = error->message; *c; c++) require((unsigned char)*c >= 0x20);
    cJSON *json = api_error_json(error);
    require(json != NULL);
    cJSON_Delete(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct api_error error = {0};
    struct request request;
    if (!size) return 0;
    enum api api = (enum api)(data[0] % APIS);
    limits()->chat_format = formats[data[0] / APIS % FORMATS];
    const uint8_t *end = memchr(data + 1, 0x1f, size - 1);
    size_t n = end ? (size_t)(end - data) - 1 : size - 1, n_reply = end ? size - n - 2 : 0;
    char *body = malloc(n ? n : 1); /* ends where the body ends */
    require(body != NULL);
    memcpy(body, data + 1, n);
    bool good = request_read(limits(), api, body, n, &request, &error);
    free(body);
    require(good == (error.status == 0));
    if (good)
        check_request(&request, api);
    else
        check_error(&error);
    if (good && api_is_chat(api) && text_valid((const char *)data + size - n_reply, n_reply) == n_reply)
        check_reply(&request, (const char *)data + size - n_reply, n_reply);
    request_free(&request);
    return 0;
}
