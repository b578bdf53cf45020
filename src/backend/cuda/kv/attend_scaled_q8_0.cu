/* Compiles decoding over pages of 8-bit codes, a scale for 32 channels. */
#include "backend/cuda/kv/attend_scaled.cuh"
#include "backend/cuda/kv/attend_scaled.h"

template <int HD, int NT> using keys = keys_grouped<HD, NT, 8>;
template <int HD, int NT> using values = values_grouped<HD, NT, 8>;

cudaError_t attend_scaled_q8_0(const struct attend_decode *attend, cudaStream_t stream) {
    return launch_scaled_any<keys, values>(attend, stream);
}
