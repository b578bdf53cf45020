/* A model: weights, shape, tokenizer; immutable after load. */
#ifndef TERSE_MODEL_MODEL_H
#define TERSE_MODEL_MODEL_H

#include "base/gguf.h"
#include "base/mapped_file.h"
#include "kernels/rope.h"
#include "model/tokenizer.h"

/* A weight matrix as stored: out[rows] = w in[columns]. */
struct matrix {
    const void *data; /* NULL: the model has no such tensor */
    enum tensor_type type;
    uint32_t rows, columns;
    size_t row_bytes;
};

/* Vectors are F32, converted at load where the file has them otherwise; NULL where the architecture has none. */
struct layer {
    const float *attention_norm, *feed_forward_norm; /* [width] */
    struct matrix q, k, v, o;
    const float *q_bias, *k_bias, *v_bias; /* qwen2 */
    const float *q_norm, *k_norm;          /* [head_dim], qwen3 */
    struct matrix gate, up, down;
};

struct architecture; /* a row of the table in architecture.c */

struct terse_model {
    struct mapped_file file; /* empty when the caller owns the memory */
    struct gguf *gguf;
    struct tokenizer *tokenizer;
    const struct architecture *architecture;
    char name[128]; /* general.name, cut to fit; "" when the file has none */
    uint32_t layers, width, query_heads, kv_heads, head_dim, feed_forward, vocabulary, context;
    float norm_epsilon;
    struct rope rope;
    struct matrix embedding, output; /* output is the embedding when tied */
    const float *output_norm;
    struct layer *layer; /* [layers] */
    void *vectors;       /* the memory of all converted vectors and rope frequencies */
};

#endif
