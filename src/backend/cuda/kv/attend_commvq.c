/* Chooses among the kernels of head dimensions, which lie in a file each. */
#include "backend/cuda/kv/attend_commvq.h"

cudaError_t attend_commvq(const struct attend_decode *attend, cudaStream_t stream) {
    switch (attend->heads.head_dim) {
    case 64: return attend_commvq_64(attend, stream);
    case 128: return attend_commvq_128(attend, stream);
    case 256: return attend_commvq_256(attend, stream);
    default: return cudaErrorInvalidValue;
    }
}
