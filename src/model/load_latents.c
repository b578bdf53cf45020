/* Finds the tensors of multi-head latent attention. Files of two generations differ: newer ones have attn_k_b, transposed, and
 * attn_v_b, of each head a matrix; older ones have both as rows of attn_kv_b. */
#include "model/load_latents.h"

#include "format/shape.h"

#include <float.h>
#include <stdio.h>

enum terse_status load_latents_shape(struct loader *l) {
    struct terse_model *m = l->model;
    struct latent_shape *s = &m->latent;
    uint32_t key = 0;
    float temperature = 0;
    enum terse_status status;
    if ((status = loader_size(l, "attention.kv_lora_rank", 0, MODEL_HEAD_MAX, &s->rank))) return status;
    if ((status = loader_u32(l, "attention.q_lora_rank", 0, &s->query_rank))) return status;
    if ((status = loader_size(l, "rope.dimension_count", 0, CODEC_HEAD_DIM_MAX, &m->rope.n_rot))) return status;
    /* Newer files have the lengths of a cache's rows as key_length and value_length. */
    if ((status = loader_u32(l, "attention.key_length_mla", 0, &key))) return status;
    if (!key && (status = loader_size(l, "attention.key_length", 0, MODEL_HEAD_MAX, &key))) return status;
    if ((status = loader_u32(l, "attention.value_length_mla", 0, &s->value))) return status;
    if (!s->value && (status = loader_size(l, "attention.value_length", 0, MODEL_HEAD_MAX, &s->value))) return status;
    if ((status = loader_number(l, "attention.temperature_scale", 0, FLT_MAX, &temperature))) return status;
    if (temperature > 0) /* of positions, by which Mistral's models of this architecture scale queries */
        return status_fail(l->error, TERSE_E_UNSUPPORTED, "%s models with attention.temperature_scale are not supported",
                           m->architecture->name);
    m->kv_heads = 1;
    m->head_dim = m->rope.n_rot + s->rank;
    s->plain = key - m->rope.n_rot;
    if (key <= m->rope.n_rot || key > MODEL_HEAD_MAX || s->value > MODEL_HEAD_MAX || m->head_dim > MODEL_HEAD_MAX ||
        s->query_rank > MODEL_MAX_WIDTH)
        return status_fail(l->error, TERSE_E_FORMAT,
                           "keys of %u channels, %u of them rotated, values of %u, latents of %u and %u: the file is damaged", key,
                           m->rope.n_rot, s->value, s->rank, s->query_rank);
    return TERSE_OK;
}

/* Loads what makes keys and values of latents. */
static enum terse_status load_heads(struct loader *l, uint32_t index) {
    const struct terse_model *m = l->model;
    const struct latent_shape *s = &m->latent;
    struct latents *own = &l->model->layer[index].latents;
    const uint32_t both = s->plain + s->value;
    char name[64];
    snprintf(name, sizeof name, "blk.%u.attn_kv_b.weight", index);
    enum terse_status status = loader_matrix(l, name, s->rank, m->query_heads * both, PRESENCE_OPTIONAL, &own->both);
    enum presence apart = own->both.data ? PRESENCE_OPTIONAL : PRESENCE_REQUIRED; /* some files have all three */
    snprintf(name, sizeof name, "blk.%u.attn_k_b.weight", index);
    if (!status) status = loader_matrices(l, name, s->plain, s->rank, m->query_heads, apart, &own->key);
    snprintf(name, sizeof name, "blk.%u.attn_v_b.weight", index);
    return status ? status : loader_matrices(l, name, s->rank, s->value, m->query_heads, apart, &own->value);
}

enum terse_status load_latents(struct loader *l, uint32_t index) {
    const struct terse_model *m = l->model;
    const struct latent_shape *s = &m->latent;
    struct layer *layer = &l->model->layer[index];
    const uint32_t queries = m->query_heads * (s->plain + m->rope.n_rot);
    const enum presence ranked = s->query_rank ? PRESENCE_REQUIRED : PRESENCE_NONE;
    const struct {
        const char *name;
        uint32_t columns, rows;
        enum presence presence;
        struct matrix *matrix;
    } matrices[] = {
        {"attn_q_a", m->width, s->query_rank, ranked, &layer->latents.queries},
        {s->query_rank ? "attn_q_b" : "attn_q", s->query_rank ? s->query_rank : m->width, queries, PRESENCE_REQUIRED, &layer->q},
        {"attn_kv_a_mqa", m->width, m->head_dim, PRESENCE_REQUIRED, &layer->k},
    };
    char name[64];
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; !status && i < sizeof matrices / sizeof matrices[0]; i++) {
        snprintf(name, sizeof name, "blk.%u.%s", index, matrices[i].name);
        status = loader_linear(l, name, matrices[i].columns, matrices[i].rows, matrices[i].presence, PRESENCE_OPTIONAL,
                               matrices[i].matrix);
    }
    snprintf(name, sizeof name, "blk.%u.attn_q_a_norm", index);
    if (!status) status = loader_norm(l, name, s->query_rank, 0, ranked, PRESENCE_NONE, &layer->latents.query_norm);
    snprintf(name, sizeof name, "blk.%u.attn_kv_a_norm", index);
    if (!status) status = loader_norm(l, name, s->rank, 0, PRESENCE_REQUIRED, PRESENCE_NONE, &layer->latents.norm);
    return status ? status : load_heads(l, index);
}
