#include "backend/cuda/kv/attend_transform_kernel.cuh"

cudaError_t attend_transform_64(const struct attend_decode *attend, cudaStream_t stream) {
    return launch_transform_groups<64>(attend, stream);
}
