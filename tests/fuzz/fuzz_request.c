/* Fuzz target of the server's requests: the first byte chooses the API, the rest is a body. What is read must keep what struct request
 * promises, and what is refused must be said in a printable line with an HTTP status. Run it with the corpus in corpus/request; see
 * CMakeLists.txt. */
#include "serve/request.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static const struct request_limits *limits(void) {
    static struct request_limits l;
    struct terse_model *model;
    struct terse_model_info info;
    if (l.model) return &l;
    require(terse_model_load(TESTS_DIR "/fixtures/models/qwen3.gguf", &model, NULL) == TERSE_OK);
    terse_model_describe(model, &info);
    l = (struct request_limits){.model = model, .vocabulary = info.vocabulary, .context = 256, .slots = 4, .chat_format = "chatml"};
    return &l;
}

static void check_request(const struct request *r, enum api api) {
    require(r->api == api && r->n_prompts >= 1 && r->n_prompts <= REQUEST_PROMPTS && r->n_stops <= REQUEST_STOPS);
    require(r->n >= 1 && r->n <= limits()->slots && r->max_tokens >= -1 && r->logprobs >= -1 && r->logprobs <= REQUEST_LOGPROBS);
    require(r->sampling.temperature >= 0 && r->sampling.top_p >= 0 && r->sampling.top_p <= 1);
    for (size_t i = 0; i < r->n_prompts; i++) {
        const struct prompt *p = &r->prompts[i];
        require(p->n >= 1 && p->n <= limits()->context && p->added <= 1);
        for (size_t j = 0; j < p->n; j++) require(p->tokens[j] >= 0 && (uint32_t)p->tokens[j] < limits()->vocabulary);
    }
    for (size_t i = 0; i < r->n_stops; i++)
        require(r->stops[i][0] && text_valid(r->stops[i], strlen(r->stops[i])) == strlen(r->stops[i]));
    for (size_t i = 0; i < r->sampling.n_biases; i++)
        require(r->biases[i].token >= 0 && (uint32_t)r->biases[i].token < limits()->vocabulary && r->biases[i].bias <= 100);
    require(!r->schema || r->schema[0] == '{');
}

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
    enum api api = (enum api)(data[0] % 5);
    char *body = malloc(size > 1 ? size - 1 : 1); /* ends where the input ends */
    require(body != NULL);
    memcpy(body, data + 1, size - 1);
    bool good = request_read(limits(), api, body, size - 1, &request, &error);
    free(body);
    require(good == (error.status == 0));
    if (good)
        check_request(&request, api);
    else
        check_error(&error);
    request_free(&request);
    return 0;
}
