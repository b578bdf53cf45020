/* Gives access to the device: its memory, its streams, its errors. Plain C. */
#ifndef TERSE_BACKEND_CUDA_DEVICE_H
#define TERSE_BACKEND_CUDA_DEVICE_H

#include "base/status.h"
#include "kv/budget.h"

#include <cuda_runtime_api.h>

/* Returns TERSE_OK, or an error with what the runtime says failed while `doing` ("encoding a page"): out of memory is
 * TERSE_E_MEMORY, all else TERSE_E_UNSUPPORTED. */
enum terse_status device_check(cudaError_t result, const char *doing, struct terse_error *error);

/* Returns memory of the device for `bytes` bytes of `what`, aligned to 256; NULL, with *error of TERSE_E_MEMORY, where the budget
 * (NULL: there is none) or the device refuses it. device_free with as many bytes gives it back. */
void *device_alloc(struct kv_budget *budget, size_t bytes, const char *what, struct terse_error *error);
void device_free(struct kv_budget *budget, void *memory, size_t bytes); /* accepts NULL */

/* Returns TERSE_OK if there is a device that the backend can use, and chooses it for the calling process: of several the one whose number is
 * the process's among those of its job on this machine (dist/collective.h), modulo their count. TERSE_E_UNSUPPORTED says in one line
 * what is missing. */
enum terse_status device_available(struct terse_error *error);
/* Returns the device's name, which ranks must have in common: their products would differ else. */
const char *device_name(void);

/* Returns the number of the process's device, which is the calling thread's from then on. All functions here call it, so that a thread may
 * make CUDA's own calls behind any of them. */
int device_number(void);

/* Return the streams on which all work is queued: one for steps, and one of lower priority for what may be done beside them. The
 * first call makes the stream. */
cudaStream_t device_stream(void);
cudaStream_t device_background(void);

/* Copy to and from the device's memory in the order of device_stream(). The default stream has no part in that order: cudaMemcpy
 * may return before its bytes have arrived, and what is queued on device_stream() would not wait for them. `from` of device_send is
 * memory that is not pinned, and may be changed once it returns; device_fetch waits for all that was queued before. */
cudaError_t device_send(void *to, const void *from, size_t bytes);
cudaError_t device_fetch(void *to, const void *from, size_t bytes);

/* Returns how many multiprocessors the device has. */
int device_multiprocessors(void);

#endif
