/* A pass is the data of a step on its way through the model. executor.c begins and ends passes, forward.c advances them.
 *
 * The parts of a step are computed in micro-batches. Parts of few tokens go together, each token by itself (linear.h); every longer
 * part goes alone, in panels of tokens. In matrices of activations a token is a row. */
#ifndef TERSE_BACKEND_CPU_PASS_H
#define TERSE_BACKEND_CPU_PASS_H

#include "backend/backend.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/latents.h"
#include "dist/collective.h"

#define PANEL_MOST 512 /* tokens of a panel */

/* Scratch is memory that holds nothing from piece to piece. */
struct scratch {
    size_t rows;   /* of logits */
    float *logits; /* [rows][vocabulary] */
    float *tile;   /* linear()'s scratch */
};

struct executor {
    const struct terse_model *model;
    const struct kv_ops *kv;
    uint32_t threads;
    size_t few; /* tokens of a part up to which each of them is multiplied by itself */
    struct scratch scratch;
    size_t passes;      /* on their way */
    struct pass *spare; /* one that has ended, for the sake of its memory */
};

/* A sequence is a part of the step, and says where its tokens lie among those of the pass. */
struct sequence {
    struct step_part part;
    size_t first;
    size_t needed;   /* its tokens from here on have logits computed */
    size_t attended; /* and its tokens from here on go past the keys and values of the last layer */
    size_t kept;     /* the row of token `needed` once the layers are done */
    uint64_t length; /* of the cache before the step */
};

/* Micro-batches go through the model one after another, since a batch has more tokens than are computed together (llama.cpp:
 * ubatch). */
struct micro_batch {
    struct sequence *sequences;
    size_t n_sequences;
    size_t first, count; /* tokens; at most PANEL_MOST if they go each by itself */
    bool each;
};

/* A panel is tokens of a micro-batch that are computed together. */
struct panel {
    const struct micro_batch *micro_batch;
    size_t first, count;
    size_t first_query; /* of which token the activations' q begin with the queries */
};

/* These are the activations of a panel. */
struct activations {
    size_t rows;
    float *normed; /* [rows][width] */
    float *q;      /* [rows][Hq][hd] */
    float *out;    /* the same, or of a recurrent layer [rows][value heads][state] */
    float *inner;  /* [rows][feed_forward] */
    /* These are empty where one rank computes. */
    float *kept; /* the heads' outputs of a panel, while others attend: as `out`, or as latents.heads */
    float *
        shares; /* [1 + ranks][piece][width], of which a panel has as many pieces as there are ranks: hidden states, of this rank and of all */
    float *factor; /* the same; empty without a gate */
    struct routes routes;
    struct latent_rows latents; /* empty where attention has none */
    /* These are empty where no heads are gated and no layer is recurrent. */
    float *mixed; /* [rows][Hq][queries hd, gate hd], or a recurrent layer's [rows][mixed width] */
    float *gate;  /* of each number of `out` */
    float *
        beta; /* of a recurrent layer, [2][rows][value heads], the second half alpha's; where these are one product, [rows][2 value heads] */
};

/* These are the stages of a layer, and then of the logits, in the order in which tokens pass through them. */
enum stage {
    STAGE_KEYS,    /* product: keys and values of a panel (of tokens each by itself, queries too); all of them go to the cache */
    STAGE_OBSERVE, /* product: queries of a panel, which are shown to the cache */
    STAGE_QUERIES, /* product: queries of a panel, or their latents */
    STAGE_RANKED,  /* product: queries of their latents, where they have some */
    STAGE_ABSORB,  /* products: the caches' queries of those of the heads, where keys are latents */
    STAGE_MIXED,   /* product: of a recurrent layer, in place of those before and of the next but one */
    STAGE_RECUR,   /* the layer's states take the panel's tokens in */
    STAGE_ATTEND,  /* they attend */
    STAGE_EXPAND,  /* products: the heads' outputs, where values are latents */
    STAGE_O_PROJ,  /* product: the heads' outputs become one row */
    STAGE_UP_GATE, /* product: the feed-forward layer's first half */
    STAGE_DOWN,    /* product: its second; the next panel's queries follow */
    STAGE_EXPERTS, /* products: in place of the last two, where a layer has experts */
    STAGE_SEAL,    /* the cache seals the layer */
    STAGE_OUTPUT   /* after the last layer: logits */
};

struct pass {
    struct executor *executor;
    size_t capacity;  /* tokens of hidden, k, v */
    float *hidden;    /* [tokens][width] */
    float *k, *v;     /* [tokens][Hk][hd]; v is k where values are latents, of which keys end */
    size_t sequences; /* capacity of the three */
    struct sequence *sequence;
    struct cache **cache; /* of the same sequences */
    struct micro_batch *micro_batch;
    struct activations activations;

    size_t n, n_sequences, n_micro_batches;
    /* The pass continues here: with a layer of a micro-batch and, unless the micro-batch goes token by token, with a stage of that layer. */
    size_t at;
    struct kv_batch batch; /* the micro-batch's caches */
    uint32_t layer;
    enum stage stage;
    struct panel panel; /* the stage's */
    /* Ranks share what follows the keys and values of a layer: forward.c. */
    struct collective *ranks; /* NULL: there is one */
    struct panel group; /* the panels that ranks have together, one of each; count 0: the stage's panel is computed by all ranks */
    struct panel own;   /* this rank's; count 0: it has none */
    bool paused;        /* a piece may end here */
    uint32_t item;      /* of the stage's product the ones before are done: linear_some() */
};

#endif
