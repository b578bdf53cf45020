/* Loads a model: finds every tensor by name, checks its shape against the metadata, and points at it where it lies. Owns the
 * mapping and the few vectors that had to be converted. */
#include "base/memory.h"
#include "base/text.h"
#include "model/file_type.h"
#include "model/fingerprint.h"
#include "model/load_experts.h"
#include "model/load_latents.h"
#include "model/loader.h"
#include "model/rope_scaling.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VOCABULARY (1u << 24)
#define ATTENTION_INTERVAL 4 /* of files that do not say */

/* Loads the learned sinks; those of all layers lie one after the other. */
static enum terse_status load_sinks(struct loader *l) {
    struct terse_model *m = l->model;
    enum terse_status status = TERSE_OK;
    for (uint32_t i = 0; i < m->layers && m->architecture->learned_sinks && !status; i++) {
        const float *own = NULL;
        char name[64];
        snprintf(name, sizeof name, "blk.%u.attn_sinks.weight", i);
        status = loader_vector(l, name, m->query_heads, PRESENCE_REQUIRED, &own);
        if (!i) m->sinks = own;
    }
    return status;
}

/* Loads what a recurrent layer has in place of attention. */
static enum terse_status load_recurrent(struct loader *l, uint32_t index) {
    const struct terse_model *m = l->model;
    struct layer *layer = &l->model->layer[index];
    struct recurrent *r = &layer->recurrent;
    const uint32_t mixed = (uint32_t)model_mixed_width(m), out = (uint32_t)model_recurrent_width(m),
                   heads = m->recurrent_value_heads;
    const bool tiled = m->architecture->tiled_heads;
    const struct {
        const char *name;
        uint32_t columns, rows;
        struct matrix *matrix;
    } matrices[] = {
        {"attn_qkv", m->width, mixed, &r->mixed},  {"attn_gate", m->width, out, &r->gate},
        {"ssm_out", out, m->width, &layer->o},     {tiled ? "ssm_beta" : "ssm_ba", m->width, tiled ? heads : 2 * heads, &r->beta},
        {"ssm_alpha", m->width, heads, &r->alpha},
    };
    const size_t n_matrices = sizeof matrices / sizeof matrices[0] - !tiled;
    const struct {
        const char *name;
        uint32_t n, rows;
        const float **vector;
    } vectors[] = {
        {"ssm_conv1d.weight", m->recurrent_conv, mixed, &r->conv},
        {"ssm_a", heads, 1, &r->decay},
        {"ssm_dt.bias", heads, 1, &r->bias},
    };
    char name[64];
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; !status && i < n_matrices; i++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", index, matrices[i].name);
        status = loader_matrix(l, name, matrices[i].columns, matrices[i].rows, PRESENCE_REQUIRED, matrices[i].matrix);
    }
    for (size_t i = 0; !status && i < sizeof vectors / sizeof vectors[0]; i++) {
        snprintf(name, sizeof name, "blk.%u.%s", index, vectors[i].name);
        status = loader_vectors(l, name, vectors[i].n, vectors[i].rows, PRESENCE_REQUIRED, vectors[i].vector);
    }
    snprintf(name, sizeof name, "blk.%u.ssm_norm", index);
    return status ? status : loader_norm(l, name, m->recurrent_state, 0, PRESENCE_REQUIRED, PRESENCE_NONE, &r->norm);
}

static bool is_recurrent(const struct terse_model *m, uint32_t index) {
    return m->attention_interval && (index + 1) % m->attention_interval;
}

