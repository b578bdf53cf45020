/* Small models of random weights, with heads as long as those of models that are used: a row for each architecture, with weights of several
 * types in each layer. */
#ifndef TESTS_SUPPORT_RANDOM_MODEL_H
#define TESTS_SUPPORT_RANDOM_MODEL_H

#include "gguf/gguf.h"
#include "terse.h"

#define RANDOM_MODEL_TYPES 3

struct random_model_spec {
    const char *architecture;
    enum tensor_type types[RANDOM_MODEL_TYPES]; /* of matrices, by turns */
    uint32_t kv_heads;
    uint32_t heads, head_dim, layers; /* 0: 4 query heads of 64 channels, 2 layers */
    bool qkv_bias, qk_norm, bias, positions, untied;
    float clamp, alibi;
    uint32_t experts, experts_used, shared; /* shared: the inner width of an expert for all tokens */
    uint32_t width, inner, vocabulary;      /* 0: 256, 512, 300 */
    uint32_t window;                        /* of every second layer; 0: of none */
    bool post_norms, norm_by_head;
    float attention_cap, logit_cap, logit_scale; /* 0: what the architecture has */
    uint32_t rope_context;                       /* of longrope; 0: none */
};
extern const struct random_model_spec random_models[];
extern const size_t n_random_models;
/* Models whose layers have what those do not: windows, caps, norms behind them. */
extern const struct random_model_spec random_layer_models[];
extern const size_t n_random_layer_models;
/* One model of each architecture with experts. */
#define RANDOM_EXPERT_MODELS 3
extern const struct random_model_spec random_expert_models[RANDOM_EXPERT_MODELS];

/* Fails the test where there is no memory. *file is what the model reads: memory_free after terse_model_free. */
struct terse_model *random_model_new(const struct random_model_spec *spec, void **file);
/* The same, whose tensor `name` has `number` as its first weight, or as the scale of its first block; NULL: it has no such tensor. */
struct terse_model *random_model_damaged(const struct random_model_spec *spec, const char *name, float number, void **file);

#endif
