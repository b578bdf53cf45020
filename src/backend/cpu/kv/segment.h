/* A tile: up to 64 tokens that lie together, wherever they lie. Attention walks over tiles and never asks what they are.
 *
 * The tiles of a step are, in order: exact rows, rows of a prompt that stayed alone, sealed blocks, the window, and the step's new tokens in full precision. In a step
 * sealed whole (CACHE_STEP_PAPER) the new tokens are among the exact rows and sealed blocks instead. Rows of `q` are queries that
 * were scaled and turned by segment_rotate_query. hd = head_dim; `room` is scratch of the calling thread.
 */
#ifndef TERSE_BACKEND_CPU_KV_SEGMENT_H
#define TERSE_BACKEND_CPU_KV_SEGMENT_H

#include "backend/cpu/kv/state.h"

struct segment {
    enum { SEGMENT_EXACT, SEGMENT_KEPT, SEGMENT_SEALED, SEGMENT_WINDOW, SEGMENT_NEW, SEGMENT_PACKED } kind;
    size_t base;            /* entry of cache->turns.bases */
    uint64_t first;         /* token of slot 0; of SEGMENT_KEPT, whose tokens lie apart, the first row */
    uint32_t begin, end;    /* slots [begin, end) are live */
    const struct set *set;  /* of sealed blocks */
    const uint32_t *places; /* of SEGMENT_PACKED (backend/cpu/kv/select.h) */
    uint8_t *window;        /* of window blocks */
    bool int8_weights;      /* of sealed and packed ones: its weights are such as accumulate_int8 (codec.h) takes */
};

/* Tiles of the step in progress, those of the new tokens included; and without them. */
size_t segment_count(const struct cache *cache);
size_t segment_count_stored(const struct cache *cache);
/* Those before sealed blocks, which are rows. */
size_t segment_count_rows(const struct cache *cache);
/* Those that begin with a token which the step's i-th new token sees. */
size_t segment_count_seen(const struct cache *cache, size_t i);
struct segment segment_at(const struct cache *cache, size_t i);

/* Stored bytes that one reading of all the step's tiles visits in a layer, over all KV heads. */
uint64_t segment_bytes(const struct cache *cache);

/* Sets the angles of the step's tiles and queries, for which rotary_reserve made room for segment_bases() entries. */
size_t segment_bases(const struct cache *cache);
void segment_set_bases(struct cache *cache);

/* Slots [begin, this) are seen by the step's i-th new token. */
static inline uint32_t segment_visible(const struct cache *cache, const struct segment *segment, size_t i) {
    uint64_t seen = cache->plan.before.length + i + 1;
    if (seen >= segment->first + segment->end) return segment->end;
    return seen > segment->first + segment->begin ? (uint32_t)(seen - segment->first) : segment->begin;
}

/* Turns n rows of the step's i-th new token as segment_score and segment_load expect them. */
void segment_rotate_query(const struct cache *cache, size_t i, float *rows, uint32_t n);

/* Where keys are turned as they are read: turns the one in a slot of sealed block i as segment_score's queries expect it; and a turned query
 * of the step, as if all keys were turned by their own positions. */
void segment_rotate_key(const struct cache *cache, size_t i, size_t slot, float *row);
void segment_rotate_to_own(const struct cache *cache, float *query);

/* Position of slot 0 relative to the step's first new token's; the other slots follow. */
int64_t segment_position(const struct cache *cache, const struct segment *segment);

/* ALiBi: row[c] += slope (from + c), `from` the first key's position less the query's. */
static inline void add_slope(float slope, int64_t from, float *row, size_t n) {
    for (size_t c = 0; c < n; c++) row[c] += slope * (float)(from + (int64_t)c);
}

/* logits[rows][64] of q[rows][hd], written at least where slots are live. `tables`: the key codec's, of these queries, or NULL. */
size_t segment_workspace_floats(const struct cache *cache, size_t rows);
void segment_score(const struct cache *cache, const struct segment *segment, uint32_t head, const float *q, const float *tables,
                   size_t rows, float *workspace, float *logits);
/* acc[rows][hd] += weights[rows][64] times the values; weights are 0 where slots are not live, and lost. `tallies`: where a sealed
 * block's weights are to be added up by code instead (codec.h), or NULL. */
void segment_accumulate(const struct cache *cache, const struct segment *segment, uint32_t head, float *weights, size_t rows,
                        float *workspace, float *code_sums, float *acc);

/* Adds slot t's value to all queries' sums and takes its weights away. */
void segment_accumulate_row(const float *value, size_t t, size_t rows, size_t hd, float *weights, float *acc);

/* The first of the step's tokens in order of age, turned as queries expect it; there must be exact rows, or the step brings the
 * first. Once the step's tiles are set. */
void segment_first_key(const struct cache *cache, uint32_t head, float *key);
/* A stored or new token's row as it lies, not in exact rows; room[64][hd]. */
void segment_read_token(const struct cache *cache, uint32_t head, enum codec_side side, uint64_t token, float *workspace,
                        float *row);

/* The live rows themselves, decoded, keys turned: writes end - begin rows; keys and values have room for 64. */
void segment_load(const struct cache *cache, const struct segment *segment, uint32_t head, float *keys, float *values);

#endif
