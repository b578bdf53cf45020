/* Makes the shape of a cache from a model. */
#include "kv/shape.h"

#include "model/model.h"

struct cache_shape cache_shape_of(const struct terse_model *m, uint32_t context) {
    return (struct cache_shape){.layers = model_kv_layers(m),
                                .query_heads = m->query_heads,
                                .kv_heads = m->kv_heads,
                                .head_dim = m->head_dim,
                                .scale = m->attention_scale,
                                .rope = model_rope(m, context),
                                .latents = m->latent.rank > 0,
                                .slopes = m->slopes,
                                .normalized = model_normalizes_attention(m),
                                .sinks = m->sinks,
                                .cap = m->attention_cap,
                                .window = m->window,
                                .sliding = m->sliding,
                                .sliding_rope = m->sliding_rope.n_rot ? &m->sliding_rope : model_rope(m, context),
                                .recurrent_layers = m->recurrent,
                                .recurrent_floats = model_recurrent_floats(m),
                                .order = m->layer_order};
}
