/* A backend computes a model. This interface parts what is the same everywhere (models, methods, sessions, plans) from what each
 * kind of processor does its own way (weights, pages, kernels, threads).
 *
 * A backend is two tables of functions, as coarse as a GPU wants them: one computes a whole step of a model, the other keeps the KV
 * cache of a sequence, layer by layer. Nothing outside a backend's folder knows its kernels, its memory or its threads. The CPU
 * backend with scalar kernels is the reference for the others.
 *
 * A step goes the same way on all backends. The executor begins every sequence's cache (kv_ops.begin) and joins those that go
 * through the layers together to a batch; for each layer it appends the batch's keys and values, shows queries to policies
 * (observe), attends and seals; and it commits every cache at last. The backend's caches decide how a batch is read, by the codes
 * or by rows, and what is done when; the executor decides which sequences go together, in which panels of rows, and when work is
 * interrupted. It reaches caches through the table alone, so that a table of one's own can stand between (bench/experiments
 * observes caches so). */
#ifndef TERSE_BACKEND_BACKEND_H
#define TERSE_BACKEND_BACKEND_H

#include "backend/learning.h"
#include "kv/plan.h"
#include "kv/shape.h"
#include "model/model.h"

struct executor;   /* a model on a backend: weights in its form, activations, threads; made by executor_ops.load */
struct pass;       /* a step on its way through the model; made by executor_ops.begin */
struct cache;      /* of one sequence; made by parts_create (kv/parts.h) */
struct kv_storage; /* kv/cache.h */

#define TOP_LOGITS 256

struct token_logit {
    float logit;
    int32_t token;
};

/* A device_logits is a row of logits that stays where the backend computes, with the part of it that suffices for most choices of a
 * token. */
struct device_logits {
    void *row; /* the backend's; NULL: it holds none */
    /* The tokens with the highest logits; of equal ones the first, in order of their tokens; NaN counts as the least. */
    struct token_logit top_logits[TOP_LOGITS];
    size_t n; /* 0: the step has written last_logits instead; else the smaller of TOP_LOGITS and the vocabulary */
};

/* A step_part holds the tokens of one sequence in a step. */
struct step_part {
    struct cache *cache; /* of this backend, for this model */
    enum cache_step_kind kind;
    const int32_t *tokens; /* [n], in the vocabulary */
    size_t n;              /* at least 1 */
    float *last_logits;    /* [vocabulary] of the last token, written when it is through the model; NULL: not wanted */
    /* If last_logits is set, the logits may stay here with the backend, by its choice for each step. executor_ops.hold makes it;
     * NULL: they may not stay. */
    struct device_logits *held;
    /* The pass calls this on the thread that advances it, in the order of the tokens: logits[count][vocabulary] of the part's
     * tokens from `first` on, valid during the call. NULL: they are not wanted. */
    void (*rows)(void *user, size_t first, size_t count, const float *logits);
    size_t first_row; /* rows before this one are not computed, but for the last token's */
    void *user;
};

/* A step holds tokens of several sequences that pass through the model together, so that its weights are read once. A part's
 * results do not depend on the others, bit for bit. */
struct step {
    const struct step_part *parts; /* [n], their caches all different */
    size_t n;                      /* at least 1 */
};

struct step_progress {
    uint64_t done, total;
};

/* A kv_batch lists sequences that go through the layers of a step together, each of which has begun it. The batch's rows are the
 * tokens of caches[0], then those of caches[1], and so on. A sequence's results do not depend on the others, bit for bit. */
struct kv_batch {
    struct cache *const *caches; /* [n], all different; work is shared out best with the longest first */
    size_t n;                    /* at least 1 */
    struct batch_memory *memory; /* of the backend, which one batch at a time may have; the CPU: NULL */
};

/* A kv_rows holds rows of a batch on their way through a layer, in memory of the backend: of the host for the CPU, of the device
 * for a GPU. Keys and queries are not rotated yet. */
struct kv_rows {
    uint32_t layer;
    size_t first, count; /* rows [first, first + count) of the batch */
    float *k;            /* [count][Hk][hd]; may be rotated in place */
    const float *v;      /* [count][Hk][hd] */
    float *q;            /* [count][Hq][hd]; a GPU's may be rotated in place */
    float *out;          /* [count][Hq][hd], which may be q */
};

/* Returns those of the rows that are among rows [begin, end) of the batch. */
static inline struct kv_rows kv_rows_within(const struct kv_rows *rows, size_t begin, size_t end, const struct cache_shape *shape) {
    if (begin < rows->first) begin = rows->first;
    if (end > rows->first + rows->count) end = rows->first + rows->count;
    if (begin >= end) return (struct kv_rows){rows->layer, 0, 0, NULL, NULL, NULL, NULL};
    const size_t kv = (begin - rows->first) * cache_shape_kv_width(shape),
                 q = (begin - rows->first) * cache_shape_query_width(shape);
    return (struct kv_rows){.layer = rows->layer,
                            .first = begin,
                            .count = end - begin,
                            .k = rows->k ? rows->k + kv : NULL,
                            .v = rows->v ? rows->v + kv : NULL,
                            .q = rows->q ? rows->q + q : NULL,
                            .out = rows->out ? rows->out + q : NULL};
}

/* A kv_ops is the steps of a backend's caches, and their memory. What can be done with a cache between steps is the same on all
 * backends: kv/parts.h has it. */
