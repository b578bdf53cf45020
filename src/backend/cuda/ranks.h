/* Lets ranks (dist/collective.h) exchange what lies in their GPUs' memory, in the order of device_stream() and without the host, so that
 * the exchange can be captured in a graph. nccl.c does it by NCCL. */
#ifndef TERSE_BACKEND_CUDA_RANKS_H
#define TERSE_BACKEND_CUDA_RANKS_H

#include "base/status.h"
#include "dist/collective.h"

/* Connects the ranks' GPUs; all ranks call it together, once in a process. TERSE_E_UNSUPPORTED says what is missing, and is the same
 * on all. */
enum terse_status ranks_connect(struct collective *ranks, struct terse_error *error);
/* Queues the exchange that completes all[ranks][bytes] on the device, of which this rank has written its own part. */
enum terse_status ranks_gather(struct collective *ranks, void *all, size_t bytes, struct terse_error *error);

#endif
