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
 * Order within a layer: anchors_begin_layer; for each panel of queries attend_many with anchors_statistics, then anchors_score;
 * sealing multiplies by errors; anchors_choose. Only the first and the last need to be called when the plan has no anchors (they
 * return at once). Results do not depend on the number of threads: every score has one writer, who adds in order.
 */
#ifndef TERSE_CACHE_ANCHORS_H
#define TERSE_CACHE_ANCHORS_H

#include "cache/state.h"

/* Bytes of an anchor of one side. */
static inline uint64_t anchor_bytes(uint32_t head_dim) { return sizeof(uint32_t) + head_dim * sizeof(uint16_t); }

/* Memory for the plan's anchors behind those that are there, and to find them. */
enum terse_status anchors_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error);

void anchors_begin_layer(struct cache *cache);
/* Whether any of the queries [first, first + count) matters to the choice. */
bool anchors_listen(const struct cache *cache, size_t first, size_t count);
/* Where attend_many is to leave what anchors_score reads; NULL when the plan has no anchors. */
const struct row_statistics *anchors_statistics(struct cache *cache);
/* Adds what the queries q[count][Hq][hd] of the new tokens from `first` on contribute. */
void anchors_score(struct cache *cache, const float *q, size_t first, size_t count);
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
