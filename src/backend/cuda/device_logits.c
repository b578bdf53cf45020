/* Keeps rows of logits on the device until they are fetched. */
#include "backend/cuda/device.h"
#include "backend/cuda/pass.h"
#include "backend/cuda/top_logits.h"

static size_t row_bytes(const struct executor *e) { return e->model->vocabulary * sizeof(float); }

enum terse_status device_logits_new(struct executor *e, struct device_logits *held, struct terse_error *error) {
    held->row = device_alloc(NULL, row_bytes(e), "logits", error);
    return held->row ? TERSE_OK : TERSE_E_MEMORY;
}

void device_logits_free(struct executor *e, struct device_logits *held) {
    device_free(NULL, held->row, row_bytes(e));
    held->row = NULL;
}

/* Fetches a row whose step is over. It queues nothing on device_stream(), which may be capturing a graph on another thread. */
enum terse_status device_logits_fetch(const struct executor *e, const struct device_logits *held, float *logits,
                                      struct terse_error *error) {
    cudaStream_t stream;
    device_number();
    cudaError_t result = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (result != cudaSuccess) return device_check(result, "fetching logits", error);
    result = cudaMemcpyAsync(logits, held->row, row_bytes(e), cudaMemcpyDeviceToHost, stream);
    if (result == cudaSuccess) result = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return device_check(result, "fetching logits", error);
}