static enum terse_status load_layer(struct loader *l, uint32_t index) {
    struct terse_model *m = l->model;
    const struct architecture *a = m->architecture;
    struct layer *layer = &m->layer[index];
    struct matrix qkv = {0};
    uint32_t q_width = m->query_heads * m->head_dim, kv_width = m->kv_heads * m->head_dim;
    const bool routed = m->experts && index >= m->dense_layers;
    const uint32_t dense_width = m->experts ? l->dense_width : m->feed_forward;
    enum presence dense = routed ? PRESENCE_NONE : PRESENCE_REQUIRED;
    enum presence attends = is_recurrent(m, index) ? PRESENCE_NONE : PRESENCE_REQUIRED;
    enum presence fused = a->fused_qkv ? attends : PRESENCE_NONE, apart = a->fused_qkv || a->latents ? PRESENCE_NONE : attends;
    enum presence qk_norm = attends ? a->qk_norm : PRESENCE_NONE;
    enum presence norm_bias = a->norm_bias ? a->bias : PRESENCE_NONE;
    bool gated = a->activation == ACTIVATION_SWIGLU || a->activation == ACTIVATION_GEGLU;
    enum presence post = a->post_norms ? PRESENCE_REQUIRED : PRESENCE_NONE;
    const struct {
        const char *name;
        uint32_t columns, rows;
        enum presence weight, bias;
        struct matrix *matrix;
    } matrices[] = {
        {"attn_qkv", m->width, q_width + 2 * kv_width, fused, a->qkv_bias, &qkv},
        {"attn_q", m->width, a->gated_heads ? 2 * q_width : q_width, apart, a->qkv_bias, &layer->q},
        {"attn_k", m->width, kv_width, apart, a->qkv_bias, &layer->k},
        {"attn_v", m->width, kv_width, apart, a->qkv_bias, &layer->v},
        {"attn_output", a->latents ? m->query_heads * m->latent.value : q_width, m->width, attends, a->bias, &layer->o},
        {"ffn_gate", m->width, dense_width, gated && !a->fused_gate ? dense : PRESENCE_NONE, a->bias, &layer->gate},
        {"ffn_up", m->width, a->fused_gate ? 2 * dense_width : dense_width, dense, a->bias, &layer->up},
        {"ffn_down", dense_width, m->width, dense, a->bias, &layer->down},
    };
    const struct {
        const char *name;
        uint32_t n, heads;
        enum presence gain, bias;
        struct norm *norm;
    } norms[] = {
        {"attn_norm", m->width, 0, PRESENCE_REQUIRED, norm_bias, &layer->attention_norm},
        {a->late_norm_name ? "post_attention_norm" : "ffn_norm", m->width, 0, a->parallel ? PRESENCE_NONE : PRESENCE_REQUIRED,
         norm_bias, &layer->feed_forward_norm},
        {"post_attention_norm", m->width, 0, post, norm_bias, &layer->attention_post_norm},
        {"post_ffw_norm", m->width, 0, post, norm_bias, &layer->feed_forward_post_norm},
        {"attn_q_norm", m->head_dim, a->norm_by_head ? m->query_heads : 0, qk_norm, PRESENCE_NONE, &layer->q_norm},
        {"attn_k_norm", m->head_dim, a->norm_by_head ? m->kv_heads : 0, qk_norm, PRESENCE_NONE, &layer->k_norm},
    };
    char name[64];
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; !status && i < sizeof matrices / sizeof matrices[0]; i++) {
        snprintf(name, sizeof name, "blk.%u.%s", index, matrices[i].name);
        status =
            loader_linear(l, name, matrices[i].columns, matrices[i].rows, matrices[i].weight, matrices[i].bias, matrices[i].matrix);
    }
    for (size_t i = 0; !status && i < sizeof norms / sizeof norms[0]; i++) {
        snprintf(name, sizeof name, "blk.%u.%s", index, norms[i].name);
        status = loader_norm(l, name, norms[i].n, norms[i].heads, norms[i].gain, norms[i].bias, norms[i].norm);
    }
    if (!status && qkv.data) {
        layer->q = matrix_rows(&qkv, 0, q_width);
        layer->k = matrix_rows(&qkv, q_width, kv_width);
        layer->v = matrix_rows(&qkv, q_width + kv_width, kv_width);
    }
    if (!status && a->fused_gate) {
        layer->gate = matrix_rows(&layer->up, 0, m->feed_forward);
        layer->up = matrix_rows(&layer->up, m->feed_forward, m->feed_forward);
    }
    if (a->parallel) layer->feed_forward_norm = layer->attention_norm;
    layer->kv_number = m->attention_interval ? index / m->attention_interval : index;
    if (!status && !attends) status = load_recurrent(l, index);
    if (!status && a->latents) status = load_latents(l, index);
    return status || !routed ? status : load_experts(l, index);
}

