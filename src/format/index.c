/* Holds the table of indexes and computes their sizes. */
#include "format/index.h"

#include "format/shape.h"

const struct index index_sign = {INDEX_SIGN, "sign"};
const struct index index_quest = {INDEX_QUEST, "quest"};
const struct index index_components = {INDEX_COMPONENTS, "components"};

enum terse_status index_check(const struct index *index, uint32_t head_dim, struct terse_error *error) {
    (void)index; /* each serves what all codecs do */
    return codec_check_head_dim(head_dim, error);
}

size_t index_bytes(const struct index *index, size_t hd) {
    switch (index->id) {
    case INDEX_SIGN: return PAGE_BYTES_SIGNS(hd);
    case INDEX_QUEST: return PAGE_BYTES_QUEST(hd);
    default: return 0;
    }
}

size_t index_learned_bytes(const struct index *index, size_t hd) {
    return index->id == INDEX_SIGN ? (hd + hd * INDEX_SIGN_CODES) * sizeof(float) : 0;
}

struct index_sign_learned index_sign_learned(size_t hd, const void *learned) {
    const float *floats = (const float *)learned;
    return (struct index_sign_learned){floats, floats + hd};
}
