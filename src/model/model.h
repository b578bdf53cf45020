/* Declares a model: weights, shape and tokenizer, immutable after loading. */
#ifndef TERSE_MODEL_MODEL_H
#define TERSE_MODEL_MODEL_H

#include "base/mapped_file.h"
#include "gguf/gguf.h"
#include "model/rope.h"
#include "text/tokenizer.h"

/* A matrix is a linear layer as stored: out[rows] = w in[columns] + bias. */
struct matrix {
    const void *data; /* NULL: the model has no such tensor */
    enum tensor_type type;
    uint32_t rows, columns;
    size_t row_bytes;
    const float *bias; /* [rows], or NULL */
};

/* Returns rows of a matrix, where they lie. */
static inline struct matrix matrix_rows(const struct matrix *matrix, uint32_t first, uint32_t rows) {
    struct matrix part = *matrix;
    part.data = (const char *)matrix->data + (size_t)first * matrix->row_bytes;
    part.rows = rows;
    if (part.bias) part.bias += first;
    return part;
}

/* A norm maps a row x to gain (x - mean) / sqrt(variance + epsilon) + bias. RMSNorm takes the mean for 0 (Zhang and Sennrich 2019),
 * LayerNorm does not (Ba et al. 2016). */
enum norm_kind { NORM_RMS, NORM_LAYER };
struct norm {
    enum norm_kind kind;
    float epsilon;
    const float *gain, *bias; /* [width]; gain NULL: the model has no such norm; bias NULL: 0 */
    uint32_t heads;           /* gain[heads][width], a head's for every heads-th row; 0: the same for all rows */
};

/* The activation function is applied inside a feed-forward layer. SwiGLU and GeGLU have two matrices before it and multiply: silu(gate) up, or
 * GELU(gate) up by tanh (Shazeer 2020); the others have only `up`. GELU(x) = x P(N(0, 1) <= x), exactly or as approximated by Hendrycks and Gimpel
 * (2016): backend/cpu/gelu.h. Clamped, SwiGLU is gate sigmoid(a gate) (up + 1), the gate at most 7 and up within [-7, 7] (gpt-oss). */
#define SWIGLU_GAIN 1.702f
#define SWIGLU_CLAMP 7.0f
enum activation { ACTIVATION_SWIGLU, ACTIVATION_GELU_TANH, ACTIVATION_GELU, ACTIVATION_GEGLU, ACTIVATION_SWIGLU_CLAMPED };

/* A feed-forward layer of experts, which are SwiGLU layers: a token goes through the experts for which its product with the router is the largest,
 * and the layer's output is the sum of their outputs, each times its share, a softmax of these products (Shazeer et al. 2017). */
struct experts {
    struct matrix router;                              /* [experts] rows; without data the layer has no experts */
    struct matrix gate, up, down;                      /* of all experts, one's rows after the other's */
    struct matrix shared_gate, shared_up, shared_down; /* an expert of all tokens, */
    const float *shared_router;                        /* [width], whose share is the sigmoid of this product; NULL: it is 1 */
    const float *choice_bias; /* [experts], added to probabilities where experts are chosen, not in their shares; NULL: 0 */
};

/* A routing says how the experts of a token, and their shares, follow from its products with the router: those of the largest
 * probabilities, a softmax of all products, or the sigmoid of each. Where experts lie in groups of neighbours, those of the best
 * `groups_used` alone are chosen from: by the largest probability of a group (DeepSeek-V2), or the sum of the two largest (V3, by sigmoid). */
struct routing {
    uint32_t groups, groups_used; /* 0: experts are in no groups */
    bool sigmoid;
    bool of_all; /* shares are these probabilities; else they are divided by their sum */
    float scale; /* by which shares are multiplied */
};

/* A recurrent layer has a state of fixed size in place of keys and values: linear attention by the gated delta rule (Yang et al. 2024,
 * as in Qwen3-Next). Each of its value heads belongs to a key head: neighbours to one, or, tiled_heads, head h to number h modulo
 * the key heads. The layer's output matrix is struct layer's `o`. backend/cpu/recurrent.h has the equations. */
