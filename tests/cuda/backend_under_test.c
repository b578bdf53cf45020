/* The GPU, or its kernels on the host. */
#include "support/backend_under_test.h"

#include "backend/cuda/device.h"
#include "host_kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void fetch(void *to, const void *from, size_t bytes) {
    cudaStreamSynchronize(device_stream());
    assert_int_equal(device_fetch(to, from, bytes), cudaSuccess);
}

/* Keys, values and queries are halves, and kivi's queries are rounded once more with its scales. Codes of transforms and centroids are the cache's own,
 * decoded by the CPU; test_cuda_states compares pages with the CPU's. tests/faults shows which faults the bound finds. */
const struct backend_under_test *backend_under_test(void) {
    static struct backend_under_test cuda = {
        .name = "cuda", .allowed = 6e-3, .fetch = fetch, .head_dim = 64, .available = device_available};
    cuda.kv = host_kv_ops();
#ifdef TERSE_EMULATED_CUDA
    cuda.emulated = true;
#endif
    return &cuda;
}
