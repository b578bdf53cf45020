/* Tests files of gpt2 and mpt models with content that no fixture has: optional tensors, quantized fused matrices, tensors and keys that are
 * missing, too many or out of range, and the end of learned positions. The models are made here, with random weights. */
#include "backend/cpu/kernels/weights/ops.h"
#include "base/half.h"
#include "base/memory.h"
#include "gguf/gguf_writer.h"
#include "support/fixed_point.h"
#include "support/fixture_model.h"
#include "support/model_oracle.h"
#include "train/backward.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Largest differences, relative to the largest number of the row or the length of the gradient: rounding to fp32. */
#define LOGIT_BOUND 5e-5
#define GRADIENT_BOUND 5e-5

enum { HEAD = 32, VOCABULARY = 50, CONTEXT = 40, MOST_TENSORS = 64 };

/* ---- Models */

struct sample {
    const char *architecture;
    uint32_t heads, kv_heads; /* 0: 4, and as many */
    bool biases, positions;
    float alibi, clamp;    /* metadata; 0: none */
    enum tensor_type type; /* of the layers' matrices; F32 is 0 */
    bool as_f32;           /* those weights as F32, dequantized */
    const char *without;   /* a tensor or key left out */
    const char *extra;     /* a vector of the model's width */
    uint32_t qkv_rows;     /* when not 0: of attn_qkv */
};

struct builder {
    const struct sample *sample;
    struct gguf_writer writer;
    void *data[MOST_TENSORS];
    size_t n_data;
    uint32_t random;
};

static float uniform(struct builder *b) {
    b->random = b->random * 1664525u + 1013904223u;
    return (float)(b->random >> 8) / (1 << 23) - 1;
}

static void *keep(struct builder *b, size_t bytes) {
    void *data = memory_array(bytes, 1);
    assert_non_null(data);
    assert_true(b->n_data < MOST_TENSORS);
    return b->data[b->n_data++] = data;
}

static bool left_out(const struct builder *b, const char *name) { return b->sample->without && !strcmp(b->sample->without, name); }

static void add_vector(struct builder *b, const char *name, uint64_t n, float mean, float spread) {
    if (left_out(b, name)) return;
    float *values = keep(b, n * sizeof *values);
    for (uint64_t i = 0; i < n; i++) values[i] = mean + spread * uniform(b);
    gguf_writer_tensor(&b->writer, name, TENSOR_F32, 1, &n, values);
}

/* The offsets of the half floats of blocks, and the values that give weights about the spread that 128 columns need; the other bytes are random. */
static const struct quantized {
    enum tensor_type type;
    int n_halves;
    struct {
        size_t at;
        float value;
    } halves[2];
} quantized[] = {
    {TENSOR_Q8_0, 1, {{0, 1.2e-3f}}},
    {TENSOR_Q4_0, 1, {{0, 0.02f}}},
    {TENSOR_Q4_1, 2, {{0, 0.02f}, {2, -0.15f}}},
    {TENSOR_Q5_0, 1, {{0, 0.01f}}},
    {TENSOR_Q5_1, 2, {{0, 0.01f}, {2, -0.15f}}},
    {TENSOR_Q4_K, 2, {{0, 6e-4f}, {2, 4.5e-3f}}},
    {TENSOR_Q5_K, 2, {{0, 3e-4f}, {2, 4.5e-3f}}},
    {TENSOR_Q6_K, 1, {{208, 7e-5f}}},
    {TENSOR_Q2_K, 2, {{80, 6e-3f}, {82, 9e-3f}}},
    {TENSOR_Q3_K, 1, {{108, 2e-3f}}},
    {TENSOR_IQ4_NL, 1, {{0, 1.4e-3f}}},
    {TENSOR_IQ4_XS, 1, {{0, 8e-5f}}},
    {TENSOR_MXFP4, 0, {{0, 0}}},
};
enum { N_QUANTIZED = sizeof quantized / sizeof quantized[0] };