struct recurrent {
    struct matrix mixed; /* queries and keys [key heads][state], values [value heads][state]; without data there is none of it */
    struct matrix gate;  /* [value heads][state], by which outputs are multiplied */
    struct matrix beta,
        alpha;         /* [value heads]; without alpha, beta has for each key head beta of its value heads, then alpha of them */
    const float *conv; /* [mixed.rows][recurrent_conv]: a causal convolution of each row over tokens, the newest last */
    const float *decay, *bias; /* [value heads]: decays are exp(decay softplus(alpha + bias)) */
    struct norm norm;          /* [state], of a head's output */
};

/* In multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2) all heads share a row of a cache, [rotated | latent]: a key of which
 * `rotated` channels turn, and the latent of which keys and values of every head are products. The cache's queries are products of a
 * head's own with its key matrix, and the head's output one of its value matrix with the latent that attention gives: absorbed. */
struct latent_shape {
    uint32_t rank;       /* channels of a latent; 0: there are none */
    uint32_t query_rank; /* of the latent that queries are made of; 0: they are made of the hidden state */
    uint32_t plain;      /* channels of a head's query that do not turn; its others, rope.n_rot, follow */
    uint32_t value;      /* channels of a head's output */
};

struct latents {
    struct matrix queries;        /* latents of queries, which `q` turns into queries; without data there are none */
    struct norm query_norm, norm; /* [query_rank]; [rank], of latents in the cache */
    struct matrix key, value;     /* of all heads, one's rows after the other's: [rank] x plain; [value] x rank */
    struct matrix both;           /* in place of these: of each head [plain] rows of keys, then [value] of values, x rank */
};

/* Vectors are F32, converted at load where the file has them otherwise. Tensors that an architecture does not have are NULL. */
struct layer {
    struct norm attention_norm, feed_forward_norm; /* [width]; one and the same where the architecture is parallel */
    struct matrix q, k, v, o;   /* q, k and v may be rows of one tensor; gated_heads: q has each head's queries, then its gate */
    struct norm q_norm, k_norm; /* [head_dim] */
    struct norm attention_post_norm, feed_forward_post_norm; /* [width], of what is added to the hidden state */
    struct matrix gate, up, down;                            /* of a layer without experts */
    struct experts experts;
    struct recurrent recurrent; /* in place of q, k and v */
    struct latents latents;     /* beside q and k, which is [latent | rotated] then; there is no v */
    uint32_t kv_number;         /* the layer's among those with keys and values, by which caches and codebooks know it */
};

#define RECURRENT_STATE_MAX 1024 /* channels of a recurrent layer's head */
#define RECURRENT_CONV_MAX 64    /* tokens that its convolution sees */

#define MODEL_HEAD_MAX 4096 /* channels of a head */
#define MODEL_EXPERTS_MAX 1024

#define LAYER_MATRICES 22
/* Writes the matrices that a layer has, and returns their number. */
size_t layer_matrices(const struct layer *layer, const struct matrix *matrices[LAYER_MATRICES]);

struct architecture; /* a row of the table in architecture.c */

