/* Times the second prompt about a document that the engine has kept, beside the same prompt read by itself: seconds to the first token, and
 * how far the distributions of that token are apart (Kullback and Leibler, in nats).
 *
 *     bench_prefix MODEL.gguf TEXT [METHOD [CODEBOOK.gguf [TOKENS [QUESTION [THREADS]]]]]      f16, none (-), 8192 and 64 tokens, 2
 *
 * The document is TOKENS of the text, the two questions are the tokens after it.
 */
#include "base/clock.h"
#include "terse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(enum terse_status status, const struct terse_error *error) {
    if (!status) return;
    fprintf(stderr, "bench_prefix: %s\n", error->message);
    exit(1);
}

static void fail(const char *message) {
    fprintf(stderr, "bench_prefix: %s\n", message);
    exit(1);
}

/* Returns the text's tokens, which the caller frees. */
static int32_t *read_tokens(const struct terse_model *model, const char *path, size_t *n) {
    struct terse_error error;
    FILE *file = fopen(path, "rb");
    char *text = malloc((size_t)1 << 22);
    if (!file || !text) fail("cannot read the text");
    size_t bytes = fread(text, 1, (size_t)1 << 22, file);
    int32_t *tokens = malloc(bytes * sizeof *tokens);
    fclose(file);
    if (!tokens) fail("no memory");
    must(terse_tokenize(model, text, bytes, TERSE_TOKENIZE_ADD_SPECIAL, tokens, bytes, n, &error), &error);
    free(text);
    return tokens;
}

static double divergence(const float *a, const float *b, size_t n) {
    double sum_a = 0, sum_b = 0, kl = 0;
    for (size_t i = 0; i < n; i++) {
        sum_a += exp((double)a[i]);
        sum_b += exp((double)b[i]);
    }
    for (size_t i = 0; i < n; i++) kl += exp((double)a[i]) / sum_a * ((double)a[i] - log(sum_a) - (double)b[i] + log(sum_b));
    return kl;
}

struct prompts {
    struct terse_engine *engine;
    struct terse_session_options options;
    int32_t *text; /* [document + question] of one prompt */
    size_t document, question, vocabulary;
};

/* Reads the prompt, with what the engine has kept or all of it. Returns the seconds, and writes the logits to
 * logits[vocabulary]. */
static double read_prompt(const struct prompts *p, bool keep, size_t *held, float *logits) {
    struct terse_session *session;
    struct terse_error error;
    size_t n = p->document + p->question;
    double start = clock_now();
    must(terse_session_new_with_prefix(p->engine, &p->options, p->text, n, &session, held, &error), &error);
    must(terse_session_prefill(session, p->text + *held, n - *held, NULL, &error), &error);
    double seconds = clock_now() - start;
    memcpy(logits, terse_session_logits(session), p->vocabulary * sizeof *logits);
    if (keep) must(terse_engine_keep_prefix(p->engine, session, &error), &error);
    terse_session_free(session);
    return seconds;
}

int main(int argc, char **argv) {
    struct terse_model *model;
    struct terse_model_info info;
    struct terse_codebook *codebook = NULL;
    struct terse_engine_options engine_options = terse_engine_options_defaults();
    struct terse_error error;
    struct prompts p = {.options = terse_session_options_defaults()};
    size_t n, held;
    if (argc < 3) fail("usage: bench_prefix MODEL.gguf TEXT [METHOD [CODEBOOK.gguf [TOKENS [QUESTION [THREADS]]]]]");
    p.options.cache.method = argc > 3 ? argv[3] : "f16";
    p.document = argc > 5 ? (size_t)atol(argv[5]) : 8192;
    p.question = argc > 6 ? (size_t)atol(argv[6]) : 64;
    engine_options.threads = argc > 7 ? (uint32_t)atol(argv[7]) : 2;
    must(terse_model_load(argv[1], &model, &error), &error);
    if (argc > 4 && strcmp(argv[4], "-") != 0) must(terse_codebook_load(argv[4], &codebook, &error), &error);
    p.options.cache.codebook = codebook;
    terse_model_describe(model, &info);
    p.vocabulary = info.vocabulary;
    must(terse_engine_new(model, &engine_options, &p.engine, &error), &error);
    p.text = read_tokens(model, argv[2], &n);
    if (n < p.document + 2 * p.question) fail("the text is too short");
    float *alone = malloc(p.vocabulary * sizeof *alone), *shared = malloc(p.vocabulary * sizeof *shared);
    if (!alone || !shared) fail("no memory");
    read_prompt(&p, true, &held, alone);
    memcpy(p.text + p.document, p.text + p.document + p.question, p.question * sizeof *p.text);
    double fast = read_prompt(&p, false, &held, shared);
    size_t kept = held;
    terse_engine_drop_prefixes(p.engine);
    double slow = read_prompt(&p, false, &held, alone);
    printf("%-12s %zu of %zu tokens held: %.3f s to the first token, %.3f s without, %.0f times; divergence %.2g\n",
           p.options.cache.method, kept, p.document + p.question, fast, slow, slow / fast, divergence(alone, shared, p.vocabulary));
    free(alone);
    free(shared);
    free(p.text);
    terse_engine_free(p.engine);
    terse_codebook_free(codebook);
    terse_model_free(model);
    return 0;
}
