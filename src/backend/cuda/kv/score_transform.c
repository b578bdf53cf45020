/* Chooses among the kernels of head dimensions, which lie in a file each. */
#include "backend/cuda/kv/score_transform.h"

cudaError_t score_transform(const struct select_tokens *select, cudaStream_t stream) {
    switch (select->attend.heads.head_dim) {
    case 64: return score_transform_64(select, stream);
    case 96: return score_transform_96(select, stream);
    case 128: return score_transform_128(select, stream);
    case 256: return score_transform_256(select, stream);
    default: return cudaErrorInvalidValue;
    }
}
