/* The codec comm: what calibration must know of it, and ways of reading that tests and benchmarks hold against each other. */
#ifndef TERSE_BACKEND_CPU_CODEC_COMMVQ_H
#define TERSE_BACKEND_CPU_CODEC_COMMVQ_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kernels/commvq/commvq.h"
#include "backend/cpu/kernels/pq/pq.h"

/* The coding of `bits` bits per key value, as near as whole rounds come, the gain not counted: groups as large as they can be,
 * since at equal bits larger ones err less. 1 and 2 bits are 11 and 21 rounds at head_dim 128 (1.03 and 1.97 bits), 5 and 11 at 64.
 */
struct coding commvq_coding(uint32_t head_dim, uint32_t bits);

/* Parameters of a layer and KV head: tables[groups][rounds][COMMVQ_ENTRIES][width], each row the real parts of a group's pairs and
 * then the imaginary parts; how the model rotates, below; then the frame of backend/cpu/codec/normalization.h. */
static inline size_t commvq_groups(struct codec_shape shape) { return shape.head_dim / shape.width; }
static inline size_t commvq_rounds(struct codec_shape shape) { return shape.bits / COMMVQ_BITS; }
static inline size_t commvq_table_numbers(struct codec_shape shape) {
    return commvq_groups(shape) * commvq_rounds(shape) * COMMVQ_ENTRIES * shape.width;
}

/* Which channels are a complex number is written beside the tables, before a frame is entered: `pairs` RoPE pairs, channels (2i, 2i
 * + 1) if adjacent, else (i, i + pairs). Channels from 2 pairs on, which no rotation turns, pair up as neighbours. */
void commvq_set_pairing(struct codec_shape shape, float *parameters, size_t pairs, bool adjacent);
/* channels[width]: where in the head the numbers of a group's row lie. The parameters hold a pairing. */
void commvq_channels(struct codec_shape shape, const float *parameters, size_t group, uint8_t *channels);

/* Of shape.learned and a block. */
const struct commvq_code *commvq_code_of(struct codec_shape shape);
const void *commvq_codes(const void *page);
void commvq_gains(struct codec_shape shape, const void *page, float *gains);

/* Both ways of score_rotated: keys decoded once for all queries, or each query's tables, [group] of commvq_table_floats. */
void commvq_score_decoded(struct codec_shape shape, const float *q, const struct key_rotation *rotation, const void *page,
                          float *logits);
void commvq_prepare(struct codec_shape shape, const float *q, float *tables);
void commvq_score_by_table(struct codec_shape shape, const float *tables, const struct key_rotation *rotation, const void *page,
                           float *logits);

#endif
