#include "backend/cuda/kv/attend_commvq.cuh"

cudaError_t attend_commvq_64(const struct attend_decode *attend, cudaStream_t stream) { return launch_commvq<64>(attend, stream); }