struct kv_ops {
    const struct kv_storage *storage; /* by which src/kv keeps its caches (kv/parts.h) */
    /* Reserves all that a step of n tokens of the sequence needs. */
    enum terse_status (*begin)(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error);
    /* Makes a batch of caches that have begun a step. The executor calls it before the batch's first layer, and again when another
     * batch has had its memory. TERSE_E_ARGUMENT if their steps cannot go together. */
    enum terse_status (*join)(const struct kv_batch *batch, struct terse_error *error);
    /* Takes k and v of a layer: the CPU all rows at once, which stay until seal; a GPU in order, in one call or several. If q is
     * given, these are the same tokens' queries, which attend next, as this call leaves them; NULL: they come later. */
    enum terse_status (*append)(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
    /* Returns, after append, the end of the rows whose queries must be shown to `observe`, or attend, before later ones attend;
     * rows before *first need not be shown. The first `needed` rows will not attend: 0 for a batch of several. */
    size_t (*queries_to_observe)(const struct kv_batch *batch, size_t needed, size_t *first);
    /* Shows queries q to policies: in order and each row once. */
    enum terse_status (*observe)(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
    /* Writes `out` of queries q. */
    enum terse_status (*attend)(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error);
    /* Does a part, of bounded length, of what attend has to do for the same rows, which come to attend next. Returns false where no
     * such part is left. NULL: attend does all of it. */
    bool (*attend_some)(const struct kv_batch *batch, const struct kv_rows *rows);
    /* Does a part, of bounded length, of what seal has to do. Returns false where no such part is left. NULL: seal does all of
     * it. */
    bool (*seal_some)(const struct kv_batch *batch);
    /* Ends a layer: encodes what the step seals of it and moves the rest to the window. */
    enum terse_status (*seal)(const struct kv_batch *batch, uint32_t layer, struct terse_error *error);
    enum terse_status (*commit)(struct cache *cache, struct terse_error *error);

    /* Appends n tokens of normally distributed keys and values, for benchmarks at depth. */
    enum terse_status (*fill_random)(struct cache *cache, size_t n, uint64_t seed, struct terse_error *error);
};

struct executor_ops {
    /* Returns TERSE_OK if this machine has what the backend needs (a processor's instructions, a device); the message says what is
     * missing. */
    enum terse_status (*available)(struct terse_error *error);
    /* Returns the name of the kernels that this machine computes with, where there are several: ranks must have the same. NULL: there is one kind. */
    const char *(*kernels)(void);
    /* Returns TERSE_OK if such models, with weights of such types, are computed; TERSE_E_UNSUPPORTED says why not. NULL: all are. */
    enum terse_status (*supports)(const struct terse_model *model, struct terse_error *error);
    /* Takes a model that is supported, which outlives the executor, in the form in which it is computed; steps reach caches through `kv`. `threads`
     * are those of the thread that calls all functions below. */
    enum terse_status (*load)(const struct terse_model *model, const struct kv_ops *kv, uint32_t threads,
                              struct executor **executor, struct terse_error *error);
    void (*unload)(struct executor *executor); /* accepts NULL */
    /* Lets caches whose pages are dealt to these ranks exchange data of the backend's memory. All ranks call it together, before they
     * load. It fails alike on all. NULL: that memory is the host's. */
    enum terse_status (*connect)(struct collective *ranks, struct terse_error *error);
    /* Makes a profile of codec transform (format/transform.h) from the model's weights alone, for caches that are given none;
     * terse_codebook_free releases it. NULL: the CPU's function serves. */
    enum terse_status (*weight_profile)(const struct terse_model *model, struct terse_codebook **profile,
                                        struct terse_error *error);
    /* hold makes held->row, for any number of steps; release frees it. All three are NULL where logits are never held. */
    enum terse_status (*hold)(struct executor *executor, struct device_logits *held, struct terse_error *error);
    void (*release)(struct executor *executor, struct device_logits *held); /* accepts one without a row */
    /* Copies logits[vocabulary] of the row, as the last finished step has left it. May be called on any thread, beside steps of
     * others. */
    enum terse_status (*fetch)(const struct executor *executor, const struct device_logits *held, float *logits,
                               struct terse_error *error);
    /* Begins a step: reserves all that it needs, in the executor and in the caches. What `step` points to outlives the pass.
     * Several passes may be under way at once if their caches all differ. A failure leaves every cache as it was; *failed is the
     * part at fault, step->n where no part is. */
    enum terse_status (*begin)(struct executor *executor, const struct step *step, struct pass **pass, size_t *failed,
                               struct terse_error *error);
    /* Does the next piece of the work, of bounded length: some hundredths of a second where work is long. */
    enum terse_status (*advance)(struct pass *pass, struct terse_error *error);
    /* Returns how much of the work is done, in layers times tokens. The step has succeeded when all of it is done. */
    struct step_progress (*progress)(const struct pass *pass);
    /* Ends a pass, finished or not; accepts NULL. An unfinished pass leaves its caches within the step: as they were before if no
     * layer was finished, and otherwise to be rewound or reset. */
    void (*end)(struct pass *pass);
};

struct backend {
    const char *name; /* "cpu" */
    const struct executor_ops *executor;
    const struct kv_ops *kv;
    const struct learning_ops *learning; /* NULL: the CPU's serve (train/window_ops.h) */
};

/* backend/cpu/backend.c defines this table. */
extern const struct backend backend_cpu;

#endif