static void fill_row(struct builder *b, enum tensor_type type, size_t columns, uint8_t *row) {
    const struct tensor_type_info *info = tensor_type_info(type);
    for (size_t i = 0; i < columns && info->block == 1; i++) {
        float value = 0.25f * uniform(b);
        uint16_t half = half_from_float(value);
        if (type == TENSOR_F32) memcpy(row + 4 * i, &value, 4);
        if (type == TENSOR_F16) memcpy(row + 2 * i, &half, 2);
        if (type == TENSOR_BF16) memcpy(row + 2 * i, (const char *)&value + 2, 2);
    }
    if (info->block == 1) return;
    const struct quantized *q = quantized;
    while (q->type != type) q++;
    for (size_t block = 0; block < columns / info->block; block++, row += info->bytes) {
        for (size_t i = 0; i < info->bytes; i++) row[i] = (uint8_t)(128 + 128 * uniform(b));
        for (int h = 0; h < q->n_halves; h++) {
            uint16_t half = half_from_float(q->halves[h].value);
            memcpy(row + q->halves[h].at, &half, sizeof half);
        }
        if (type == TENSOR_MXFP4) row[0] = 128 - 6; /* its exponent */
    }
}

static void add_matrix(struct builder *b, const char *name, enum tensor_type type, uint64_t columns, uint64_t rows) {
    if (left_out(b, name)) return;
    const struct tensor_type_info *info = tensor_type_info(type);
    size_t row_bytes = columns / info->block * info->bytes;
    uint8_t *stored = keep(b, rows * row_bytes);
    for (size_t r = 0; r < rows; r++) fill_row(b, type, columns, stored + r * row_bytes);
    if (b->sample->as_f32 && type != TENSOR_F32) {
        float *plain = keep(b, rows * columns * sizeof *plain);
        for (size_t r = 0; r < rows; r++) weights_ops()->dequantize[type](stored + r * row_bytes, plain + r * columns, columns);
        gguf_writer_tensor(&b->writer, name, TENSOR_F32, 2, (uint64_t[]){columns, rows}, plain);
    } else {
        gguf_writer_tensor(&b->writer, name, type, 2, (uint64_t[]){columns, rows}, stored);
    }
}

static void add_linear(struct builder *b, uint32_t layer, const char *name, uint64_t columns, uint64_t rows) {
    char full[96];
    snprintf(full, sizeof full, "blk.%u.%s.weight", layer, name);
    add_matrix(b, full, b->sample->type, columns, rows);
    snprintf(full, sizeof full, "blk.%u.%s.bias", layer, name);
    if (b->sample->biases) add_vector(b, full, rows, 0, 0.5f);
}

static void add_norm(struct builder *b, const char *name, uint64_t width) {
    char full[96];
    snprintf(full, sizeof full, "%s.weight", name);
    add_vector(b, full, width, 1, 0.5f);
    snprintf(full, sizeof full, "%s.bias", name);
    if (b->sample->biases) add_vector(b, full, width, 0, 0.5f);
}

static void add_layer(struct builder *b, uint32_t layer, uint64_t width) {
    const struct sample *s = b->sample;
    char name[64];
    snprintf(name, sizeof name, "blk.%u.attn_norm", layer);
    add_norm(b, name, width);
    add_linear(b, layer, "attn_qkv", width, s->qkv_rows ? s->qkv_rows : width + 2 * s->kv_heads * HEAD);
    add_linear(b, layer, "attn_output", width, width);
    snprintf(name, sizeof name, "blk.%u.ffn_norm", layer);
    add_norm(b, name, width);
    add_linear(b, layer, "ffn_up", width, width); /* feed_forward is the width, a whole number of blocks */
    add_linear(b, layer, "ffn_down", width, width);
}

static void add_u32(struct builder *b, const char *name, uint32_t value) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s", b->sample->architecture, name);
    if (!left_out(b, name)) gguf_writer_u32(&b->writer, key, value);
}

static void add_f32(struct builder *b, const char *name, float value) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s", b->sample->architecture, name);
    if (!left_out(b, name)) gguf_writer_f32(&b->writer, key, value);
}

