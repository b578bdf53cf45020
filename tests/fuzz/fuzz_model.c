/* Fuzz target of all that a GGUF file reaches: loading a model, its tokenizer and chat format, and some steps of a session. Run it
 * with the corpus in corpus/model; see CMakeLists.txt. Shapes are bounded by the input itself, since every tensor lies in it. */
#include "base/memory.h"
#include "terse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_TOKENS = 64, CONTEXT = 32, MOST_LAYERS = 8 };

static void require(bool condition) {
    if (!condition) abort();
}

static size_t tokenize(const struct terse_model *model, const struct terse_model_info *info, int32_t tokens[MOST_TOKENS]) {
    static const char text[] = "the cat <|eot_id|></s> 12345  it's \xe2\x82\xac \xff\n\n\tz";
    size_t n = 0, needed = 0;
    struct terse_error error;
    for (unsigned flags = 0; flags < 4; flags++) {
        enum terse_status status = terse_tokenize(model, text, sizeof text - 1, flags, tokens, MOST_TOKENS, &n, &error);
        require(status == TERSE_OK || error.code == status);
        if (status != TERSE_OK) return 0;
        require(terse_tokenize(model, text, sizeof text - 1, flags, NULL, 0, &needed, &error) == (n ? TERSE_E_ARGUMENT : TERSE_OK));
        require(needed == n && n <= sizeof text - 1 + 4);
        for (size_t i = 0; i < n; i++) require(tokens[i] >= 0 && (uint32_t)tokens[i] < info->vocabulary);
    }
    return n;
}

static void detokenize(const struct terse_model *model, const int32_t *tokens, size_t n) {
    struct terse_error error;
    for (int special = 0; special <= 1; special++) {
        struct terse_detokenizer *detokenizer;
        size_t bytes;
        if (terse_detokenizer_new(model, special, &detokenizer, &error) != TERSE_OK) return;
        for (size_t i = 0; i < n; i++) {
            const char *text = terse_detokenizer_push(detokenizer, tokens[i], &bytes);
            require(text && text[bytes] == '\0');
            (void)terse_token_ends(model, tokens[i]);
        }
        terse_detokenizer_push(detokenizer, -1, &bytes);
        terse_detokenizer_push(detokenizer, INT32_MAX, &bytes);
        require(terse_detokenizer_finish(detokenizer, &bytes)[bytes] == '\0');
        terse_detokenizer_free(detokenizer);
    }
}

static void render(const struct terse_model *model) {
    const struct terse_message messages[] = {{"system", "be brief"}, {"user", "hello"}, {"assistant", "yes"}, {"user", "why"}};
    struct terse_error error;
    char *text;
    enum terse_status status = terse_chat_render(model, NULL, messages, 4, true, &text, &error);
    require((status == TERSE_OK) == (text != NULL));
    terse_string_free(text);
}

static void run(const struct terse_model *model, const struct terse_model_info *info, const int32_t *tokens, size_t n) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_engine_options engine_options = terse_engine_options_defaults();
    struct terse_engine *engine;
    struct terse_session *session;
    struct terse_error error;
    int32_t next = 0;
    engine_options.threads = 1;
    if (terse_engine_new(model, &engine_options, &engine, &error) != TERSE_OK) return;
    options.context = CONTEXT;
    options.allow_longer_context = true;
    if (terse_session_new(engine, &options, &session, &error) != TERSE_OK) {
        terse_engine_free(engine);
        return;
    }
    if (n > 4) n = 4;
    if (n && terse_session_prefill(session, tokens, n, NULL, &error) == TERSE_OK) {
        require(terse_session_length(session) == n && terse_session_logits(session));
        for (int i = 0; i < 2; i++) {
            if (terse_session_sample(session, &next, &error) != TERSE_OK) break;
            require(next >= 0 && (uint32_t)next < info->vocabulary);
            if (terse_session_decode(session, &next, 1, NULL, &error) != TERSE_OK) break;
        }
    }
    terse_session_free(session);
    terse_engine_free(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct terse_model *model;
    struct terse_model_info info;
    struct terse_error error = {0};
    int32_t tokens[MOST_TOKENS];
    uint8_t *file = memory_array(size, 1); /* aligned, and ends where the input ends */
    require(file != NULL);
    if (size) memcpy(file, data, size);

    enum terse_status status = terse_model_load_memory(file, size, "input", &model, &error);
    require((status == TERSE_OK) == (model != NULL));
    if (model) {
        bool added;
        terse_model_describe(model, &info);
        require(info.architecture && info.name && !strpbrk(info.name, "\n\x1b") && info.weights && info.bytes <= size);
        size_t n = tokenize(model, &info, tokens);
        require(terse_token_bos(model, &added) < (int32_t)info.vocabulary);
        detokenize(model, tokens, n);
        render(model);
        if (info.layers <= MOST_LAYERS) run(model, &info, tokens, n);
    } else {
        require(error.code == status && strlen(error.message) > 10 && !strpbrk(error.message, "\n\x1b"));
    }
    terse_model_free(model);
    memory_free(file);
    return 0;
}
