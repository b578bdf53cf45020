/* Declares the architectures that terse runs: they differ by the data in a row of a table. */
#ifndef TERSE_MODEL_ARCHITECTURE_H
#define TERSE_MODEL_ARCHITECTURE_H

#include "model/model.h"

/* A presence says whether files of an architecture have a kind of tensor. */
enum presence { PRESENCE_NONE, PRESENCE_OPTIONAL, PRESENCE_REQUIRED };

struct architecture {
    const char *name; /* general.architecture, and the prefix of its metadata keys */
    enum norm_kind norm;
    enum activation activation;

    /* A model encodes positions in any of these ways. */
    bool rotary;               /* RoPE of queries and keys */
    enum rope_pairing pairing; /* of it */
    bool alibi;                /* attention.max_alibi_bias, 0 for a model without */
    enum presence positions;   /* position_embd.weight, a learned vector for each */

    bool fused_qkv;  /* attn_qkv instead of attn_q, attn_k, attn_v: their rows one after the other */
    bool fused_gate; /* ffn_up holds the rows of ffn_gate, then its own */
    bool parallel;   /* attention and feed-forward layer read the same norm of what enters a layer, and are added to it together */
    enum presence qkv_bias; /* of those */
    enum presence bias;     /* of the other linear layers */
    bool norm_bias;         /* and of norms */
    bool learned_sinks;     /* attn_sinks.weight: a logit for each query head, of a key without a value */
    bool late_norm_name;    /* ffn_norm is called post_attention_norm */
    bool yarn_unrounded;    /* the ends of yarn's ramp lie between pairs */
    enum presence experts;  /* feed-forward layers of experts, where metadata expert_count says how many */
    bool shared_expert;     /* and one for all tokens beside them */
    bool shares_of_all;     /* experts' shares are their probabilities among all, not among those chosen */
    enum presence qk_norm;  /* attn_{q,k}_norm.weight: a norm of each head of q and k before rotation, */
    bool norm_by_head;      /* with a gain for each head of its own */
    bool gated_heads;       /* attn_q has a gate for each head behind its queries: the head's output is times the gate's sigmoid */
    bool recurrent;         /* all layers but every full_attention_interval-th are recurrent */
    bool latents;           /* attention is multi-head latent attention: struct latents */
    bool routing_in_file;   /* metadata say how experts are chosen (struct routing), and that the first layers have none */
    bool tiled_heads;       /* of such layers: struct recurrent */
    bool next_layers;       /* the last nextn_predict_layers layers predict tokens after the next one: they are left out */
    bool post_norms;        /* post_attention_norm and post_ffw_norm: of what is added to the hidden state */
    bool scaled_embedding;  /* embeddings are multiplied by sqrt(width) */

    /* These values hold where the file leaves them out, as files of some architectures do. */
    uint32_t window;         /* attention.sliding_window; 0: there is none */
    uint32_t window_pattern; /* all layers but every so many-th slide; 0: all do */
    float sliding_base;      /* RoPE's base in sliding layers, which is not scaled; 0: they rotate as the others do */
    float attention_cap, logit_cap;
    uint32_t
        scaled_by_width; /* with so many layers, attention scales by 1 / sqrt(width / query heads), not by 1 / sqrt(head_dim) */
};

/* Reads general.architecture. An unknown one is TERSE_E_UNSUPPORTED, and the message names those that are supported. */
enum terse_status architecture_find(const struct gguf *gguf, const struct architecture **architecture, struct terse_error *error);

#endif