struct terse_model {
    struct mapped_file file; /* empty when the caller owns the memory */
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    const struct architecture *architecture;
    char name[128]; /* general.name, cut to fit; "" when the file has none */
    uint32_t layers, width, query_heads, kv_heads, head_dim, feed_forward, vocabulary, context;
    uint32_t experts, experts_used; /* of a layer, and of them those that a token goes through; feed_forward is the widest's then */
    struct routing routing;         /* of tokens to experts */
    uint32_t dense_layers;          /* so many first layers have no experts, where the others have them */
    uint64_t fingerprint;           /* model_fingerprint(), at load */
    uint64_t norms_fingerprint;     /* model_norms_fingerprint(), at load */
    float clamp;                    /* q, k and v are kept within [-clamp, clamp] as they leave their matrices; 0: they are not */
    struct rope rope;               /* n_rot 0: none */
    struct rope long_rope;          /* of sequences that may grow longer than `rope_context`: model_rope() */
    uint32_t rope_context;          /* 0: `rope` serves all */
    float embedding_scale;          /* of embeddings */
    float attention_scale;          /* logits of attention = attention_scale <q, k> */
    float attention_cap, logit_cap; /* logits of attention, or of tokens, become cap tanh(logits / cap); 0: they do not */
    uint32_t window, sliding;       /* of how many layers a query sees the newest `window` keys alone, its own included */
    struct rope sliding_rope;       /* of these layers; n_rot 0: they rotate as the others do */
    const uint32_t *layer_order;    /* [layers] the others' numbers, then theirs; NULL: all slide, or none */
    const float *slopes;            /* [query_heads]: ALiBi adds slope * (key's position - query's) to the logits; NULL: none */
    const float
        *sinks; /* [layers][query_heads]: the logit of a key without a value, which queries of a head see besides; NULL: none */
    struct latent_shape latent;  /* of attention; kv_heads is 1 then and head_dim rope.n_rot + rank */
    uint32_t recurrent;          /* how many layers are: all but every attention_interval-th */
    uint32_t attention_interval; /* 0 where no layer is recurrent */
    uint32_t recurrent_key_heads, recurrent_value_heads, recurrent_state, recurrent_conv; /* of such a layer: struct recurrent */
    struct matrix embedding, output;                                                      /* output is the embedding when tied */
    struct matrix positions; /* added to the embeddings, a row for each position: no token can have one past the last */
    struct norm output_norm; /* its gain times what the file scales logits by */
    struct layer *layer;     /* [layers] */
    void *vectors;           /* the memory of all converted vectors, of rotation frequencies, of slopes and of layer_order */
};

/* These numbers name places in the model: the input of layer 0, the output of a layer, and the logits. */
#define MODEL_EMBEDDINGS 0
#define MODEL_BEHIND(layer) ((layer) + 1)
#define MODEL_OUTPUT(model) ((model)->layers + 1)

/* Return how many numbers a token's queries of a layer have, [Hq][hd], and of its keys or values, [Hk][hd]. */
static inline size_t model_query_width(const struct terse_model *model) { return (size_t)model->query_heads * model->head_dim; }
static inline size_t model_kv_width(const struct terse_model *model) { return (size_t)model->kv_heads * model->head_dim; }

/* Returns how many layers have keys and values. */
static inline uint32_t model_kv_layers(const struct terse_model *model) { return model->layers - model->recurrent; }

/* Returns the layer of this number among those with keys and values. */
static inline uint32_t model_kv_layer(const struct terse_model *model, uint32_t kv_number) {
    return model->attention_interval ? (kv_number + 1) * model->attention_interval - 1 : kv_number;
}

/* Return the widths of what a recurrent layer's state follows from, and of what it gives out, [value heads][state]. */
static inline size_t model_mixed_width(const struct terse_model *model) {
    return (size_t)(2 * model->recurrent_key_heads + model->recurrent_value_heads) * model->recurrent_state;
}
static inline size_t model_recurrent_width(const struct terse_model *model) {
    return (size_t)model->recurrent_value_heads * model->recurrent_state;
}

/* Returns the floats of a recurrent layer's state: the inputs of its convolution, [recurrent_conv - 1][mixed.rows], then
 * [value heads][state of keys][state of values]. */
static inline size_t model_recurrent_floats(const struct terse_model *model) {
    if (!model->recurrent) return 0;
    return (model->recurrent_conv - 1) * model_mixed_width(model) + model_recurrent_width(model) * model->recurrent_state;
}

/* Returns the rotation of a sequence of up to `context` tokens. */
static inline const struct rope *model_rope(const struct terse_model *model, uint32_t context) {
    return model->rope_context && context > model->rope_context ? &model->long_rope : &model->rope;
}

/* Returns whether a layer slides. */
static inline bool model_slides(const struct terse_model *model, uint32_t layer) {
    for (uint32_t i = model->layers - model->sliding; model->layer_order && i < model->layers; i++)
        if (model->layer_order[i] == layer) return true;
    return !model->layer_order && model->sliding;
}

/* Returns whether the output of attention goes through a norm before it is added to the residual stream, in all layers alike. */
static inline bool model_normalizes_attention(const struct terse_model *model) {
    return model->layers && model->layer[0].attention_post_norm.gain;
}

/* Returns TERSE_E_FORMAT with the message that numbers at `place` were the first that are NaN or infinite. */
enum terse_status model_not_finite(const struct terse_model *model, uint32_t place, struct terse_error *error);

#endif
