/* Anchors: which tokens of a prefill stay exact, and their rows.
 *
 * The Anchor Score of a key or value says how far an error in it moves the outputs of the queries that see it (AnTKV, theorem 3.1; with
 * 1/sqrt(hd) left out, which no ranking depends on): with A the exact attention and q_i the query rows of the G heads that share the
 * KV head,
 *     AnS_K[j] = sum_i A_ij (1 - A_ij) ||q_i||_2,     AnS_V[j] = sum_i A_ij
 * taken over the queries of the step. Tokens that the step seals are ranked by score times ||row - decoded row||_2^2, keys and values
 * apart, in every layer and KV head; equal ones by age. The theorem bounds by the plain L1 norm; its square in place of it keeps the
 * tail shorter: in a simulation of the built-in model 1 % of anchors gained about twice as much.
 *
 * Where the policy has votes (SnapKV, section 4), a token's score is instead the attention that the last 32 queries of the step and
 * the G heads give it, averaged with its four neighbours', and keys and values have the same anchors.
 *
 * Order within a layer: anchors_begin_layer; for each tile of queries attention leaves its weights, then anchors_score; sealing
 * multiplies by errors; anchors_choose. All return at once when the plan has no anchors. Results do not depend on the number of
 * threads: tiles of queries are scored in the order of attend_prefill's loop.
 */
#ifndef TERSE_BACKEND_CPU_KV_ANCHORS_H
#define TERSE_BACKEND_CPU_KV_ANCHORS_H

#include "backend/cpu/kv/state.h"
#include "kv/partial.h"

/* Bytes of an anchor of one side. */
static inline uint64_t anchor_bytes(uint32_t head_dim) { return sizeof(uint32_t) + head_dim * sizeof(uint16_t); }

/* Memory for the plan's anchors behind those that are there, and to find them. */
enum terse_status anchors_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error);

void anchors_begin_layer(struct cache *cache);
/* Whether any of the queries [first, first + count) matters to the choice. */
bool anchors_listen(const struct cache *cache, size_t first, size_t count);

/* What a tile of queries leaves for its scores: exp(logit - maximum) against the tokens that the step seals, where the maximum is
 * the row's largest logit up to that tile of keys. */
struct anchor_weights {
    size_t start, end; /* tiles of keys [start, end); none where nothing is asked for */
    size_t last;       /* the step's new token whose rows are the last */
    size_t silent;     /* the first rows, which do not count */
    float *weights;    /* [rows][stride], a column for each token */
    size_t stride;
    float *raised;        /* [end - start][rows]: the maxima */
    float *norms;         /* [rows] */
    const float *queries; /* [rows][hd], scaled */
    struct partial partial;
};
/* Rows of a tile of queries, `most` or as many as keep a thread's memory in bounds, and the floats that they take. */
size_t anchor_weights_rows(const struct plan *plan, size_t most);
size_t anchor_weights_floats(const struct plan *plan, size_t rows);
/* Of the step's new tokens [first, first + count), which see the first `tiles` tiles, in memory[anchor_weights_floats(partial->rows)]. */
struct anchor_weights anchor_weights_of(const struct cache *cache, size_t first, size_t count, size_t segments,
                                        const float *queries, const struct partial *partial, float *memory);
/* Where the weights of tile i of keys and of those after it go, row after row `stride` apart; NULL if they are not asked for. */
float *anchor_weights_at(const struct cache *cache, const struct anchor_weights *kept, size_t i);
/* Notes what partial.max is now as the maxima of tiles [i, end). */
void anchor_weights_raise(struct anchor_weights *kept, size_t i, size_t end);
/* Adds what the queries contribute, once they have met all keys. `kept` loses its maxima. */
void anchors_score(struct cache *cache, uint32_t head, const struct anchor_weights *kept);

/* Instead of queries: the scores of another cache that has seen them all, before its layer ends. It has taken the same step, and both
 * plans have anchors and seal the same tokens. */
void anchors_share(struct cache *cache, const struct cache *from);
/* Multiplies the scores of the plan's `count` <= 64 sealed tokens from the i-th on by their errors. */
void anchors_weigh(struct cache *cache, uint32_t head, enum codec_side side, size_t i, size_t count, const float *rows,
                   const float *decoded);
/* Chooses the layer's anchors and copies their rows. */
void anchors_choose(struct cache *cache);

/* Anchors of one side of a layer and head whose tokens lie in [first, end): rows [from, to) of `tokens` and `rows`. */
struct anchor_range {
    const uint32_t *tokens; /* [.] */
    const uint16_t *rows;   /* [.][hd] */
    size_t from, to;
};
struct anchor_range anchors_all(const struct cache *cache, enum codec_side side, uint32_t head);
struct anchor_range anchors_between(const struct cache *cache, enum codec_side side, uint32_t head, uint64_t first, uint64_t end);

#endif