/* Loads the model of a sample; *file (memory_free) is the memory that it lies in. */
static enum terse_status load_sample(const struct sample *s, struct terse_model **model, void **file, struct terse_error *error) {
    struct builder b = {.random = 1};
    struct sample filled = *s;
    size_t size;
    if (!filled.heads) filled.heads = 4;
    if (!filled.kv_heads) filled.kv_heads = filled.heads;
    uint32_t width = filled.heads * HEAD;
    b.sample = s = &filled;
    gguf_writer_string(&b.writer, "general.architecture", s->architecture);
    add_u32(&b, "block_count", 2);
    add_u32(&b, "context_length", CONTEXT);
    add_u32(&b, "embedding_length", width);
    add_u32(&b, "feed_forward_length", width);
    add_u32(&b, "attention.head_count", s->heads);
    if (s->kv_heads != s->heads) add_u32(&b, "attention.head_count_kv", s->kv_heads);
    add_f32(&b, "attention.layer_norm_epsilon", 1e-5f);
    if (!strcmp(s->architecture, "mpt")) add_f32(&b, "attention.max_alibi_bias", s->alibi);
    if (s->clamp != 0) add_f32(&b, "attention.clamp_kqv", s->clamp);
    add_matrix(&b, "token_embd.weight", TENSOR_F32, width, VOCABULARY);
    if (s->positions) add_matrix(&b, "position_embd.weight", TENSOR_F32, width, CONTEXT);
    add_norm(&b, "output_norm", width);
    for (uint32_t layer = 0; layer < 2; layer++) add_layer(&b, layer, width);
    if (s->extra) add_vector(&b, s->extra, width, 1, 0);
    *file = gguf_writer_build(&b.writer, &size);
    assert_non_null(*file);
    gguf_writer_free(&b.writer);
    for (size_t i = 0; i < b.n_data; i++) memory_free(b.data[i]);
    return terse_model_load_memory(*file, size, "sample", model, error);
}

static struct terse_model *need_sample(const struct sample *s, void **file) {
    struct terse_model *model;
    struct terse_error error;
    if (load_sample(s, &model, file, &error)) fail_msg("%s", error.message);
    return model;
}

static struct terse_engine *engine; /* of the model that a session was asked of last */

static void use_engine(const struct terse_model *model) {
    struct terse_engine_options options = terse_engine_options_defaults();
    struct terse_error error;
    options.threads = 1;
    terse_engine_free(engine);
    if (terse_engine_new(model, &options, &engine, &error)) fail_msg("%s", error.message);
}

static void free_sample(struct terse_model *model, void *file) {
    terse_engine_free(engine);
    engine = NULL;
    terse_model_free(model);
    memory_free(file);
}

#define GPT2 .architecture = "gpt2", .biases = true, .positions = true
#define MPT .architecture = "mpt", .alibi = 8
#define MPT_WITHOUT_ALIBI .architecture = "mpt"

/* ---- Sessions */

static struct terse_session *new_session(const struct terse_model *model, uint32_t context) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    options.cache.method = "f16";
    options.context = context;
    options.allow_longer_context = true;
    use_engine(model);
    if (terse_session_new(engine, &options, &session, &error)) fail_msg("%s", error.message);
    return session;
}

static void keep_row(void *user, size_t i, const float *logits) {
    memcpy((float *)user + i * VOCABULARY, logits, VOCABULARY * sizeof *logits);
}

static const int32_t *some_tokens(void) {
    static int32_t tokens[CONTEXT + 1];
    for (int i = 0; i <= CONTEXT; i++) tokens[i] = (i * 37 + i * i) % VOCABULARY;
    return tokens;
}

/* logits[n][VOCABULARY] of a prompt of n tokens. */
static void read_prompt(const struct terse_model *model, size_t n, float *logits) {
    struct terse_session *session = new_session(model, 0);
    struct terse_error error;
    if (terse_session_prefill(session, some_tokens(), n, &(struct terse_logits_sink){keep_row, logits, 0}, &error))
        fail_msg("%s", error.message);
    terse_session_free(session);
}

/* ---- Optional tensors, against the naive pass */

struct slopes {
    const struct terse_model *model;
    struct model_oracle *oracle;
    double worst;
};

