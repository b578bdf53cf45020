/* The logits of tiny random models against those of Hugging Face transformers, at every position, in every way a session can read a
 * text. The models and the logits are made by fixtures/make_models.py, a model for each thing that a file may ask of the loader. */
#include "support/fixture_model.h"
#include "terse.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The largest difference in a row over its largest logit. Within a prompt keys and values are exact: what is left is rounding to
 * fp32 on both sides, and transformers' angles, which are 1e-5 radians off at position 200. Earlier tokens are read in f16:
 * make_models.py, which rounds them so in double precision, prints up to 3.4e-3. */
#define EXACT 5e-5
#define SIXTEEN_BITS 2e-4 /* of gpt-oss, whose MXFP4 AVX2 multiplies by activations of 16 bits (kernels/weights/ops.h) */
#define HALF 6e-3

struct reference {
    const char *name;
    uint32_t width, query_heads, kv_heads, head_dim;
    uint32_t layers;
    uint32_t context; /* of sessions; 0: the model's */
};

static struct reference references[] = {
    {"llama", 48, 4, 2, 32, 2, 0},            /* GQA, tied output, head_dim not width / heads, a vocabulary */
    {"llama-untied", 48, 4, 1, 32, 2, 0},     /* output of its own, no vocabulary */
    {"llama-linear", 64, 2, 2, 32, 2, 0},     /* linear RoPE scaling; defaults for all that old files leave out */
    {"llama-yarn", 48, 4, 2, 32, 2, 0},       /* yarn with its defaults, to three times the original context */
    {"llama-yarn-given", 48, 2, 1, 64, 2, 0}, /* yarn with every parameter given */
    {"llama-3", 48, 2, 1, 64, 2, 0},          /* frequency factors */
    {"mistral", 48, 4, 2, 32, 2, 0},
    {"qwen2", 64, 2, 1, 32, 2, 0},             /* biases of q, k, v; half-split RoPE */
    {"qwen3", 48, 4, 2, 32, 2, 0},             /* norms of q and k */
    {"gpt2", 64, 2, 2, 32, 2, 0},              /* learned positions, all of them; LayerNorm, GELU by tanh, biases, fused q, k, v */
    {"mpt", 96, 3, 3, 32, 2, 0},               /* ALiBi of a number of heads that is no power of two; clipped q, k, v; GELU */
    {"phi3", 64, 2, 1, 32, 2, 0},              /* fused q, k, v and gate, up; RoPE of three quarters of a head */
    {"phi3-short", 64, 2, 1, 32, 2, 128},      /* longrope, in a context that is no longer than the original one */
    {"phi3-long", 64, 2, 1, 32, 2, 0},         /* and in a longer one */
    {"starcoder2", 48, 4, 2, 32, 2, 0},        /* LayerNorm, GELU by tanh, biases, RoPE */
    {"command-r", 64, 2, 1, 32, 2, 0},         /* attention and feed-forward layer beside each other, scaled logits */
    {"command-r-norms", 64, 4, 2, 32, 2, 0},   /* norms of q and k with a gain for each head */
    {"gemma2", 32, 2, 1, 32, 4, 0},            /* sliding layers beside full ones, caps, norms after, GeGLU */
    {"gemma3", 32, 2, 1, 32, 7, 0},            /* one full layer of seven, of another RoPE base, norms of q and k */
    {"starcoder2-window", 48, 4, 2, 32, 2, 0}, /* all layers slide */
    {"phi3-window", 64, 2, 1, 32, 2, 0},
    {"mixtral", 48, 4, 2, 32, 2, 0},           /* two of four experts */
    {"qwen2moe", 64, 2, 1, 32, 2, 0},          /* three of five, with shares among all, and a shared one */
    {"qwen3moe", 48, 4, 2, 32, 2, 0},          /* three of eight */
    {"qwen3next", 32, 2, 1, 32, 5, 0},         /* recurrent layers beside attention with gated heads, a shared expert */
    {"qwen3next-default", 32, 2, 1, 32, 4, 0}, /* of four layers the last attends */
    {"qwen35", 32, 2, 1, 32, 4, 0},            /* value heads in another order, a layer that predicts the token after the next */
    {"qwen35moe", 32, 2, 1, 32, 2, 0},
    {"deepseek2", 48, 4, 1, 96, 3, 0}, /* latents of keys and values, a file of the older kind; a layer without experts; yarn */
    {"deepseek2-groups", 48, 3, 1, 96, 2, 0},  /* latents of queries, too; experts in groups; a newer file */
    {"deepseek2-sigmoid", 48, 4, 1, 96, 2, 0}, /* experts by sigmoids and a bias */
    {"gpt-oss", 64, 4, 2, 32, 4, 0},           /* learned sinks, sliding layers, clamped SwiGLU, biases of experts */
};
enum { N_REFERENCES = sizeof references / sizeof references[0] };

/* NAME.logits: i32 n, i32 vocabulary, i32 tokens[n], f32 logits[n][vocabulary]. */
struct expected {
    int32_t n, vocabulary;
    int32_t *tokens;
    float *logits;
};

static void read_items(FILE *file, void *items, size_t count) { assert_int_equal(fread(items, 4, count, file), count); }

