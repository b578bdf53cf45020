/* Writing models. */
#include "support/random_model.h"

#include "base/half.h"
#include "base/memory.h"
#include "gguf/gguf_writer.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CONTEXT = 512, TENSORS_MOST = 128 };

const struct random_model_spec random_models[] = {
    {"llama", {TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q8_0}, 2, .untied = false},
    {"qwen2", {TENSOR_Q4_0, TENSOR_Q5_0, TENSOR_F16}, 2, .qkv_bias = true, .untied = true},
    {"qwen3", {TENSOR_Q5_K, TENSOR_Q4_1, TENSOR_BF16}, 1, .qk_norm = true, .untied = true},
    {"gpt2", {TENSOR_Q8_0, TENSOR_F16, TENSOR_F32}, 4, .qkv_bias = true, .bias = true, .positions = true},
    {"mpt", {TENSOR_F32, TENSOR_Q5_1, TENSOR_Q4_0}, 4, .clamp = 1.5f, .alibi = 8},
};
const size_t n_random_models = sizeof random_models / sizeof random_models[0];

/* Matrices have blocks of 32, so that models can be small. */
#define SMALL .width = 64, .inner = 32, .vocabulary = 48, .heads = 2
const struct random_model_spec random_layer_models[] = {
    {"gemma2",
     {TENSOR_Q8_0, TENSOR_F16, TENSOR_Q4_0},
     1,
     .window = 40,
     .post_norms = true,
     .attention_cap = 2,
     .logit_cap = 3,
     SMALL},
    {"gemma3", {TENSOR_Q4_0, TENSOR_Q8_0, TENSOR_Q5_0}, 1, .window = 20, .post_norms = true, .qk_norm = true, .layers = 3, SMALL},
    {"command-r", {TENSOR_Q8_0, TENSOR_Q4_1, TENSOR_F16}, 1, .qk_norm = true, .norm_by_head = true, .logit_scale = 0.25f, SMALL},
    {"phi3", {TENSOR_F16, TENSOR_Q8_0, TENSOR_Q5_1}, 1, .untied = true, .rope_context = 64, SMALL},
    {"qwen3moe", {TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_F16}, 1, .qk_norm = true, .experts = 6, .experts_used = 2, SMALL},
    {"qwen2moe", {TENSOR_F32, TENSOR_Q5_0, TENSOR_Q8_0}, 1, .qkv_bias = true, .experts = 5, .experts_used = 3, .shared = 64, SMALL},
    {"gpt-oss",
     {TENSOR_MXFP4, TENSOR_Q8_0, TENSOR_MXFP4},
     1,
     .qkv_bias = true,
     .bias = true,
     .untied = true,
     .window = 24,
     .experts = 4,
     .experts_used = 2,
     SMALL},
};
const size_t n_random_layer_models = sizeof random_layer_models / sizeof random_layer_models[0];

const struct random_model_spec random_expert_models[RANDOM_EXPERT_MODELS] = {
    {"llama", {TENSOR_MXFP4, TENSOR_Q3_K, TENSOR_IQ4_XS}, 2, .untied = true, .experts = 4, .experts_used = 2},
    {"qwen2moe", {TENSOR_IQ4_NL, TENSOR_F16, TENSOR_Q2_K}, 2, .qkv_bias = true, .experts = 5, .experts_used = 3, .shared = 768},
    {"qwen3moe", {TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q8_0}, 1, .qk_norm = true, .untied = true, .experts = 16, .experts_used = 4},
};

struct making {
    const struct random_model_spec *spec;
    struct gguf_writer writer;
    void *data[TENSORS_MOST];
    size_t tensors, matrices;
    uint32_t random;
};

static uint32_t heads_of(const struct random_model_spec *spec) { return spec->heads ? spec->heads : 4; }
static uint32_t head_dim_of(const struct random_model_spec *spec) { return spec->head_dim ? spec->head_dim : 64; }
static uint32_t width_of(const struct making *m) { return m->spec->width ? m->spec->width : 256; }
static uint32_t inner_of(const struct making *m) { return m->spec->inner ? m->spec->inner : 512; }
static uint32_t vocabulary_of(const struct making *m) { return m->spec->vocabulary ? m->spec->vocabulary : 300; }
static bool is(const struct making *m, const char *architecture) { return !strcmp(m->spec->architecture, architecture); }
static uint32_t layers_of(const struct random_model_spec *spec) { return spec->layers ? spec->layers : 2; }

