/* Index: finds tokens worth reading without reading them. A step scores all tokens of a KV head by a few bytes each, keeps the best
 * (backend/cpu/kv/top_k.h) and reads only those. An index stands beside any codec; the codec `sign` is its own: its blocks of keys begin with
 * index_sign's.
 *
 * An index is stateless and knows nothing of tokens, masks or policies; it takes keys as queries meet them, after rotation. What it
 * learns, it learns while it runs, from the first keys of a sequence that are sealed, for each layer and KV head; whoever keeps the
 * blocks keeps that too. Shapes: hd = head_dim, G = query heads that share the KV head; one set of scores serves them all.
 */
#ifndef TERSE_BACKEND_CPU_CODEC_INDEX_H
#define TERSE_BACKEND_CPU_CODEC_INDEX_H

#include "base/status.h"
#include "format/page_layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index_options {
    bool median; /* centre on each channel's lower median instead of its mean, as the code released with Self-Indexing does */
};
struct index_options index_options_defaults(void);

struct index {
    const char *name; /* "sign" */

    /* TERSE_E_UNSUPPORTED when the index cannot serve heads of so many channels. */
    enum terse_status (*check)(size_t head_dim, struct terse_error *error);
    /* Exact size of a block of 64 tokens, a multiple of 64. */
    size_t (*page_bytes)(size_t head_dim);

    /* Learning, from rows[n][hd] that lie `stride` floats apart, n >= 1: a whole prompt or as few as 64. Writes all of
     * learned[learned_bytes], floats; where learned_bytes is 0 there is nothing to learn and `fit` need not be called. */
    size_t (*learned_bytes)(size_t head_dim);
    void (*fit)(size_t head_dim, const float *rows, size_t n, size_t stride, const struct index_options *options, void *learned);

    /* Writes all of block[page_bytes]: rows[n][hd], n <= 64. Deterministic. */
    void (*encode)(size_t head_dim, const void *learned, const float *rows, size_t n, void *page);

    /* Once per step and KV head: what the blocks are met with, from q[G][hd], of which the mean counts. A shift of all logits of a
     * query changes no softmax, so that keys centred by `fit` need no correction. */
    size_t (*table_bytes)(size_t head_dim);
    void (*prepare)(size_t head_dim, const void *learned, const float *q, size_t G, void *tables);
    /* The 64 tokens of a block: larger is better, comparable between all blocks for the same tables. Slots that hold no token get
     * any number. */
    void (*scores)(size_t head_dim, const void *tables, const void *page, uint16_t *scores);
};

/* index_sign.c: 1 bit per channel (Self-Indexing KVCache). */
extern const struct index index_sign;
/* index_quest.c: bounds of pages of 16 tokens (Quest). */
extern const struct index index_quest;

/* What index_sign learns: for codec sign, which centres its keys likewise, and for tests. */
#define INDEX_SIGN_CHANNELS 4 /* that share a code */
#define INDEX_SIGN_CODES 16
struct index_sign_learned {
    const float *mean;      /* [hd] */
    const float *centroids; /* [hd / 4][16][4] of keys - mean, bit i of a code set where channel i is >= 0 */
};
struct index_sign_learned index_sign_learned(size_t head_dim, const void *learned);
/* A code plane, of 8 channels: bit i is set where x[i] - mean[i] >= 0. */
static inline uint8_t index_sign_code(const float *x, const float *mean) {
    unsigned code = 0;
    for (unsigned i = 0; i < 8; i++) code |= (unsigned)(x[i] - mean[i] >= 0) << i;
    return (uint8_t)code;
}

/* Tables are rounded to 8 bits: a token's score stands for the sum of centroid products
 *     *base + *step * score,   off by at most hd / 4 * *step / 2 (and rounding of floats)
 * where *step is 1/255 of the widest span that the 16 products of a group have. */
void index_sign_scale(size_t head_dim, const void *tables, float *step, float *base);

#endif
