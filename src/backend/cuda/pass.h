/* Declares the data of a step on its way through the model. executor.c begins and ends passes, forward.c advances them.
 *
 * Parts whose caches decode (kv/step.h) go through the model together, each row by itself, in one piece, as a CUDA graph where such
 * a step came before; every other part goes alone, in panels of rows, layer by layer. All is queued on device_stream(), so that
 * passes can share the executor's activations: these hold nothing from piece to piece. */
#ifndef TERSE_BACKEND_CUDA_PASS_H
#define TERSE_BACKEND_CUDA_PASS_H

#include "backend/backend.h"
#include "backend/cuda/expert_kernels.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/kv/batch.h"
#include "backend/cuda/model.h"

#define GROUP_ROWS 64   /* of decoding parts that go together */
#define PANEL_MOST 2048 /* rows of a panel */
#define GEMM_ROWS 65    /* products of so many rows of a panel or more convert weights to halves */
#define GRAPHS 16       /* that are kept */
#define PIECES_AHEAD 2  /* pieces of work that may be queued */

/* Rows of a panel that are routed to experts together lie in slots: expert_kernels.h. NULL where a model has no experts. */
struct expert_rows {
    struct expert_routes routes;
    struct device_vectors vectors; /* of all slots */
    float *inner, *factor;         /* [slots][inner width of an expert] */
    float *made;                   /* [slots][width] */
    float *gate;                   /* [rows], of the shared expert */
};
#define EXPERT_ROWS 256 /* that are routed together at most */

/* Returns how many rows are routed together; 0 where there are no experts. */
static inline size_t pass_expert_rows(const struct terse_model *model) {
    const size_t most = model->experts ? EXPERT_PAIRS / model->experts_used : 0;
    return most < EXPERT_ROWS ? most : EXPERT_ROWS;
}

/* Activations are device memory for rows of a panel or a group. */
struct activations {
    size_t rows;
    float *hidden;         /* [rows][width], of a group */
    float *q, *k, *v;      /* [rows][Hq][hd], [rows][Hk][hd] */
    float *out;            /* [rows][Hq][hd] */
    float *inner, *factor; /* [rows][feed_forward]; factor: without a gate NULL */
    float *product;        /* [rows][width], before it is added to hidden */
    void *halves;          /* [rows][the widest input] */
    float *sizes;          /* [rows] */
    struct expert_rows experts;
};

/* The logits of these rows are computed together. */
struct logits {
    size_t rows;
    float *device, *host; /* [rows][vocabulary]; host: page-locked */
    float *hidden;        /* [rows][width] */
};

/* A top_logits has the likeliest tokens of a group's rows. */
struct top_logits {
    struct token_logit *parts, *device; /* as struct find_top_logits has them, of GROUP_ROWS rows */
    struct token_logit *host;           /* [GROUP_ROWS][TOP_LOGITS], page-locked */
};

/* A group_input is the input that a group's kernels read. */
struct group_input {
    int32_t tokens[GROUP_ROWS], positions[GROUP_ROWS];
    uint32_t kept[GROUP_ROWS]; /* rows whose logits are wanted */
    float *held[GROUP_ROWS];   /* of these: where they stay on the device, or NULL */
};

/* A step_graph has a decoding step's kernels, for steps that launch the same. */
struct step_graph {
    uint64_t key;           /* of batch_key and the numbers of rows */
    cudaGraphExec_t launch; /* NULL: such a step came once, and is captured when it comes again */
    uint64_t used;          /* when: executor.steps */
};

struct executor {
    const struct terse_model *model;
    const struct kv_ops *kv;
    struct device_model weights;
    struct gemm *gemm;
    struct batch_memory *batch; /* of the group that decodes */
    struct device_vectors each; /* EACH_MOST rows */
    struct activations activations;
    struct logits logits;
    struct top_logits top_logits;
    struct group_input *input, *staged; /* on the device, and the host's copy */
    uint32_t *not_finite,
        *seen;        /* on the device, and the host's copy: where numbers were not finite (rows.h), UINT32_MAX: nowhere */
    cudaEvent_t sent; /* `staged` may be written again */
    cudaEvent_t piece[PIECES_AHEAD]; /* the ends of pieces */
    uint64_t pieces, steps;
    struct step_graph graph[GRAPHS];
};

/* A sequence is a part of the step. */
struct sequence {
    struct step_part part;
    size_t first;    /* row of its group */
    size_t needed;   /* its tokens from here on have logits computed */
    bool holds;      /* its last token's logits stay on the device, and others are not wanted */
    size_t kept;     /* their first row among those of its group whose logits are computed */
    uint64_t length; /* of the cache before the step */
};

/* Groups go through the model one after another. */
struct group {
    struct sequence *sequences;
    size_t n_sequences;
    size_t rows, kept;
    bool decodes;
    bool holds, fetches; /* some of its logits stay on the device; some do not */
};

/* A group that does not decode passes through a layer in these stages. */
enum stage {
    STAGE_KEYS,    /* keys and values of a panel go to the cache */
    STAGE_OBSERVE, /* a panel's queries are shown to policies, before any attends */
    STAGE_QUERIES, /* a panel passes through the rest of the layer */
    STAGE_SEAL,    /* the cache seals the layer */
    STAGE_OUTPUT   /* after the last layer: logits */
};

struct pass {
    struct executor *executor;
    struct sequence *sequence; /* [n_sequences] */
    struct group *group;       /* [n_groups] */
    struct cache **cache;      /* [n_sequences] of the same */
    size_t n_sequences, n_groups, n;
    /* This is device memory for the largest group that does not decode; NULL if all groups decode. */
    size_t capacity;
    float *hidden;               /* [capacity][width] */
    int32_t *tokens, *positions; /* [capacity] */
    bool notes_residual;         /* some cache wants to know how large the residual stream is: */
    int64_t *residual;           /* [n_groups][layers] the sums */
    /* Ranks share what follows the keys and values of a layer (forward.c). */
    struct collective *ranks; /* NULL: there is one */
    size_t share_floats;
    float *shares; /* [share_floats], on the device: what ranks exchange together; NULL: they share nothing */

    /* The pass continues here. */
    size_t at, before;     /* a group, and rows of those before it */
    struct kv_batch batch; /* the group's caches */
    uint32_t layer;
    enum stage stage;
    size_t row; /* the panel's first */
};

#endif