/* Finds which layers slide, their number and window. A window that no sequence outgrows counts as none. */
static enum terse_status load_window(struct loader *l) {
    struct terse_model *m = l->model;
    uint32_t pattern = m->architecture->window_pattern;
    enum terse_status status = loader_u32(l, "attention.sliding_window", m->architecture->window, &m->window);
    if (!status && pattern) status = loader_size(l, "attention.sliding_window_pattern", pattern, MODEL_MAX_LAYERS, &pattern);
    if (!m->window || m->window >= m->context) m->window = 0;
    m->sliding = !m->window ? 0 : pattern ? m->layers - m->layers / pattern : m->layers;
    l->window_pattern = pattern;
    return status;
}

static enum terse_status load_scales(struct loader *l) {
    struct terse_model *m = l->model;
    const struct architecture *a = m->architecture;
    uint32_t head = m->latent.rank ? m->latent.plain + m->rope.n_rot : m->head_dim,
             shared = m->layers == a->scaled_by_width ? m->width / m->query_heads : head;
    m->embedding_scale = a->scaled_embedding ? sqrtf((float)m->width) : 1;
    m->attention_scale = 1 / sqrtf((float)shared);
    enum terse_status status = loader_number(l, "logit_scale", 1, FLT_MAX, &l->logit_scale);
    if (!status) status = loader_number(l, "attn_logit_softcapping", a->attention_cap, FLT_MAX, &m->attention_cap);
    if (!status) status = loader_number(l, "final_logit_softcapping", a->logit_cap, FLT_MAX, &m->logit_cap);
    return status ? status : loader_number(l, "attention.clamp_kqv", 0, FLT_MAX, &m->clamp);
}

/* Loads the shape of recurrent layers. Their value heads' size, of which files have the sum, is that of their key heads. */
static enum terse_status load_recurrent_shape(struct loader *l) {
    struct terse_model *m = l->model;
    uint32_t inner = 0;
    enum terse_status status;
    if (!m->architecture->recurrent) return TERSE_OK;
    if ((status = loader_size(l, "full_attention_interval", ATTENTION_INTERVAL, m->layers, &m->attention_interval))) return status;
    if ((status = loader_size(l, "ssm.conv_kernel", 0, RECURRENT_CONV_MAX, &m->recurrent_conv))) return status;
    if ((status = loader_size(l, "ssm.state_size", 0, RECURRENT_STATE_MAX, &m->recurrent_state))) return status;
    if ((status = loader_size(l, "ssm.group_count", 0, 4096, &m->recurrent_key_heads))) return status;
    if ((status = loader_size(l, "ssm.time_step_rank", 0, 4096, &m->recurrent_value_heads))) return status;
    if ((status = loader_size(l, "ssm.inner_size", 0, MODEL_MAX_WIDTH, &inner))) return status;
    m->recurrent = m->layers - m->layers / m->attention_interval;
    if (m->recurrent_value_heads % m->recurrent_key_heads)
        return status_fail(l->error, TERSE_E_FORMAT, "%u value heads do not share %u key heads evenly: the file is damaged",
                           m->recurrent_value_heads, m->recurrent_key_heads);
    if (inner != model_recurrent_width(m))
        return status_fail(l->error, TERSE_E_UNSUPPORTED,
                           "recurrent layers of %u channels in %u value heads, and key heads of %u: terse needs heads equally wide",
                           inner, m->recurrent_value_heads, m->recurrent_state);
    if (model_mixed_width(m) <= MODEL_MAX_WIDTH) return TERSE_OK;
    return status_fail(l->error, TERSE_E_FORMAT, "recurrent layers of %zu channels: the file is damaged", model_mixed_width(m));
}