/* The gradients of one layer along random signs. */
static void check_slopes(void *user, uint32_t layer, const struct captured *rows) {
    struct slopes *slopes = user;
    const float *gradients[] = {rows->dk, rows->dv};
    size_t count = rows->n * slopes->model->kv_heads * HEAD;
    double *direction = calloc(count, sizeof *direction);
    assert_non_null(direction);
    for (int side = 0; side < 2; side++) {
        double along = 0, square = 0;
        for (size_t i = 0; i < count; i++) {
            direction[i] = i * 2654435761u % 64 < 32 ? 1 : -1;
            along += direction[i] * (double)gradients[side][i];
            square += (double)gradients[side][i] * (double)gradients[side][i];
        }
        assert_true(square > 0);
        double slope = model_oracle_slope(slopes->oracle, (enum model_oracle_side)side, layer, direction);
        slopes->worst = fmax(slopes->worst, fabs(along - slope) / sqrt(square));
    }
    free(direction);
}

static void check_sample(const char *name, const struct sample *sample) {
    void *file;
    struct terse_model *model = need_sample(sample, &file);
    struct model_oracle oracle = model_oracle_new(model, some_tokens(), CONTEXT);
    struct terse_error error;
    static float logits[CONTEXT * VOCABULARY];
    double expected = model_oracle_run(&oracle, 0), loss = 0, worst = 0;
    read_prompt(model, CONTEXT, logits);
    for (size_t t = 0; t < CONTEXT; t++) {
        double apart = 0, size = 0;
        for (size_t i = t * VOCABULARY; i < (t + 1) * VOCABULARY; i++) {
            apart = fmax(apart, fabs((double)logits[i] - oracle.logits[i]));
            size = fmax(size, fabs(oracle.logits[i]));
        }
        worst = fmax(worst, apart / size);
    }
    struct backward *backward;
    struct slopes slopes = {model, &oracle, 0};
    struct backward_sink sink = {check_slopes, &slopes};
    if (backward_new(NULL, model, CONTEXT, true, NULL, &backward, &error) ||
        backward_run(backward, some_tokens(), CONTEXT, &sink, NULL, &loss, &error))
        fail_msg("%s", error.message);
    print_message("%s: logits off by %.1e, loss by %.1e, gradients by %.1e\n", name, worst, fabs(loss / expected - 1),
                  slopes.worst);
    if (!(worst <= LOGIT_BOUND) || !(fabs(loss - expected) <= 1e-5 * expected) || !(slopes.worst <= GRADIENT_BOUND))
        fail_msg("%s: logits off by %g, loss by %g, gradients by %g", name, worst, fabs(loss / expected - 1), slopes.worst);
    backward_free(backward);
    model_oracle_free(&oracle);
    free_sample(model, file);
}

static void test_optional_tensors(void **state) {
    (void)state;
    check_sample("gpt2", &(struct sample){GPT2});
    check_sample("gpt2, shared heads", &(struct sample){GPT2, .kv_heads = 2});
    check_sample("mpt", &(struct sample){MPT});
    check_sample("mpt, biases", &(struct sample){MPT, .biases = true});
    check_sample("mpt, positions instead of ALiBi", &(struct sample){MPT_WITHOUT_ALIBI, .positions = true});
    check_sample("mpt, everything", &(struct sample){MPT, .kv_heads = 2, .biases = true, .positions = true, .clamp = 1.5f});
}

/* ---- Slopes */

/* The expected slopes are those of transformers' build_mpt_alibi_tensor(heads, 2). */
static void test_slopes(void **state) {
    (void)state;
    static const struct {
        uint32_t heads;
        float slopes[12];
    } expected[] = {
        {1, {0.00390625f}},
        {2, {0.0625f, 0.00390625f}},
        {3, {0.0625f, 0.00390625f, 0.25f}},
        {5, {0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f}},
        {6, {0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f}},
        {8, {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f}},
        {12,
         {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f, 0.7071067690849304f, 0.3535533845424652f,
          0.1767766922712326f, 0.0883883461356163f}},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        void *file;
        struct sample sample = {MPT, .heads = expected[i].heads};
        struct terse_model *model = need_sample(&sample, &file);
        for (uint32_t h = 0; h < sample.heads; h++) assert_true(fabsf(model->slopes[h] / expected[i].slopes[h] - 1) < 1e-6f);
        free_sample(model, file);
    }
}

/* ---- Fused matrices of every type */

/* The three parts lie where they lie, and their products are those of the same weights as F32: by the matrix-vector kernels, which a
 * few tokens take, in fixed point perhaps, and by the GEMM library. */
