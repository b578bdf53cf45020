#include "backend/cuda/kv/attend_commvq.cuh"

cudaError_t attend_commvq_256(const struct attend_decode *attend, cudaStream_t stream) {
    return launch_commvq<256>(attend, stream);
}