/* Leaves out the layers that predict tokens after the next one. */
static enum terse_status load_next_layers(struct loader *l) {
    struct terse_model *m = l->model;
    uint32_t next = 0;
    enum terse_status status = m->architecture->next_layers ? loader_u32(l, "nextn_predict_layers", 0, &next) : TERSE_OK;
    if (status) return status;
    if (next >= m->layers)
        return status_fail(l->error, TERSE_E_FORMAT, "%u of %u layers predict tokens after the next one: the file is damaged", next,
                           m->layers);
    m->layers -= next;
    return TERSE_OK;
}

/* Loads the number of KV heads, and the size of all heads. */
static enum terse_status load_heads(struct loader *l) {
    struct terse_model *m = l->model;
    const uint32_t equal_share = m->width / m->query_heads;
    uint32_t value_length = 0;
    enum terse_status status;
    if ((status = loader_size(l, "attention.head_count_kv", m->query_heads, m->query_heads, &m->kv_heads))) return status;
    if ((status = loader_size(l, "attention.key_length", equal_share, MODEL_HEAD_MAX, &m->head_dim))) return status;
    if ((status = loader_size(l, "attention.value_length", equal_share, MODEL_HEAD_MAX, &value_length))) return status;
    if (m->architecture->rotary && (status = loader_size(l, "rope.dimension_count", m->head_dim, m->head_dim, &m->rope.n_rot)))
        return status;
    if (m->query_heads % m->kv_heads)
        return status_fail(l->error, TERSE_E_FORMAT, "%u query heads do not share %u KV heads evenly: the file is damaged",
                           m->query_heads, m->kv_heads);
    if (value_length == m->head_dim) return TERSE_OK;
    return status_fail(l->error, TERSE_E_UNSUPPORTED, "keys of %u and values of %u channels: terse needs them equal", m->head_dim,
                       value_length);
}

static enum terse_status load_shape(struct loader *l) {
    struct terse_model *m = l->model;
    enum terse_status status;
    if ((status = loader_size(l, "block_count", 0, MODEL_MAX_LAYERS, &m->layers))) return status;
    if ((status = loader_size(l, "embedding_length", 0, MODEL_MAX_WIDTH, &m->width))) return status;
    if ((status = load_next_layers(l))) return status;
    status = m->architecture->experts == PRESENCE_REQUIRED
                 ? loader_u32(l, "feed_forward_length", 0, &m->feed_forward)
                 : loader_size(l, "feed_forward_length", 0, MODEL_MAX_WIDTH, &m->feed_forward);
    if (status) return status;
    if ((status = loader_size(l, "attention.head_count", 0, 4096, &m->query_heads))) return status;
    if ((status = loader_size(l, "context_length", 0, UINT32_MAX, &m->context))) return status;
    if ((status = (m->architecture->latents ? load_latents_shape : load_heads)(l))) return status;
    if (m->rope.n_rot % 2)
        return status_fail(l->error, TERSE_E_FORMAT, "rope.dimension_count %u is odd: the file is damaged", m->rope.n_rot);
    if ((uint64_t)m->query_heads * m->head_dim > MODEL_MAX_WIDTH)
        return status_fail(l->error, TERSE_E_FORMAT, "%u heads of %u channels are more than a model has: the file is damaged",
                           m->query_heads, m->head_dim);

    if (m->architecture->routing_in_file && (status = loader_u32(l, "leading_dense_block_count", 0, &m->dense_layers)))
        return status;
    if ((status = load_experts_shape(l))) return status;
    if ((status = load_recurrent_shape(l))) return status;
    if ((status = load_window(l))) return status;
    if ((status = load_scales(l))) return status;
    return loader_number(l, m->architecture->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
                         -1, 1, &l->norm_epsilon);
}

