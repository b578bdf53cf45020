#include "backend/cuda/kv/attend_centroids.cuh"

cudaError_t attend_centroids_128(const struct attend_decode *attend, cudaStream_t stream) {
    return launch_widths<128>(attend, stream);
}
