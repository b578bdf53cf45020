/* Chooses the tokens of a prompt that become anchors.
 *
 * The Anchor Score of a key or value says how far an error in it moves the outputs of the queries that see it (AnTKV, theorem 3.1;
 * with 1/sqrt(hd) left out, on which no ranking depends): with A the exact attention and q_i the query rows of the G heads that
 * share the KV head,
 *     AnS_K[j] = sum_i A_ij (1 - A_ij) ||q_i||_2,     AnS_V[j] = sum_i A_ij
 * over the queries of the step. Tokens that the step seals are ranked by score times ||row - decoded row||_2^2, keys and values
 * apart, in every layer and KV head; of equal ones the older is the better. The theorem bounds by the plain L1 norm; the squared L2
 * norm in its place was chosen by a simulation of the built-in model that is not part of this repository, in which 1 % of anchors
 * gained about twice as much. The method may ask for the L1 norm, or for random scores instead of both (enum terse_anchor_score).
 *
 * Where the plan is `ranked` (SnapKV, section 4), a token's score is instead the attention that the last 32 queries of the
 * step and the G heads pay to it, averaged with its four neighbours', and keys and values have the same anchors.
 *
 * Order within a layer: anchor_scores_begin_layer; for each tile of queries attention leaves its weights, then anchor_scores_add;
 * sealing multiplies by errors (anchor_scores_scale); anchors_choose. Where the plan has no anchors all of these return at once.
 * Results do not depend on the number of threads: attend_prefill adds tiles of queries in order. */
#ifndef TERSE_BACKEND_CPU_KV_ANCHOR_SCORES_H
#define TERSE_BACKEND_CPU_KV_ANCHOR_SCORES_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/state.h"
#include "backend/cpu/partial.h"

/* Reserves memory for the scores of the plan's step. */
enum terse_status anchor_scores_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error);

void anchor_scores_begin_layer(struct cache *cache);
/* Returns whether any of the queries [first, first + count) counts. */
bool anchor_scores_wanted(const struct cache *cache, size_t first, size_t count);

/* A tile of queries leaves these weights for its scores: exp(logit - maximum) against the tokens that the step seals. The maximum is the row's
 * largest logit up to that group of keys. */
struct anchor_weights {
    size_t start, end; /* segments of keys [start, end); none where no scores are wanted */
    uint64_t origin;   /* token of column 0, the first of segment `start`; those before the first that is sealed do not count */
    size_t last;       /* the step's new token whose rows are the last */
    size_t ignored;    /* the first rows, which do not count */
    float *weights;    /* [rows][stride], a column for each token */
    size_t stride;
    float *raised;        /* [end - start][rows]: the maxima */
    float *norms;         /* [rows] */
    const float *queries; /* [rows][hd], scaled */
    struct partial partial;
};
/* Return how many rows a tile of queries has, `most` or as many as keep a thread's memory in bounds, and how many floats they
 * take. */
size_t anchor_weights_rows(const struct plan *plan, size_t most);
size_t anchor_weights_floats(const struct plan *plan, size_t rows);
/* Returns the weights of the step's new tokens [first, first + count), which see the first `segments` segments. They lie in
 * memory[anchor_weights_floats(partial->rows)]. */
struct anchor_weights anchor_weights_of(const struct cache *cache, uint32_t head, size_t first, size_t count, size_t segments,
                                        const float *queries, const struct partial *partial, float *memory);
/* Returns where the weights of segment i of keys and of those after it are to be written, row after row `stride` apart; NULL if
 * they are not wanted. */
float *anchor_weights_at(const struct cache *cache, uint32_t head, const struct anchor_weights *kept, size_t i);
/* Notes what partial.max is now as the maxima of segments [i, end). */
void anchor_weights_raise(struct anchor_weights *kept, size_t i, size_t end);
/* Adds what the queries contribute, once they have met all keys. Overwrites the maxima in `kept`. */
void anchor_scores_add(struct cache *cache, uint32_t head, const struct anchor_weights *kept);

/* Copies the scores of another cache that has seen all queries, instead of computing them, before its layer ends. That cache has
 * taken the same step, and both plans have anchors and seal the same tokens. */
void anchor_scores_copy(struct cache *cache, const struct cache *from);
/* Multiplies the scores of the plan's `count` <= 64 sealed tokens from the i-th on by their errors, or replaces them by random ones. */
void anchor_scores_scale(struct cache *cache, uint32_t head, enum codec_side side, size_t i, size_t count, const float *rows,
                         const float *decoded);
/* Chooses the layer's anchors and stores their rows. Called by all threads of a parallel region; ends with a barrier. */
void anchors_choose(struct cache *cache);

#endif
