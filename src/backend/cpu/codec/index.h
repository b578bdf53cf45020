/* Declares the execution of an index on the CPU: scores for all tokens of a KV head, by which a step chooses those that it reads.
 * format/index.h says what an index is, with its sizes.
 *
 * An index is stateless and knows nothing of tokens, masks or policies; it takes keys after rotation, as queries are multiplied by
 * them. The cache that keeps the pages also keeps what the index learns. Shapes: hd = head_dim, G = query heads that share the KV
 * head; one set of scores serves them all. */
#ifndef TERSE_BACKEND_CPU_CODEC_INDEX_H
#define TERSE_BACKEND_CPU_CODEC_INDEX_H

#include "format/index.h"

#include <stdbool.h>

struct index_options {
    bool median; /* centre on each channel's lower median instead of its mean, as the code released with Self-Indexing does */
};
struct index_options index_options_defaults(void);

struct cpu_index {
    const struct index *format;

    /* Learns from rows[n][hd] that lie `stride` floats apart, n >= 1: a whole prompt or as few as 64. It writes all of
     * learned[index_learned_bytes], floats; where that is 0 there is nothing to learn and `fit` need not be called. */
    void (*fit)(size_t head_dim, const float *rows, size_t n, size_t stride, const struct index_options *options, void *learned);

    /* Writes all of page[index_bytes]: rows[n][hd], n <= 64. Deterministic. */
    void (*encode)(size_t head_dim, const void *learned, const float *rows, size_t n, void *page);

    /* These are called once per step and KV head: they make the tables that pages are scored by from q[G][hd], of which the mean
     * counts. A shift of all logits of a query changes no softmax, so that keys centred by `fit` need no correction. */
    size_t (*table_bytes)(size_t head_dim);
    void (*prepare)(size_t head_dim, const void *learned, const float *q, size_t G, void *tables);
    /* Scores the 64 tokens of a page: larger is better, comparable between all pages for the same tables. Slots that hold no token
     * get any number. */
    void (*scores)(size_t head_dim, const void *tables, const void *page, uint16_t *scores);
};

/* Returns the CPU's functions of an index; NULL for index_components, by which codecs rank keys themselves (codec.h). */
const struct cpu_index *cpu_index_of(const struct index *index);

extern const struct cpu_index cpu_index_sign, cpu_index_quest;

/* Returns a byte of index_sign's code plane, of 8 channels: bit i is set where x[i] - mean[i] >= 0. Codec sign centres its keys
 * likewise. */
static inline uint8_t index_sign_code(const float *x, const float *mean) {
    unsigned code = 0;
    for (unsigned i = 0; i < 8; i++) code |= (unsigned)(x[i] - mean[i] >= 0) << i;
    return (uint8_t)code;
}

/* index_sign's tables are rounded to 8 bits: a token's score stands for the sum of centroid products
 *     *base + *step * score,   off by at most hd / 4 * *step / 2 (and rounding of floats)
 * where *step is 1/255 of the widest range that the 16 products of four channels have. */
void index_sign_scale(size_t head_dim, const void *tables, float *step, float *base);

#endif