static uint32_t next_random(struct making *m) { return m->random = m->random * 1664525u + 1013904223u; }
/* In (-1, 1). */
static float uniform(struct making *m) { return (float)(next_random(m) >> 8) / (1 << 23) - 1; }

static void *new_data(struct making *m, size_t bytes) {
    void *data = memory_array(bytes, 1);
    assert_non_null(data);
    assert_true(m->tensors < TENSORS_MOST);
    return m->data[m->tensors++] = data;
}

static void put_half(uint8_t *at, float x) {
    uint16_t half = half_from_float(x);
    memcpy(at, &half, sizeof half);
}

/* A block of weights of a size of about 0.06, as many as there are columns of that making rows of about 1. */
static void fill_block(struct making *m, enum tensor_type type, uint8_t *block) {
    float near = 1 + uniform(m) / 4, single = uniform(m) / 10;
    uint32_t bits;
    for (uint32_t i = 0; i < tensor_type_info(type)->bytes; i++) block[i] = (uint8_t)(next_random(m) >> 24);
    memcpy(&bits, &single, sizeof bits);
    switch (type) {
    case TENSOR_F32: memcpy(block, &single, sizeof single); break;
    case TENSOR_F16: put_half(block, single); break;
    case TENSOR_BF16: memcpy(block, (uint8_t *)&bits + 2, 2); break;
    case TENSOR_Q8_0: put_half(block, 8e-4f * near); break;
    case TENSOR_Q4_0: put_half(block, 0.0136f * near); break;
    case TENSOR_Q5_0: put_half(block, 0.0068f * near); break;
    case TENSOR_Q4_1:
        put_half(block, 0.0136f * near);
        put_half(block + 2, -0.1f * near);
        break;
    case TENSOR_Q5_1:
        put_half(block, 0.0068f * near);
        put_half(block + 2, -0.1f * near);
        break;
    case TENSOR_Q4_K:
        put_half(block, 4e-4f * near);
        put_half(block + 2, 3e-3f * near);
        break;
    case TENSOR_Q5_K:
        put_half(block, 2e-4f * near);
        put_half(block + 2, 3e-3f * near);
        break;
    case TENSOR_Q2_K:
        put_half(block + 80, 4e-3f * near);
        put_half(block + 82, 6e-3f * near);
        break;
    case TENSOR_Q3_K: put_half(block + 108, 1.4e-3f * near); break;
    case TENSOR_IQ4_NL: put_half(block, 9e-4f * near); break;
    case TENSOR_IQ4_XS: put_half(block, 5e-5f * near); break;
    case TENSOR_MXFP4: block[0] = (uint8_t)(128 - 7); break;
    default: put_half(block + 208, 4.5e-5f * near); break; /* Q6_K */
    }
}

static void add_matrices(struct making *m, const char *name, enum tensor_type type, uint32_t columns, uint32_t rows,
                         uint32_t count) {
    const struct tensor_type_info *info = tensor_type_info(type);
    size_t blocks = (size_t)columns * rows * count / info->block;
    uint8_t *data = new_data(m, blocks * info->bytes);
    for (size_t i = 0; i < blocks; i++) fill_block(m, type, data + i * info->bytes);
    gguf_writer_tensor(&m->writer, name, type, count > 1 ? 3 : 2, (const uint64_t[]){columns, rows, count}, data);
}

static enum tensor_type next_type(struct making *m) { return m->spec->types[m->matrices++ % RANDOM_MODEL_TYPES]; }

static void add_matrix(struct making *m, const char *name, uint32_t columns, uint32_t rows) {
    add_matrices(m, name, next_type(m), columns, rows, 1);
}

static void add_vectors(struct making *m, const char *name, uint32_t n, uint32_t rows, float about) {
    float *data = new_data(m, (size_t)n * rows * sizeof *data);
    for (uint32_t i = 0; i < n * rows; i++) data[i] = about + uniform(m) / 4;
    gguf_writer_tensor(&m->writer, name, TENSOR_F32, rows > 1 ? 2 : 1, (const uint64_t[]){n, rows}, data);
}

static void add_vector(struct making *m, const char *name, uint32_t n, float about) { add_vectors(m, name, n, 1, about); }

static const char *name_of(char name[64], int layer, const char *what, const char *kind) {
    if (layer < 0)
        snprintf(name, 64, "%s.%s", what, kind);
    else
        snprintf(name, 64, "blk.%d.%s.%s", layer, what, kind);
    return name;
}