/* Loads both ends of the model. The vocabulary's size is the embedding's number of rows. */
static enum terse_status load_ends(struct loader *l) {
    struct terse_model *m = l->model;
    enum terse_status status;
    const struct gguf_tensor *embedding = gguf_find_tensor(m->gguf, "token_embd.weight");
    if (!embedding) return loader_missing(l, "token_embd.weight");
    if (embedding->n_dims != 2 || embedding->dims[1] < 1 || embedding->dims[1] > MAX_VOCABULARY)
        return status_fail_at(l->error, TERSE_E_FORMAT, embedding->offset,
                              "tensor token_embd.weight is not a table of tokens: the file is damaged");
    m->vocabulary = (uint32_t)embedding->dims[1];
    if (tokenizer_size(m->tokenizer) > m->vocabulary)
        return status_fail_at(l->error, TERSE_E_FORMAT, embedding->offset,
                              "%u tokens but only %u rows in token_embd.weight: the file is damaged", tokenizer_size(m->tokenizer),
                              m->vocabulary);
    if ((status = loader_matrix(l, "token_embd.weight", m->width, m->vocabulary, PRESENCE_REQUIRED, &m->embedding))) return status;
    if ((status = loader_matrix(l, "output.weight", m->width, m->vocabulary, PRESENCE_OPTIONAL, &m->output))) return status;
    if (!m->output.data) m->output = m->embedding;
    float *gain = l->next_vector; /* what comes of the norm is multiplied by the output matrix alone */
    status = loader_norm(l, "output_norm", m->width, 0, PRESENCE_REQUIRED,
                         m->architecture->norm_bias ? m->architecture->bias : PRESENCE_NONE, &m->output_norm);
    for (uint32_t i = 0; i < m->width && !status && l->logit_scale != 1; i++) gain[i] *= l->logit_scale;
    return status;
}

/* ---- Positions */

static enum terse_status load_frequencies(struct loader *l, const char *factors, struct rope *rope, float *frequency) {
    struct terse_model *m = l->model;
    float logits = 1;
    rope->frequency = frequency;
    enum terse_status status = rope_scaling_load(m->gguf, m->architecture, l->options, factors, rope->n_rot, m->context, frequency,
                                                 &rope->magnitude, &logits, l->error);
    m->attention_scale *= logits;
    return status;
}

static enum terse_status load_longrope(struct loader *l, float *frequency) {
    struct terse_model *m = l->model;
    enum terse_status status = loader_size(l, "rope.scaling.original_context_length", 0, UINT32_MAX, &m->rope_context);
    if (!status) status = load_frequencies(l, ROPE_FACTORS_SHORT, &m->rope, frequency);
    m->long_rope = m->rope;
    l->next_vector += m->rope.n_rot / 2;
    return status ? status : load_frequencies(l, ROPE_FACTORS_LONG, &m->long_rope, frequency + m->rope.n_rot / 2);
}

static bool asks(const struct terse_model_options *o) { return o->rope_scaling || o->rope_scale != 0 || o->rope_freq_base != 0; }

static enum terse_status load_rope(struct loader *l) {
    struct terse_model *m = l->model;
    float *frequency = l->next_vector;
    l->next_vector += m->rope.n_rot / 2;
    m->rope.pairing = m->architecture->pairing;
    m->rope.head_dim = m->head_dim;
    m->rope.frequency = frequency;
    m->rope.magnitude = 1;
    if (!m->architecture->rotary && asks(l->options))
        return status_fail(l->error, TERSE_E_ARGUMENT, "a model of architecture %s has no RoPE to change", m->architecture->name);
    if (!m->architecture->rotary) return TERSE_OK;
    if (gguf_find_tensor(m->gguf, ROPE_FACTORS_LONG)) return load_longrope(l, frequency);
    return load_frequencies(l, ROPE_FACTORS, &m->rope, frequency);
}

