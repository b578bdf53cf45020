/* Compiles decoding over pages of halves. */
#include "backend/cuda/kv/attend_scaled.cuh"
#include "backend/cuda/kv/attend_scaled.h"

cudaError_t attend_scaled_f16(const struct attend_decode *attend, cudaStream_t stream) {
    return launch_scaled_any<keys_f16, values_f16>(attend, stream);
}