static void add_linear(struct making *m, int layer, const char *what, uint32_t columns, uint32_t rows, bool bias) {
    char name[64];
    add_matrix(m, name_of(name, layer, what, "weight"), columns, rows);
    if (bias) add_vector(m, name_of(name, layer, what, "bias"), rows, 0);
}

static void add_norm(struct making *m, int layer, const char *what, uint32_t n, bool bias) {
    char name[64];
    add_vector(m, name_of(name, layer, what, "weight"), n, 1);
    if (bias && !is(m, "gpt-oss")) add_vector(m, name_of(name, layer, what, "bias"), n, 0);
}

/* Adds the matrices of all experts, or the router, which is one. */
static void add_expert_matrices(struct making *m, int layer, const char *what, enum tensor_type type, uint32_t columns,
                                uint32_t rows, uint32_t count) {
    char name[64];
    add_matrices(m, name_of(name, layer, what, "weight"), type, columns, rows, count);
    if (m->spec->bias) add_vectors(m, name_of(name, layer, what, "bias"), rows, count, 0);
}

static void add_experts(struct making *m, int layer) {
    const struct random_model_spec *s = m->spec;
    char name[64];
    add_expert_matrices(m, layer, "ffn_gate_inp", TENSOR_F32, width_of(m), s->experts, 1);
    add_expert_matrices(m, layer, "ffn_gate_exps", next_type(m), width_of(m), inner_of(m), s->experts);
    add_expert_matrices(m, layer, "ffn_up_exps", next_type(m), width_of(m), inner_of(m), s->experts);
    add_expert_matrices(m, layer, "ffn_down_exps", next_type(m), inner_of(m), width_of(m), s->experts);
    if (!s->shared) return;
    add_vector(m, name_of(name, layer, "ffn_gate_inp_shexp", "weight"), width_of(m), 0);
    add_linear(m, layer, "ffn_gate_shexp", width_of(m), s->shared, false);
    add_linear(m, layer, "ffn_up_shexp", width_of(m), s->shared, false);
    add_linear(m, layer, "ffn_down_shexp", s->shared, width_of(m), false);
}

static void add_head_norms(struct making *m, int layer) {
    const struct random_model_spec *s = m->spec;
    char name[64];
    for (int keys = 0; keys < 2; keys++)
        add_vectors(m, name_of(name, layer, keys ? "attn_k_norm" : "attn_q_norm", "weight"), head_dim_of(s),
                    !s->norm_by_head ? 1
                    : keys           ? s->kv_heads
                                     : heads_of(s),
                    1);
}

static void add_layer(struct making *m, int layer) {
    const struct random_model_spec *s = m->spec;
    const bool fused = is(m, "gpt2") || is(m, "mpt") || is(m, "phi3");
    char name[64];
    uint32_t head_dim = head_dim_of(s), width = heads_of(s) * head_dim, kv_width = s->kv_heads * head_dim;
    add_norm(m, layer, "attn_norm", width_of(m), s->bias);
    if (!is(m, "command-r")) add_norm(m, layer, is(m, "gpt-oss") ? "post_attention_norm" : "ffn_norm", width_of(m), s->bias);
    if (is(m, "gpt-oss")) add_vector(m, name_of(name, layer, "attn_sinks", "weight"), heads_of(s), 1);
    if (s->post_norms) add_norm(m, layer, "post_attention_norm", width_of(m), false);
    if (s->post_norms) add_norm(m, layer, "post_ffw_norm", width_of(m), false);
    if (s->qk_norm) add_head_norms(m, layer);
    if (fused) {
        add_linear(m, layer, "attn_qkv", width_of(m), width + 2 * kv_width, s->qkv_bias);
    } else {
        add_linear(m, layer, "attn_q", width_of(m), width, s->qkv_bias);
        add_linear(m, layer, "attn_k", width_of(m), kv_width, s->qkv_bias);
        add_linear(m, layer, "attn_v", width_of(m), kv_width, s->qkv_bias);
        if (!s->experts) add_linear(m, layer, "ffn_gate", width_of(m), inner_of(m), s->bias);
    }
    add_linear(m, layer, "attn_output", width, width_of(m), s->bias);
    if (s->experts) {
        add_experts(m, layer);
        return;
    }
    add_linear(m, layer, "ffn_up", width_of(m), is(m, "phi3") ? 2 * inner_of(m) : inner_of(m), s->bias);
    add_linear(m, layer, "ffn_down", inner_of(m), width_of(m), s->bias);
}

