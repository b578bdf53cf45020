/* Finds the tensors of experts, and reads from metadata how tokens find their experts. */
#include "model/load_experts.h"

#include <float.h>
#include <stdio.h>

#define GATING_SIGMOID 2 /* expert_gating_func; 1 is the softmax, as are files that do not say */

/* Loads the width of the one expert of all tokens, which is stored for several that share a matrix. */
static enum terse_status load_shared_width(struct loader *l) {
    uint32_t shared = 0;
    enum terse_status status = loader_u32(l, "expert_shared_count", 0, &shared);
    if (status) return status;
    if ((uint64_t)shared * l->expert_width > MODEL_MAX_WIDTH)
        return status_fail(l->error, TERSE_E_FORMAT, "%u shared experts of %u channels: the file is damaged", shared,
                           l->expert_width);
    l->shared_width = shared * l->expert_width;
    return TERSE_OK;
}

/* Loads how experts are chosen, which most architectures leave to their table. */
static enum terse_status load_routing(struct loader *l) {
    struct terse_model *m = l->model;
    struct routing *r = &m->routing;
    uint32_t gating = 0, normalized = !m->architecture->shares_of_all;
    *r = (struct routing){.of_all = !normalized, .scale = 1};
    if (!m->architecture->routing_in_file) return TERSE_OK;
    enum terse_status status = loader_u32(l, "expert_gating_func", 0, &gating);
    if (!status) status = loader_flag(l, "expert_weights_norm", &normalized);
    if (!status) status = loader_number(l, "expert_weights_scale", 1, FLT_MAX, &r->scale);
    if (!status) status = loader_u32(l, "expert_group_count", 0, &r->groups);
    if (!status && r->groups > 1) status = loader_size(l, "expert_group_used_count", 0, r->groups, &r->groups_used);
    if (status) return status;
    r->sigmoid = gating == GATING_SIGMOID;
    r->of_all = !normalized;
    if (!(r->scale > 0)) r->scale = 1; /* as converters write for models that do not scale */
    if (r->groups <= 1) r->groups = 0;
    if (gating > GATING_SIGMOID)
        return status_fail(l->error, TERSE_E_UNSUPPORTED,
                           "expert_gating_func %u is not supported; supported are 1 (softmax) and 2 "
                           "(sigmoid)",
                           gating);
    if (r->groups && (m->experts % r->groups || m->experts / r->groups * r->groups_used < m->experts_used))
        return status_fail(l->error, TERSE_E_FORMAT, "%u of %u experts in %u of %u groups: the file is damaged", m->experts_used,
                           m->experts, r->groups_used, r->groups);
    return TERSE_OK;
}

enum terse_status load_experts_shape(struct loader *l) {
    struct terse_model *m = l->model;
    const struct architecture *a = m->architecture;
    char key[128];
    bool found = false;
    snprintf(key, sizeof key, "%s.expert_count", a->name);
    enum terse_status status = gguf_get_u32(m->gguf, key, &m->experts, &found, l->error);
    if (status || (!m->experts && a->experts != PRESENCE_REQUIRED)) return status;
    if (a->experts == PRESENCE_NONE)
        return status_fail(l->error, TERSE_E_UNSUPPORTED, "%s models with experts (%s = %u) are not supported", a->name, key,
                           m->experts);
    if ((status = loader_size(l, "expert_count", 0, MODEL_EXPERTS_MAX, &m->experts))) return status;
    if ((status = loader_size(l, "expert_used_count", 0, m->experts, &m->experts_used))) return status;
    if ((status = loader_size(l, "expert_feed_forward_length", m->feed_forward, MODEL_MAX_WIDTH, &l->expert_width))) return status;
    l->dense_width = m->feed_forward;
    if (a->routing_in_file && (status = load_shared_width(l))) return status;
    if (a->shared_expert)
        status = loader_size(l, "expert_shared_feed_forward_length", m->feed_forward, MODEL_MAX_WIDTH, &l->shared_width);
    if (!m->dense_layers || m->feed_forward < l->expert_width) m->feed_forward = l->expert_width;
    if (m->feed_forward < l->shared_width) m->feed_forward = l->shared_width;
    return status ? status : load_routing(l);
}

enum terse_status load_experts(struct loader *l, uint32_t index) {
    const struct terse_model *m = l->model;
    struct experts *e = &l->model->layer[index].experts;
    const bool counted = m->architecture->routing_in_file;
    enum presence shared = l->shared_width ? PRESENCE_REQUIRED : PRESENCE_NONE;
    const struct {
        const char *name;
        uint32_t columns, rows, count;
        enum presence presence;
        struct matrix *matrix;
    } matrices[] = {
        {"ffn_gate_inp", m->width, m->experts, 0, PRESENCE_REQUIRED, &e->router},
        {"ffn_gate_exps", m->width, l->expert_width, m->experts, PRESENCE_REQUIRED, &e->gate},
        {"ffn_up_exps", m->width, l->expert_width, m->experts, PRESENCE_REQUIRED, &e->up},
        {"ffn_down_exps", l->expert_width, m->width, m->experts, PRESENCE_REQUIRED, &e->down},
        {"ffn_gate_shexp", m->width, l->shared_width, 0, shared, &e->shared_gate},
        {"ffn_up_shexp", m->width, l->shared_width, 0, shared, &e->shared_up},
        {"ffn_down_shexp", l->shared_width, m->width, 0, shared, &e->shared_down},
    };
    char name[64];
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0] && !status; i++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", index, matrices[i].name);
        status = loader_matrices(l, name, matrices[i].columns, matrices[i].rows, matrices[i].count, matrices[i].presence,
                                 matrices[i].matrix);
    }
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0] && !status; i++) {
        if (!matrices[i].matrix->data) continue;
        snprintf(name, sizeof name, "blk.%u.%s.bias", index, matrices[i].name);
        status = loader_vectors(l, name, matrices[i].rows, matrices[i].count ? matrices[i].count : 1, m->architecture->bias,
                                &matrices[i].matrix->bias);
    }
    snprintf(name, sizeof name, "blk.%u.ffn_gate_inp_shexp.weight", index);
    if (!status) status = loader_vector(l, name, m->width, counted ? PRESENCE_NONE : shared, &e->shared_router);
    snprintf(name, sizeof name, "blk.%u.exp_probs_b.bias", index);
    return status ? status : loader_vector(l, name, m->experts, counted ? PRESENCE_OPTIONAL : PRESENCE_NONE, &e->choice_bias);
}
