/* Declares the format of an index, which finds tokens worth reading without reading them. A step scores all tokens of a KV head by
 * a few bytes each, keeps the best and reads only those. An index stands beside any codec; the codec `sign` is its own: its pages
 * of keys begin with index_sign's. Pages of an index hold 64 tokens as those of keys do.
 *
 * As with codecs, this is the part that all backends share; execution is src/backend/cpu/codec/index.h. An index learns while it
 * runs, from the first keys of a sequence that are sealed, for each layer and KV head. */
#ifndef TERSE_FORMAT_INDEX_H
#define TERSE_FORMAT_INDEX_H

#include "base/status.h"
#include "format/page_layout.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum index_id { INDEX_SIGN, INDEX_QUEST, INDEX_COMPONENTS, INDEX_COUNT };

struct index {
    enum index_id id;
    const char *name; /* "sign" */
};

/* Index sign has 1 bit per channel (Self-Indexing KVCache). */
extern const struct index index_sign;
/* Index quest has the bounds of each 16 tokens (Quest). */
extern const struct index index_quest;
/* Index components is the largest components of keys of the codec transform, with which its pages begin, so that nothing more is
 * stored. The codec computes their scores. */
extern const struct index index_components;

/* Returns TERSE_E_UNSUPPORTED when the index cannot serve heads of head_dim channels. */
enum terse_status index_check(const struct index *index, uint32_t head_dim, struct terse_error *error);
/* Returns the exact size of an index's page of 64 tokens, a multiple of 64; 0 for index_components, which has none. */
size_t index_bytes(const struct index *index, size_t head_dim);
/* Returns the bytes, all floats, of what the index learns for one layer and KV head; 0 when that is nothing. */
size_t index_learned_bytes(const struct index *index, size_t head_dim);

/* Index sign learns a mean and centroids, stored in this order. */
#define INDEX_SIGN_CHANNELS 4 /* that share a code */
#define INDEX_SIGN_CODES 16
struct index_sign_learned {
    const float *mean;      /* [hd] */
    const float *centroids; /* [hd / 4][16][4] of keys - mean, bit i of a code set where channel i is >= 0 */
};
struct index_sign_learned index_sign_learned(size_t head_dim, const void *learned);

#ifdef __cplusplus
}
#endif

#endif