/* Loads the frequencies of sliding layers that have a rotation of their own, and sets the order of layers. */
static enum terse_status load_sliding(struct loader *l) {
    struct terse_model *m = l->model;
    uint32_t *order = (uint32_t *)(void *)l->next_vector, n_full = m->layers - m->sliding, full = 0, slide = n_full;
    float base = 0, *frequency = l->next_vector + m->layers;
    if (!m->sliding) return TERSE_OK;
    if (n_full) {
        for (uint32_t i = 0; i < m->layers; i++) *((i + 1) % l->window_pattern ? &order[slide++] : &order[full++]) = i;
        m->layer_order = order;
    }
    l->next_vector += m->layers;
    if (m->architecture->sliding_base == 0) return TERSE_OK;
    enum terse_status status = loader_number(l, "rope.freq_base_swa", m->architecture->sliding_base, FLT_MAX, &base);
    if (!status && !(base > 1))
        status = status_fail(l->error, TERSE_E_FORMAT, "rope.freq_base_swa is %g: the file is damaged", (double)base);
    m->sliding_rope = m->rope;
    m->sliding_rope.frequency = frequency;
    m->sliding_rope.magnitude = 1;
    for (uint32_t i = 0; i < m->rope.n_rot / 2; i++) frequency[i] = (float)pow((double)base, -2.0 * i / m->rope.n_rot);
    l->next_vector += m->rope.n_rot / 2;
    return status;
}

/* Loads the slopes of ALiBi: 2^(-largest i / N), i = 1..N, for N heads when that is a power of two; for fewer heads than N, first those of even
 * i. */
static enum terse_status load_alibi(struct loader *l) {
    struct terse_model *m = l->model;
    float largest = 0, *slopes = l->next_vector;
    if (!m->architecture->alibi) return TERSE_OK;
    enum terse_status status = loader_number(l, "attention.max_alibi_bias", -1, 1024, &largest);
    if (status || largest == 0) return status;
    uint32_t power = 1;
    while (power < m->query_heads) power *= 2;
    for (uint32_t h = 0; h < m->query_heads; h++) {
        uint32_t i = power == m->query_heads ? h + 1 : h < power / 2 ? 2 * h + 2 : 2 * (h - power / 2) + 1;
        slopes[h] = exp2f(-largest * (float)i / (float)power);
    }
    m->slopes = slopes;
    l->next_vector += m->query_heads;
    return TERSE_OK;
}

static enum terse_status load_positions(struct loader *l) {
    struct terse_model *m = l->model;
    enum terse_status status = load_rope(l);
    if (!status) status = load_sliding(l);
    if (!status) status = load_alibi(l);
    if (status) return status;
    return loader_matrix(l, "position_embd.weight", m->width, m->context, m->architecture->positions, &m->positions);
}

/* ---- All of it */

/* Allocates the vectors. It counts every vector of the file once, which bounds the memory by the file's size, whatever its metadata
 * claims. */