static void add_keys(struct making *m) {
    const struct random_model_spec *s = m->spec;
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {{"block_count", layers_of(s)},
                   {"embedding_length", width_of(m)},
                   {"feed_forward_length", inner_of(m)},
                   {"attention.head_count", heads_of(s)},
                   {"context_length", CONTEXT},
                   {"attention.head_count_kv", s->kv_heads},
                   {"attention.key_length", head_dim_of(s)},
                   {"attention.value_length", head_dim_of(s)},
                   {"expert_count", s->experts},
                   {"expert_used_count", s->experts_used},
                   {"expert_feed_forward_length", inner_of(m)},
                   {"expert_shared_feed_forward_length", s->shared},
                   {"attention.sliding_window", s->window},
                   {"attention.sliding_window_pattern", 2},
                   {"rope.scaling.original_context_length", s->rope_context}};
    const struct {
        const char *name;
        float value;
    } reals[] = {{"attention.layer_norm_rms_epsilon", 1e-5f},
                 {"attention.layer_norm_epsilon", 1e-5f},
                 {"attention.clamp_kqv", s->clamp},
                 {"attention.max_alibi_bias", s->alibi},
                 {"attn_logit_softcapping", s->attention_cap},
                 {"final_logit_softcapping", s->logit_cap},
                 {"logit_scale", s->logit_scale != 0 ? s->logit_scale : 1}};
    char key[96];
    gguf_writer_string(&m->writer, "general.architecture", s->architecture);
    gguf_writer_string(&m->writer, "general.name", s->architecture);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", s->architecture, numbers[i].name);
        gguf_writer_u32(&m->writer, key, numbers[i].value);
    }
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", s->architecture, reals[i].name);
        gguf_writer_f32(&m->writer, key, reals[i].value);
    }
}

struct terse_model *random_model_new(const struct random_model_spec *spec, void **file) {
    struct making m = {.spec = spec, .random = 1};
    struct terse_model *model;
    struct terse_error error;
    size_t size;
    add_keys(&m);
    add_matrix(&m, "token_embd.weight", width_of(&m), vocabulary_of(&m));
    if (spec->untied) add_matrix(&m, "output.weight", width_of(&m), vocabulary_of(&m));
    if (spec->positions) add_matrix(&m, "position_embd.weight", width_of(&m), CONTEXT);
    if (spec->rope_context) add_vector(&m, "rope_factors_short.weight", head_dim_of(spec) / 2, 1);
    if (spec->rope_context) add_vector(&m, "rope_factors_long.weight", head_dim_of(spec) / 2, 4);
    add_norm(&m, -1, "output_norm", width_of(&m), spec->bias);
    for (int i = 0; i < (int)layers_of(spec); i++) add_layer(&m, i);
    *file = gguf_writer_build(&m.writer, &size);
    gguf_writer_free(&m.writer);
    for (size_t i = 0; i < m.tensors; i++) memory_free(m.data[i]);
    assert_non_null(*file);
    if (terse_model_load_memory(*file, size, spec->architecture, &model, &error))
        fail_msg("%s: %s", spec->architecture, error.message);
    return model;
}

static void damage(enum tensor_type type, float number, uint8_t *at) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (type == TENSOR_F32)
        memcpy(at, &number, sizeof number);
    else if (type == TENSOR_BF16)
        memcpy(at, (uint8_t *)&bits + 2, 2);
    else
        put_half(type == TENSOR_Q6_K ? at + 208 : at, number);
}

struct terse_model *random_model_damaged(const struct random_model_spec *spec, const char *name, float number, void **file) {
    struct terse_model *model = random_model_new(spec, file);
    const struct gguf_tensor *tensor = gguf_find_tensor(model->gguf, name);
    struct terse_error error;
    size_t size = 0;
    bool found = tensor != NULL;
    for (uint64_t i = 0; i < gguf_tensor_count(model->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(model->gguf, i);
        size_t end = (size_t)((const uint8_t *)t->data + t->bytes - (const uint8_t *)*file);
        if (end > size) size = end;
    }
    if (found)
        damage((enum tensor_type)tensor->type, number, (uint8_t *)*file + ((const uint8_t *)tensor->data - (const uint8_t *)*file));
    terse_model_free(model);
    if (!found) {
        memory_free(*file);
        return NULL;
    }
    if (terse_model_load_memory(*file, size, name, &model, &error)) fail_msg("%s", error.message);
    return model;
}
