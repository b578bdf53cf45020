/* Reads segments: scores and weighted sums of a few queries, on the codes where the codec allows it, and the rows themselves for
 * many. It serves every kind of segment but SEGMENT_GATHERED (gather.h).
 *
 * Rows of `q` are queries scaled and rotated by query_rows.h. hd = head_dim. */
#ifndef TERSE_BACKEND_CPU_KV_SEGMENT_READ_H
#define TERSE_BACKEND_CPU_KV_SEGMENT_READ_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kv/segment.h"

/* A head_reader is a KV head of the layer that is attended to, as one thread reads its segments by a few queries. */
struct head_reader {
    const struct cache *cache;
    uint32_t head;
    size_t rows;                     /* queries */
    const float *q;                  /* [rows][hd] */
    const float *tables;             /* what the key codec prepared of q, or NULL; NULL where pages hold keys in runs */
    struct codec_shape keys, values; /* of sealed pages of the rate `rate` */
    uint32_t rate;
    const float *pre_rope_mean; /* side_pre_rope_mean */
    float *workspace;
    /* These serve pages that hold keys in rope runs: the queries rotated to the run that was read last, and what the key codec
     * prepared of them. */
    float *in_run, *run_tables; /* run_tables: NULL where the codec prepares nothing */
    float *position_products;   /* of the same queries, where keys have a mean before rotation */
    int64_t run;                /* its position; INT64_MIN: none yet */
};
/* Makes a reader; `memory` of head_reader_floats stays its own. */
struct head_reader head_reader_of(const struct cache *cache, uint32_t head, const float *q, size_t rows, const float *tables,
                                  float *memory);
/* Makes the reader read sealed pages of this rate; at first it reads those of rate 0. */
void head_reader_set_rate(struct head_reader *reader, uint32_t rate);
size_t head_reader_floats(const struct cache *cache, uint32_t layer, uint32_t head, size_t rows);

/* Computes logits[rows][64], written at least where slots are live. */
void segment_score(struct head_reader *reader, const struct segment *segment, float *logits);
/* Computes logits[rows][64] of a page of keys in a rope run, whose position is that of `base`, on their codes. */
void segment_score_in_run(struct head_reader *reader, const void *page, size_t base, float *logits);
/* Computes acc[rows][hd] += weights[rows][64] times the values; weights are 0 where slots are not live, and are overwritten.
 * `code_sums` is where a sealed page's weights are to be summed by code instead (codec.h), or NULL. */
void segment_accumulate(const struct head_reader *reader, const struct segment *segment, float *weights, float *code_sums,
                        float *acc);
/* Does the same with the weights exp(logits[rows][64] - largest[rows]), whose sums are added to sums[rows], where segment.as_logits
 * says so. */
void segment_accumulate_logits(const struct head_reader *reader, const struct segment *segment, const float *logits,
                               const float *largest, float *code_sums, float *sums);
/* Returns whether a sealed page whose slots are all live can be read as logits: its values take logits, and none of them is an anchor. */
bool segment_takes_logits(const struct head_reader *reader, const struct segment *segment);
/* Does the same for a page on its codes, as segment.int8_weights says. */
void segment_accumulate_page(const struct head_reader *reader, const void *page, bool int8_weights, const float *weights,
                             float *code_sums, float *acc);
/* Does the same for the value of slot t alone, whose weights become 0. */
void segment_accumulate_row(const float *value, size_t t, size_t rows, size_t hd, float *weights, float *acc);

/* Loads the live rows themselves, one after another, decoded, keys rotated; keys and values have room for 64. */
void segment_load(const struct cache *cache, const struct segment *segment, uint32_t head, float *keys, float *values);

/* Loads the key of the oldest of the step's tokens, rotated as queries expect it; there must be exact rows, or the step brings the
 * first. */
void segment_first_key(const struct cache *cache, uint32_t head, float *key);
/* Reads the row of a stored or new token as it is stored, not of exact rows; workspace[64][hd]. */
void segment_read_token(const struct cache *cache, uint32_t head, enum codec_side side, uint64_t token, float *workspace,
                        float *row);

#endif
