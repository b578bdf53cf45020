/* Compiles decoding over pages of 4-bit codes, keys by channel, values by token. */
#include "backend/cuda/kv/attend_scaled.cuh"
#include "backend/cuda/kv/attend_scaled.h"

template <int HD, int NT> using keys = keys_kivi<HD, NT, 4>;
template <int HD, int NT> using values = values_kivi<HD, NT, 4>;

cudaError_t attend_scaled_kivi_4(const struct attend_decode *attend, cudaStream_t stream) {
    return launch_scaled_any<keys, values>(attend, stream);
}
