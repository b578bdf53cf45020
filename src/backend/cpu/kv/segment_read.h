/* Reading segments: scores and weighted sums of a few queries, on the codes where the codec allows it, and the rows themselves for
 * many. Serves every kind of segment but SEGMENT_GATHERED (gather.h).
 *
 * Rows of `q` are queries scaled and rotated by query_rows.h. `workspace` is memory of the calling thread. hd = head_dim.
 */
#ifndef TERSE_BACKEND_CPU_KV_SEGMENT_READ_H
#define TERSE_BACKEND_CPU_KV_SEGMENT_READ_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/segment.h"

/* Floats of workspace that segment_score and segment_accumulate need. */
size_t segment_workspace_floats(const struct cache *cache, size_t rows);

/* logits[rows][64] of q[rows][hd], written at least where slots are live. `tables`: the key codec's, of these queries, or NULL. */
void segment_score(const struct cache *cache, const struct segment *segment, uint32_t head, const float *q, const float *tables,
                   size_t rows, float *workspace, float *logits);
/* acc[rows][hd] += weights[rows][64] times the values; weights are 0 where slots are not live, and are overwritten. `code_sums`:
 * where a sealed page's weights are to be summed by code instead (codec.h), or NULL. */
void segment_accumulate(const struct cache *cache, const struct segment *segment, uint32_t head, float *weights, size_t rows,
                        float *workspace, float *code_sums, float *acc);
/* The same for the value of slot t alone, whose weights become 0. */
void segment_accumulate_row(const float *value, size_t t, size_t rows, size_t hd, float *weights, float *acc);

/* The live rows themselves, decoded, keys rotated: writes end - begin rows; keys and values have room for 64. */
void segment_load(const struct cache *cache, const struct segment *segment, uint32_t head, float *keys, float *values);

/* The oldest of the step's tokens, rotated as queries expect it; there must be exact rows, or the step brings the first. */
void segment_first_key(const struct cache *cache, uint32_t head, float *key);
/* The row of a stored or new token as it is stored, not of exact rows; workspace[64][hd]. */
void segment_read_token(const struct cache *cache, uint32_t head, enum codec_side side, uint64_t token, float *workspace,
                        float *row);

#endif