static struct expected read_expected(const char *name) {
    struct expected e;
    char path[512];
    snprintf(path, sizeof path, TESTS_DIR "/fixtures/models/%s.logits", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    read_items(file, &e.n, 1);
    read_items(file, &e.vocabulary, 1);
    size_t n = (size_t)e.n, logits = n * (size_t)e.vocabulary;
    e.tokens = malloc(n * sizeof *e.tokens);
    e.logits = malloc(logits * sizeof *e.logits);
    assert_true(e.tokens && e.logits);
    read_items(file, e.tokens, n);
    read_items(file, e.logits, logits);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    return e;
}

/* A way to read a text: a prompt of `first` tokens, then steps of `rest`, as further prompts or as decoding. */
struct way {
    const char *name;
    size_t first, rest;
    bool decode;
    uint32_t tail; /* newest tokens that stay out of sealed blocks */
    double bound;
};

/* Compares rows as they come. */
struct comparison {
    const struct expected *expected;
    size_t shift, rows, worst_row;
    double worst;
};

static void compare_row(void *user, size_t i, const float *logits) {
    struct comparison *c = user;
    size_t row = c->shift + i, vocabulary = (size_t)c->expected->vocabulary;
    assert_int_equal(row, c->rows++);
    assert_in_range(row, 0, (size_t)c->expected->n - 1);
    const float *expected = c->expected->logits + row * vocabulary;
    double apart = 0, size = 0;
    for (size_t t = 0; t < vocabulary; t++) {
        assert_true(isfinite(logits[t]));
        apart = fmax(apart, fabs((double)logits[t] - (double)expected[t]));
        size = fmax(size, fabs((double)expected[t]));
    }
    if (apart > c->worst * size) {
        c->worst = apart / size;
        c->worst_row = row;
    }
}

static void check_way(const char *name, struct terse_session *session, const struct expected *expected, const struct way *way) {
    struct terse_error error;
    struct comparison c = {.expected = expected};
    struct terse_logits_sink sink = {compare_row, &c, 0};
    size_t n = (size_t)expected->n, count;
    for (size_t i = 0; i < n; i += count) {
        count = i == 0 ? way->first : way->rest;
        if (count > n - i) count = n - i;
        c.shift = i;
        enum terse_status status = i && way->decode ? terse_session_decode(session, expected->tokens + i, count, &sink, &error)
                                                    : terse_session_prefill(session, expected->tokens + i, count, &sink, &error);
        if (status) fail_msg("%s, %s, token %zu: %s", name, way->name, i, error.message);
    }
    assert_int_equal(c.rows, n);
    print_message("%s, %s: %.1e at position %zu\n", name, way->name, c.worst, c.worst_row);
    const double bound = strcmp(name, "gpt-oss") ? way->bound : fmax(way->bound, SIXTEEN_BITS);
    if (!(c.worst <= bound))
        fail_msg("%s, %s: logits at position %zu are %g of the largest apart, more than %g", name, way->name, c.worst_row, c.worst,
                 bound);
}

static void test_logits(void **state) {
    static const struct way ways[] = {
        {"one prompt", SIZE_MAX, 1, false, 0, EXACT},
        {"a prompt and single tokens", 70, 1, true, 0, HALF},
        {"single tokens", 1, 1, true, 0, HALF},
        {"prompts of 37", 37, 37, false, 0, HALF},
        {"a prompt and steps of 23", 64, 23, true, 0, HALF},
        {"single tokens, none sealed", 1, 1, true, 256, HALF},
    };
    const struct reference *reference = *state;
    struct expected expected = read_expected(reference->name);
    struct terse_model *model = fixture_model(reference->name);
    struct terse_engine_options engine_options = terse_engine_options_defaults();
    struct terse_engine *engine;
    engine_options.threads = 1; /* so small a model is no work to share */
    if (terse_engine_new(model, &engine_options, &engine, NULL)) fail_msg("no engine");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct terse_session_options options = terse_session_options_defaults();
        struct terse_session *session;
        struct terse_error error;
        options.cache.method = "f16";
        options.cache.tail_tokens = ways[i].tail;
        options.context = reference->context;
        if (terse_session_new(engine, &options, &session, &error)) fail_msg("%s", error.message);
        check_way(reference->name, session, &expected, &ways[i]);
        terse_session_free(session);
    }
    terse_engine_free(engine);
    terse_model_free(model);
    free(expected.tokens);
    free(expected.logits);
}

static void test_shape(void **state) {
    const struct reference *reference = *state;
    struct expected expected = read_expected(reference->name);
    struct terse_model *model = fixture_model(reference->name);
    struct terse_model_info info;
    terse_model_describe(model, &info);
    assert_string_equal(info.name, reference->name);
    assert_string_equal(info.weights, "F32");
    assert_int_equal(info.layers, reference->layers);
    assert_int_equal(info.width, reference->width);
    assert_int_equal(info.query_heads, reference->query_heads);
    assert_int_equal(info.kv_heads, reference->kv_heads);
    assert_int_equal(info.head_dim, reference->head_dim);
    assert_int_equal(info.vocabulary, expected.vocabulary);
    terse_model_free(model);
    free(expected.tokens);
    free(expected.logits);
}

/* In an emulator, where a model takes a second and more, a model of each kind of layer will do: the loader's part is the same on every processor. */
static bool chosen(const char *name) {
    static const char *const kinds[] = {"llama",  "gpt2",    "mpt",       "phi3-long", "command-r",
                                        "gemma2", "mixtral", "qwen3next", "deepseek2", "gpt-oss"};
    if (!*TESTS_EMULATOR) return true;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(name, kinds[i])) return true;
    return false;
}

int main(void) {
    struct CMUnitTest tests[2 * N_REFERENCES];
    size_t n = 0;
    for (size_t i = 0; i < N_REFERENCES; i++) {
        const char *name = references[i].name;
        if (!chosen(name)) continue;
        tests[n++] = (struct CMUnitTest){name, test_shape, NULL, NULL, &references[i]};
        tests[n++] = (struct CMUnitTest){name, test_logits, NULL, NULL, &references[i]};
    }
    return _cmocka_run_group_tests("reference models", tests, n, NULL, NULL);
}
