/* Implements the watch. Rank 0 tells all where it listens, the others connect, and then it tells whom it knows. A random number says that a
 * connection is of the job. */
#include "dist/mpi/watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define ADDRESSES_MOST 8
#define PATIENCE 300 /* milliseconds for a connection, which as a rule takes less than one */

static uint32_t own_rank, n_ranks;
static int *sockets; /* [n_ranks], rank 0's to each other, another rank's to rank 0; -1: there is none */

/* Rank 0 can be reached there. */
struct place {
    uint64_t job; /* a random number */
    in_addr_t addresses[ADDRESSES_MOST];
    uint32_t n;
    in_port_t port; /* as in struct sockaddr_in */
};

struct hello {
    uint64_t job;
    uint32_t rank, nothing;
};

static bool is_ready(int descriptor, short events) {
    struct pollfd one = {.fd = descriptor, .events = events};
    return poll(&one, 1, PATIENCE) == 1;
}

/* Lets the kernel ask an idle peer whether it is there, so that a machine that has stopped is noticed in half a minute. */
static void keep_asking(int descriptor) {
    const int on = 1, idle = 10, between = 5, times = 4;
    setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
    setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

/* ---- Rank 0 */

/* Lists the machine's IPv4 addresses, those of itself alone last. */
static void list_addresses(struct place *place) {
    struct ifaddrs *all;
    if (getifaddrs(&all)) return;
    for (int loopback = 0; loopback < 2; loopback++)
        for (const struct ifaddrs *at = all; at && place->n < ADDRESSES_MOST; at = at->ifa_next) {
            if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET || !(at->ifa_flags & IFF_UP)) continue;
            if (!!(at->ifa_flags & IFF_LOOPBACK) != loopback) continue;
            place->addresses[place->n++] = ((const struct sockaddr_in *)(const void *)at->ifa_addr)->sin_addr.s_addr;
        }
    freeifaddrs(all);
}

static int listen_at(struct place *place) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t bytes = sizeof own;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0) return -1;
    if (bind(listener, (const struct sockaddr *)&own, sizeof own) || listen(listener, (int)n_ranks) ||
        getsockname(listener, (struct sockaddr *)&own, &bytes) || getrandom(&place->job, sizeof place->job, 0) < 0) {
        close(listener);
        return -1;
    }
    place->port = own.sin_port;
    list_addresses(place);
    return listener;
}

/* Takes the connections of the others, all of which have connected or given it up. */
static void accept_all(int listener, uint64_t job) {
    for (uint32_t left = n_ranks - 1; left > 0 && is_ready(listener, POLLIN); left--) {
        struct hello hello = {0};
        const int peer = accept(listener, NULL, NULL);
        if (peer < 0) continue;
        fcntl(peer, F_SETFD, FD_CLOEXEC);
        if (is_ready(peer, POLLIN) && recv(peer, &hello, sizeof hello, MSG_DONTWAIT) == sizeof hello && hello.job == job &&
            hello.rank < n_ranks && sockets[hello.rank] < 0)
            sockets[hello.rank] = peer;
        else
            close(peer);
    }
}

/* ---- The others */

static int connect_to(in_addr_t address, in_port_t port) {
    const struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = address};
    const int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int failed = 0;
    socklen_t bytes = sizeof failed;
    if (own < 0) return -1;
    if (!connect(own, (const struct sockaddr *)&there, sizeof there) ||
        (errno == EINPROGRESS && is_ready(own, POLLOUT) && !getsockopt(own, SOL_SOCKET, SO_ERROR, &failed, &bytes) && !failed))
        return own;
    close(own);
    return -1;
}

static int connect_any(const struct place *place) {
    const struct hello hello = {.job = place->job, .rank = own_rank};
    int own = -1;
    for (uint32_t i = 0; i < place->n && own < 0; i++) own = connect_to(place->addresses[i], place->port);
    if (own >= 0) (void)!send(own, &hello, sizeof hello, MSG_NOSIGNAL);
    return own;
}

/* ---- All */

static void drop(uint32_t rank) {
    if (sockets[rank] >= 0) close(sockets[rank]);
    sockets[rank] = -1;
}

void watch_begin(MPI_Comm world, uint32_t rank, uint32_t ranks) {
    struct place place = {0};
    unsigned char *known = calloc(ranks, 1);
    int listener = -1;
    own_rank = rank;
    n_ranks = ranks;
    sockets = malloc(ranks * sizeof *sockets);
    if (!sockets || !known) MPI_Abort(MPI_COMM_WORLD, 1); /* some bytes at the start, which the others would wait for */
    for (uint32_t i = 0; i < ranks; i++) sockets[i] = -1;
    if (!rank) listener = listen_at(&place);
    MPI_Bcast(&place, sizeof place, MPI_BYTE, 0, world);
    if (rank) sockets[0] = connect_any(&place);
    MPI_Barrier(world);
    if (listener >= 0) {
        accept_all(listener, place.job);
        close(listener);
    }
    for (uint32_t i = 0; i < ranks && !rank; i++) known[i] = sockets[i] >= 0;
    MPI_Bcast(known, (int)ranks, MPI_BYTE, 0, world);
    if (rank && !known[rank]) drop(0);
    for (uint32_t i = 0; i < ranks; i++)
        if (sockets[i] >= 0) keep_asking(sockets[i]);
    free(known);
}

uint32_t watch_lost(void) {
    static uint32_t lost = UINT32_MAX;
    for (uint32_t rank = 0; rank < n_ranks && lost == UINT32_MAX; rank++) {
        char farewell;
        if (sockets[rank] < 0) continue;
        const ssize_t n = recv(sockets[rank], &farewell, 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
        drop(rank);
        if (n <= 0) lost = rank;
    }
    return lost;
}

void watch_end(void) {
    for (uint32_t rank = 0; rank < n_ranks; rank++)
        if (sockets[rank] >= 0) (void)!send(sockets[rank], "", 1, MSG_NOSIGNAL);
}
