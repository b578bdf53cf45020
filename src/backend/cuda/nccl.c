/* Implements the exchange between ranks' GPUs by NCCL, whose library is opened when ranks connect: neither a build nor the plug-in needs it
 * otherwise. What is called of it is declared here as its own header has it, the same since NCCL 2.0. */
#include "backend/cuda/device.h"
#include "backend/cuda/ranks.h"

#include <dlfcn.h>
#include <stdlib.h>

#define LIBRARY "libnccl.so.2"
#define LEAST_VERSION 21000 /* 2.10: its collectives may be captured in graphs beside others that are not */

struct nccl_id {
    char bytes[128];
};

typedef void *nccl_comm;

enum { NCCL_SUCCESS, NCCL_CHAR = 0 }; /* ncclResult_t, ncclDataType_t */

static struct {
    int (*version)(int *version);
    int (*make_id)(struct nccl_id *id);
    int (*connect)(nccl_comm *comm, int ranks, struct nccl_id id, int rank);
    int (*gather)(const void *own, void *all, size_t count, int type, nccl_comm comm, cudaStream_t stream);
    const char *(*describe)(int result);
} nccl;

static nccl_comm comm; /* of the process, which lasts as long */

static enum terse_status check(int result, const char *doing, struct terse_error *error) {
    if (result == NCCL_SUCCESS) return TERSE_OK;
    return status_fail(error, TERSE_E_IO, "NCCL failed at %s: %s", doing, nccl.describe(result));
}

/* Finds a function of the library. POSIX lets a pointer to an object be taken for one to a function. */
static bool find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    *(void **)function = found;
    return found;
}

static enum terse_status open_library(struct terse_error *error) {
    /* Buffers that NCCL registers when a step is captured would have to be captured by all ranks at once; small ones gain nothing. */
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int version = 0;
    if (!library)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "several ranks with --device cuda need NCCL (package libnccl2, or its folder in LD_LIBRARY_PATH): %s",
                           dlerror());
    if (!find(library, "ncclGetVersion", &nccl.version) || !find(library, "ncclGetUniqueId", &nccl.make_id) ||
        !find(library, "ncclCommInitRank", &nccl.connect) || !find(library, "ncclAllGather", &nccl.gather) ||
        !find(library, "ncclGetErrorString", &nccl.describe) || nccl.version(&version) != NCCL_SUCCESS || version < LEAST_VERSION)
        return status_fail(error, TERSE_E_UNSUPPORTED, "%s is of version %d, and ranks need NCCL 2.10 or later", LIBRARY, version);
    return TERSE_OK;
}

/* Exchanges a little, which makes NCCL's connections, so that a failure of these is not one of a step. */
static enum terse_status try_exchange(struct collective *ranks, struct terse_error *error) {
    const size_t bytes = 256;
    void *all = device_alloc(NULL, ranks->ranks * bytes, "exchanges between ranks", error);
    if (!all) return TERSE_E_MEMORY;
    enum terse_status status = ranks_gather(ranks, all, bytes, error);
    if (!status) status = device_check(cudaStreamSynchronize(device_stream()), "connecting ranks", error);
    device_free(NULL, all, ranks->ranks * bytes);
    return status;
}

/* Ends a process that has failed before CUDA's own end, which would wait for kernels of NCCL that wait for other ranks. */
static void end_failed(int status, void *ranks) {
    if (status) ((struct collective *)ranks)->ops->give_up(status);
}

enum terse_status ranks_connect(struct collective *ranks, struct terse_error *error) {
    struct nccl_id id = {{0}};
    if (comm) return TERSE_OK;
    device_number();
    enum terse_status status = open_library(error);
    if (!status && !ranks->rank) status = check(nccl.make_id(&id), "starting", error);
    if ((status = collective_agree(ranks, status, error)) || (status = collective_broadcast(ranks, &id, sizeof id, error)))
        return status;
    status = check(nccl.connect(&comm, (int)ranks->ranks, id, (int)ranks->rank),
                   "connecting the ranks' GPUs, of which each rank needs one of its own", error);
    on_exit(end_failed, ranks); /* which runs before what CUDA and NCCL have registered so far */
    if ((status = collective_agree(ranks, status, error))) return status;
    return collective_agree(ranks, try_exchange(ranks, error), error);
}

enum terse_status ranks_gather(struct collective *ranks, void *all, size_t bytes, struct terse_error *error) {
    const char *own = (const char *)all + ranks->rank * bytes;
    ranks->counters.gathers++;
    ranks->counters.bytes += (ranks->ranks - 1) * (uint64_t)bytes;
    return check(nccl.gather(own, all, bytes, NCCL_CHAR, comm, device_stream()), "an exchange between ranks", error);
}
