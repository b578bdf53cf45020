#include "backend/cuda/kv/score_transform.cuh"

cudaError_t score_transform_256(const struct select_tokens *select, cudaStream_t stream) {
    return launch_scores<256>(select, stream);
}
