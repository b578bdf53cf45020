#include "backend/cuda/kv/score_transform.cuh"

cudaError_t score_transform_128(const struct select_tokens *select, cudaStream_t stream) {
    return launch_scores<128>(select, stream);
}
