/* This is the smallest whole use of libterse: it loads a model, reads a prompt, writes 32 tokens, and says what the KV cache took.
 *
 *     cc minimal.c $(pkg-config --cflags --libs terse) -o minimal
 *     ./minimal model.gguf "It was a dark and stormy" */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terse.h>

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.gguf PROMPT\n", argv[0]);
        return 2;
    }
    const char *prompt = argv[2];
    struct terse_model *model = NULL;
    struct terse_engine *engine = NULL;
    struct terse_session *session = NULL;
    struct terse_detokenizer *detokenizer = NULL;
    struct terse_cache_report cache;
    struct terse_error error;
    size_t n = 0, capacity = strlen(prompt) + 4;
    int exit_code = 1;

    int32_t *tokens = malloc(capacity * sizeof *tokens);
    if (!tokens) return 1;
    if (terse_model_load(argv[1], &model, &error)) goto failed;
    if (terse_tokenize(model, prompt, strlen(prompt), TERSE_TOKENIZE_ADD_SPECIAL, tokens, capacity, &n, &error)) goto failed;

    if (terse_engine_new(model, NULL, &engine, &error)) goto failed;

    struct terse_session_options options = terse_session_options_defaults();
    options.cache.method = "q8_0";
    options.context = (uint32_t)n + 32;
    if (terse_session_new(engine, &options, &session, &error)) goto failed;
    if (terse_detokenizer_new(model, false, &detokenizer, &error)) goto failed;

    if (terse_session_prefill(session, tokens, n, NULL, &error)) goto failed;
    printf("%s", prompt);
    for (int i = 0; i < 32; i++) {
        int32_t token;
        if (terse_session_sample(session, &token, &error)) goto failed;
        if (terse_token_ends(model, token)) break;
        printf("%s", terse_detokenizer_push(detokenizer, token, NULL));
        if (terse_session_decode(session, &token, 1, NULL, &error)) goto failed;
    }
    printf("%s\n", terse_detokenizer_finish(detokenizer, NULL));

    terse_session_cache(session, &cache);
    printf("KV cache: %llu tokens, %llu bytes, %.2f bits per value\n", (unsigned long long)cache.tokens,
           (unsigned long long)cache.resident, cache.bits_per_value);
    exit_code = 0;

failed:
    if (exit_code) fprintf(stderr, "%s\n", error.message);
    terse_detokenizer_free(detokenizer);
    terse_session_free(session);
    terse_engine_free(engine);
    terse_model_free(model);
    free(tokens);
    return exit_code;
}