static void check_type(enum tensor_type type) {
    struct sample stored = {GPT2, .heads = 8, .kv_heads = 4, .type = type}, plain = stored;
    void *files[2];
    plain.as_f32 = true;
    struct terse_model *a = need_sample(&stored, &files[0]), *b = need_sample(&plain, &files[1]);
    for (uint32_t i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.attn_qkv.weight", i);
        const struct gguf_tensor *tensor = gguf_find_tensor(a->gguf, name);
        const struct layer *layer = &a->layer[i];
        const struct matrix *parts[] = {&layer->q, &layer->k, &layer->v};
        uint32_t row = 0;
        for (int part = 0; part < 3; row += parts[part++]->rows) {
            assert_int_equal(parts[part]->type, type);
            assert_int_equal(parts[part]->rows, part ? 4 * HEAD : 8 * HEAD);
            assert_ptr_equal(parts[part]->data, (const char *)tensor->data + row * parts[part]->row_bytes);
            assert_ptr_equal(parts[part]->bias, layer->q.bias + row);
        }
        assert_int_equal(row * layer->q.row_bytes, tensor->bytes);
    }
    for (size_t n = 4; n <= CONTEXT; n += CONTEXT - 4) {
        static float logits[2][CONTEXT * VOCABULARY];
        double apart = 0, size = 0;
        read_prompt(a, n, logits[0]);
        read_prompt(b, n, logits[1]);
        for (size_t i = 0; i < n * VOCABULARY; i++) {
            apart = fmax(apart, fabs((double)logits[0][i] - (double)logits[1][i]));
            size = fmax(size, fabs((double)logits[1][i]));
        }
        if (!(apart <= (fixed_part(type) == FIXED_BYTES ? 2e-2 : 5e-4) * size))
            fail_msg("%s, %zu tokens: %g of the largest logit apart", tensor_type_name(type), n, apart / size);
    }
    free_sample(a, files[0]);
    free_sample(b, files[1]);
}

static void test_fused_types(void **state) {
    (void)state;
    check_type(TENSOR_F32);
    check_type(TENSOR_F16);
    check_type(TENSOR_BF16);
    for (int i = 0; i < N_QUANTIZED; i++) check_type(quantized[i].type);
}

/* ---- Files that are not what they should be */

static void refuses(struct sample sample, enum terse_status status, const char *says) {
    struct terse_model *model;
    struct terse_error error = {0};
    void *file;
    enum terse_status got = load_sample(&sample, &model, &file, &error);
    if (got != status || model || !strstr(error.message, says) || strchr(error.message, '\n'))
        fail_msg("%s: status %d, \"%s\"", says, got, error.message);
    memory_free(file);
}

static void test_missing(void **state) {
    (void)state;
    static const char *const tensors[] = {
        "token_embd.weight",      "position_embd.weight", "output_norm.weight",     "output_norm.bias",
        "blk.0.attn_norm.weight", "blk.1.attn_norm.bias", "blk.0.attn_qkv.weight",  "blk.1.attn_qkv.bias",
        "blk.1.ffn_norm.weight",  "blk.0.ffn_norm.bias",  "blk.0.ffn_up.weight",    "blk.1.ffn_up.bias",
        "blk.1.ffn_down.weight",  "blk.0.ffn_down.bias",  "blk.1.attn_output.bias", "blk.0.attn_output.weight"};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        refuses((struct sample){GPT2, .without = tensors[i]}, TERSE_E_FORMAT, tensors[i]);
    refuses((struct sample){MPT, .without = "blk.1.attn_qkv.weight"}, TERSE_E_FORMAT, "blk.1.attn_qkv.weight is missing");
    refuses((struct sample){GPT2, .without = "attention.layer_norm_epsilon"}, TERSE_E_FORMAT, "gpt2.attention.layer_norm_epsilon");
    refuses((struct sample){GPT2, .without = "feed_forward_length"}, TERSE_E_FORMAT, "gpt2.feed_forward_length");
    refuses((struct sample){MPT, .without = "attention.max_alibi_bias"}, TERSE_E_FORMAT, "mpt.attention.max_alibi_bias");
}

