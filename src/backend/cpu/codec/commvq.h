/* Declares ways in which the codec comm reads, which tests and benchmarks compare with each other. */
#ifndef TERSE_BACKEND_CPU_CODEC_COMMVQ_H
#define TERSE_BACKEND_CPU_CODEC_COMMVQ_H

#include "backend/cpu/codec/codec.h"
#include "backend/cpu/kernels/commvq/commvq.h"
#include "backend/cpu/kernels/pq/pq.h"

/* These return the parts of shape.learned and of a page. */
const struct commvq_code *commvq_code_of(struct codec_shape shape);
const void *commvq_codes(const void *page);
void commvq_gains(struct codec_shape shape, const void *page, float *gains);

/* These are both ways of score_rotated: keys decoded once for all queries, or each query's tables, [group] of
 * commvq_table_floats. */
void commvq_score_decoded(struct codec_shape shape, const float *q, const struct key_rotation *rotation, const void *page,
                          float *logits);
void commvq_prepare(struct codec_shape shape, const float *q, float *tables);
void commvq_score_by_table(struct codec_shape shape, const float *tables, const struct key_rotation *rotation, const void *page,
                           float *logits);

#endif