static enum terse_status allocate(struct loader *l) {
    struct terse_model *m = l->model;
    size_t floats = 2 * (size_t)m->rope.n_rot + m->query_heads + m->layers;
    for (uint64_t i = 0; i < gguf_tensor_count(m->gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(m->gguf, i);
        bool of_heads = m->architecture->norm_by_head && tensor->n_dims == 2 && tensor->dims[1] <= m->query_heads;
        bool of_experts = m->experts && m->architecture->bias && tensor->n_dims == 2 && tensor->dims[1] == m->experts;
        bool of_convolution = m->recurrent && tensor->n_dims == 2 && tensor->dims[0] == m->recurrent_conv;
        bool vector = tensor->n_dims <= 2 && tensor->dims[1] == 1; /* converters leave some with a second dimension */
        if ((vector || of_heads || of_experts || of_convolution) && tensor->data) floats += tensor->dims[0] * tensor->dims[1];
    }
    l->used = memory_zeros(gguf_tensor_count(m->gguf), sizeof *l->used);
    m->layer = memory_zeros(m->layers, sizeof *m->layer);
    m->vectors = memory_array(floats, sizeof(float));
    if (!l->used || !m->layer || !m->vectors) return status_no_memory(l->error, floats * sizeof(float), "the model's vectors");
    l->next_vector = m->vectors;
    l->last_vector = l->next_vector + floats;
    return TERSE_OK;
}

static enum terse_status load_name(struct loader *l) {
    struct gguf_string name = {0};
    bool found;
    enum terse_status status = gguf_get_string(l->model->gguf, "general.name", &name, &found, l->error);
    struct text_line line = text_line_begin(l->model->name, sizeof l->model->name);
    text_line_string(&line, name.data, name.size, false);
    text_line_end(&line);
    return status;
}

static bool is_of_next_layer(const struct terse_model *m, const char *name) {
    return m->architecture->next_layers && !strncmp(name, "blk.", 4) && strtoul(name + 4, NULL, 10) >= m->layers;
}

/* Refuses a file with a tensor that no layer uses, since terse would silently leave out a part of the model. The tables of rotation are
 * the exception: rope_scaling.c reads some, and attn_rot_embd only repeats the metadata. */
static enum terse_status check_all_used(struct loader *l) {
    const struct gguf *gguf = l->model->gguf;
    for (uint64_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        char name[80];
        snprintf(name, sizeof name, "%.*s", (int)tensor->name.size, tensor->name.data);
        bool of_rotation = !strncmp(name, "rope_f", 6) || strstr(name, "rot_embd");
        if (l->used[i] || (of_rotation && l->model->architecture->rotary) || is_of_next_layer(l->model, name)) continue;
        return status_fail_at(l->error, TERSE_E_UNSUPPORTED, tensor->offset,
                              "tensor %s is not one that terse knows of architecture %s: this variant of it is not supported", name,
                              l->model->architecture->name);
    }
    return TERSE_OK;
}

static enum terse_status load_tensors(struct loader *l) {
    enum terse_status status;
    if ((status = allocate(l))) return status;
    if ((status = load_positions(l))) return status;
    if ((status = load_ends(l))) return status;
    if ((status = load_sinks(l))) return status;
    for (uint32_t i = 0; i < l->model->layers && !status; i++) status = load_layer(l, i);
    return status ? status : check_all_used(l);
}

/* Fills a model whose `file` is set. */
static enum terse_status load(struct terse_model *model, const void *data, size_t size, const char *name,
                              const struct terse_model_options *options, struct terse_error *error) {
    struct loader l = {.model = model, .error = error, .options = options};
    enum terse_status status;
    if ((status = gguf_open(data, size, name, &model->gguf, error))) return status;
    if ((status = gguf_add_parts(model->gguf, model->file.data ? name : NULL, error))) return status;
    if ((status = architecture_find(model->gguf, &model->architecture, error))) return status;
    if ((status = load_name(&l))) return status;
    if ((status = load_shape(&l))) return status;
    if ((status = tokenizer_new(model->gguf, &model->tokenizer, error))) return status;
    status = load_tensors(&l);
    memory_free(l.used);
    if (!status) model->fingerprint = model_fingerprint(model);
    if (!status) model->norms_fingerprint = model_norms_fingerprint(model);
    if (!status && asks(options)) { /* it is another model then */
        uint64_t rotation = model_rotation_fingerprint(model);
        model->fingerprint += rotation;
        model->norms_fingerprint += rotation;
    }
    return status;
}

/* Loads a model from the contents of a file, data[size], which are `file`'s or, where that is empty, the caller's; the model takes
 * the mapping over, and closes it when loading fails. */
static enum terse_status load_contents(struct mapped_file file, const void *data, size_t size, const char *name,
                                       const struct terse_model_options *options, struct terse_model **model,
                                       struct terse_error *error) {
    *model = NULL;
    struct terse_model *m = calloc(1, sizeof *m);
    if (!m) {
        mapped_file_close(&file);
        return status_no_memory(error, sizeof *m, "the model");
    }
    m->file = file;
    enum terse_status status = load(m, data, size, name, options, error);
    if (status) {
        status_name_file(error, name);
        terse_model_free(m);
        return status;
    }
    *model = m;
    return TERSE_OK;
}

struct terse_model_options terse_model_options_defaults(void) {
    return (struct terse_model_options){.size = sizeof(struct terse_model_options)};
}

enum terse_status terse_model_load_with(const char *path, const struct terse_model_options *options, struct terse_model **model,
                                        struct terse_error *error) {
    struct mapped_file file = {0};
    *model = NULL;
    enum terse_status status = mapped_file_open(path, &file, error);
    return status ? status : load_contents(file, file.data, file.size, path, options, model, error);
}

enum terse_status terse_model_load_memory_with(const void *data, size_t size, const char *name,
                                               const struct terse_model_options *options, struct terse_model **model,
                                               struct terse_error *error) {
    return load_contents((struct mapped_file){0}, data, size, name, options, model, error);
}

enum terse_status terse_model_load(const char *path, struct terse_model **model, struct terse_error *error) {
    const struct terse_model_options options = terse_model_options_defaults();
    return terse_model_load_with(path, &options, model, error);
}

enum terse_status terse_model_load_memory(const void *data, size_t size, const char *name, struct terse_model **model,
                                          struct terse_error *error) {
    const struct terse_model_options options = terse_model_options_defaults();
    return terse_model_load_memory_with(data, size, name, &options, model, error);
}

size_t layer_matrices(const struct layer *l, const struct matrix *matrices[LAYER_MATRICES]) {
    const struct experts *e = &l->experts;
    const struct recurrent *r = &l->recurrent;
    const struct latents *a = &l->latents;
    const struct matrix *all[LAYER_MATRICES] = {&l->q,         &l->k,           &l->v,     &l->o,    &l->gate,   &l->up,
                                                &l->down,      &e->gate,        &e->up,    &e->down, &e->router, &e->shared_gate,
                                                &e->shared_up, &e->shared_down, &r->mixed, &r->gate, &r->beta,   &r->alpha,
                                                &a->queries,   &a->key,         &a->value, &a->both};
    size_t n = 0;
    for (size_t i = 0; i < LAYER_MATRICES; i++)
        if (all[i]->data) matrices[n++] = all[i];
    return n;
}

static uint32_t count_merges(const struct gguf *gguf) {
    struct gguf_array merges;
    bool found = false;
    gguf_get_array(gguf, "tokenizer.ggml.merges", GGUF_STRING, &merges, &found, NULL);
    return found ? (uint32_t)merges.count : 0;
}

void terse_model_describe(const struct terse_model *model, struct terse_model_info *info) {
    uint64_t parameters = 0, bytes = 0, by_type[TENSOR_TYPES] = {0};
    for (uint64_t i = 0; i < gguf_tensor_count(model->gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(model->gguf, i);
        parameters += tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
        bytes += tensor->bytes;
        if (tensor->data) by_type[tensor->type] += tensor->bytes;
    }
    uint32_t most = 0;
    for (uint32_t type = 0; type < TENSOR_TYPES; type++)
        if (by_type[type] > by_type[most]) most = type;
    const char *mixture = file_type_mixture(model->gguf);
    *info = (struct terse_model_info){
        .architecture = model->architecture->name,
        .name = model->name,
        .weights = mixture ? mixture : tensor_type_info(most)->name,
        .layers = model->layers,
        .width = model->width,
        .query_heads = model->query_heads,
        .kv_heads = model->kv_heads,
        .head_dim = model->head_dim,
        .feed_forward = model->feed_forward,
        .experts = model->experts,
        .experts_used = model->experts_used,
        .vocabulary = model->vocabulary,
        .merges = count_merges(model->gguf),
        .context = model->context,
        .recurrent_layers = model->recurrent,
        .attention_interval = model->attention_interval,
        .latent = model->latent.rank,
        .sliding_layers = model->sliding,
        .sliding_window = model->window,
        .parameters = parameters,
        .bytes = bytes,
        .embedding_bytes =
            model->output.data == model->embedding.data ? 0 : gguf_find_tensor(model->gguf, "token_embd.weight")->bytes,
        .fingerprint = model->fingerprint,
        .norms_fingerprint = model->norms_fingerprint,
    };
}

void terse_model_free(struct terse_model *model) {
    if (!model) return;
    memory_free(model->layer);
    memory_free(model->vectors);
    tokenizer_free(model->tokenizer);
    gguf_free(model->gguf);
    mapped_file_close(&model->file);
    free(model);
}