static void test_refused(void **state) {
    (void)state;
    refuses((struct sample){MPT_WITHOUT_ALIBI, .alibi = -1}, TERSE_E_FORMAT, "max_alibi_bias is missing or out of range");
    refuses((struct sample){MPT, .clamp = -1}, TERSE_E_FORMAT, "clamp_kqv is missing or out of range");
    refuses((struct sample){MPT, .qkv_rows = 3 * 4 * HEAD - 1}, TERSE_E_FORMAT, "blk.0.attn_qkv.weight is 128 x 383");
    refuses((struct sample){MPT, .extra = "blk.0.attn_q_norm.weight"}, TERSE_E_UNSUPPORTED, "blk.0.attn_q_norm.weight");
    refuses((struct sample){MPT, .extra = "blk.1.ffn_act.scales"}, TERSE_E_UNSUPPORTED, "blk.1.ffn_act.scales");
    refuses((struct sample){GPT2, .extra = "blk.0.attn_q.bias"}, TERSE_E_UNSUPPORTED, "blk.0.attn_q.bias");
    refuses((struct sample){GPT2, .extra = "rope_freqs.weight"}, TERSE_E_UNSUPPORTED, "rope_freqs.weight");
}

/* ---- How far positions reach */

static enum terse_status try_session(const struct terse_model *model, const char *method, uint32_t context,
                                     struct terse_error *error) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    options.cache.method = method;
    options.context = context;
    options.allow_longer_context = true;
    use_engine(model);
    enum terse_status status = terse_session_new(engine, &options, &session, error);
    assert_true((status == TERSE_OK) == (session != NULL));
    terse_session_free(session);
    return status;
}

static void test_learned_positions_end(void **state) {
    (void)state;
    void *file;
    struct terse_model *model = need_sample(&(struct sample){GPT2}, &file);
    struct terse_error error;
    assert_int_equal(try_session(model, "f16", CONTEXT + 1, &error), TERSE_E_CONTEXT);
    assert_non_null(strstr(error.message, "41 tokens"));
    assert_non_null(strstr(error.message, "-c 40"));
    struct terse_session *session = new_session(model, 0);
    assert_int_equal(terse_session_prefill(session, some_tokens(), CONTEXT + 1, NULL, &error), TERSE_E_CONTEXT);
    assert_int_equal(terse_session_prefill(session, some_tokens(), CONTEXT - 1, NULL, &error), TERSE_OK);
    assert_int_equal(terse_session_decode(session, some_tokens(), 2, NULL, &error), TERSE_E_CONTEXT);
    assert_int_equal(terse_session_decode(session, some_tokens(), 1, NULL, &error), TERSE_OK);
    assert_int_equal(terse_session_decode(session, some_tokens(), 1, NULL, &error), TERSE_E_CONTEXT);
    assert_null(strstr(error.message, "streaming"));
    terse_session_free(session);
    free_sample(model, file);
}

/* Policies that move positions, and contexts beyond the trained one, work with ALiBi and are refused with learned positions. */
static void test_moved_positions(void **state) {
    (void)state;
    struct terse_cache_options options = terse_cache_options_defaults();
    struct terse_cache_report report;
    struct terse_error error;
    options.method = "streaming-16";
    for (int learned = 0; learned < 2; learned++) {
        void *file;
        struct terse_model *model = need_sample(&(struct sample){MPT, .positions = learned}, &file);
        enum terse_status expected = learned ? TERSE_E_UNSUPPORTED : TERSE_OK;
        assert_int_equal(try_session(model, "streaming-16", 0, &error), expected);
        if (learned) assert_non_null(strstr(error.message, "streaming-16"));
        assert_int_equal(terse_cache_bytes(model, NULL, &options, CONTEXT, &report, &error), expected);
        assert_int_equal(try_session(model, "f16", 2 * CONTEXT, &error), learned ? TERSE_E_CONTEXT : TERSE_OK);
        free_sample(model, file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optional_tensors), cmocka_unit_test(test_slopes),  cmocka_unit_test(test_fused_types),
        cmocka_unit_test(test_missing),          cmocka_unit_test(test_refused), cmocka_unit_test(test_learned_positions_end),
        cmocka_unit_test(test_moved_positions),
    };
    return cmocka_run_group_tests_name("architectures", tests, NULL, NULL);
}
