/* Implements exchanges over sockets between processes of one machine. A rank that waits sleeps; one that has ended is noticed by all that
 * wait for it. */
#include "dist/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOCKETS "TERSE_RANK_SOCKETS"

static uint32_t own_rank, n_ranks;
static int *sockets; /* rank 0: [n_ranks], those from 1 on; others: [1], to rank 0 */

/* Waits a little before it fails: the process that has started the ranks says which one has ended, and ends this one meanwhile. */
static enum terse_status lost(uint32_t other, ssize_t n, struct terse_error *error) {
    const int failed = errno;
    sleep(1);
    return status_fail(error, TERSE_E_IO, "rank %u of %u: the exchange with rank %u failed: %s", own_rank, n_ranks, other,
                       n < 0 ? strerror(failed) : "it has ended");
}

/* Sends data[bytes] to another rank, or with `receives` takes them from it. */
static enum terse_status move(uint32_t other, void *data, size_t bytes, bool receives, struct terse_error *error) {
    const int descriptor = sockets[own_rank ? 0 : other];
    for (size_t done = 0; done < bytes;) {
        char *const at = (char *)data + done;
        const ssize_t n = receives ? recv(descriptor, at, bytes - done, 0) : send(descriptor, at, bytes - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return lost(other, n, error);
        done += (size_t)n;
    }
    return TERSE_OK;
}

enum terse_status host_ranks_broadcast(void *data, size_t bytes, struct terse_error *error) {
    enum terse_status status = own_rank ? move(0, data, bytes, true, error) : TERSE_OK;
    for (uint32_t other = 1; other < n_ranks && !own_rank && !status; other++) status = move(other, data, bytes, false, error);
    return status;
}

enum terse_status host_ranks_gather(const void *own, size_t bytes, void *all, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    if (own_rank) {
        status = move(0, (void *)(uintptr_t)own, bytes, false, error);
    } else {
        if (bytes) memmove(all, own, bytes);
        for (uint32_t other = 1; other < n_ranks && !status; other++)
            status = move(other, (char *)all + other * bytes, bytes, true, error);
    }
    return status ? status : host_ranks_broadcast(all, n_ranks * bytes, error);
}

bool host_ranks_given(void) { return getenv(SOCKETS); }

enum terse_status host_ranks_open(uint32_t rank, uint32_t ranks, struct terse_error *error) {
    const size_t n = rank ? 1 : ranks, first = rank ? 0 : 1;
    const char *at = getenv(SOCKETS);
    own_rank = rank;
    n_ranks = ranks;
    sockets = calloc(n, sizeof *sockets);
    if (!sockets) return status_no_memory(error, n * sizeof *sockets, "exchanges between ranks");
    for (size_t i = first; i < n; i++) {
        char *end = NULL;
        sockets[i] = at ? (int)strtol(at, &end, 10) : 0;
        if (!at || end == at || *end != (i + 1 < n ? ',' : 0))
            return status_fail(error, TERSE_E_ARGUMENT, "%s must name the socket of each rank", SOCKETS);
        at = end + 1;
    }
    return TERSE_OK;
}
