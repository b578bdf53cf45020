/* Collectives: how ranks, the processes that compute one model together, exchange data. Every rank makes the same calls in the same
 * order; one thread at a time makes them, not always the same one.
 *
 * There are two kinds of exchange, and both move data without computing with it, so that their results do not depend on timing, on
 * the library or on the network: what ranks gather is merged by each of them in the order of ranks (backend/cpu/kv/exchange.h).
 *
 * An implementation is a row of collective_ops: one rank by itself (collective_local), those of one machine over sockets (host.h), or those of an MPI job, by the plug-in
 * libterse-mpi.so, so that neither the library nor the command needs MPI to start. Data lie in the host's memory; what lies in that of
 * GPUs is exchanged by NCCL, which these connect (backend/cuda/ranks.h). */
#ifndef TERSE_DIST_COLLECTIVE_H
#define TERSE_DIST_COLLECTIVE_H

#include "base/plugin_file.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct collective;

struct collective_ops {
    const char *name; /* "MPI" */
    /* Writes all[ranks][bytes], the own[bytes] of every rank, in the order of ranks. TERSE_E_IO: a rank is lost. */
    enum terse_status (*gather)(const struct collective *ranks, const void *own, size_t bytes, void *all,
                                struct terse_error *error);
    /* Makes data[bytes] of every rank those of rank 0. A rank may wait for it long, without work for its processor. */
    enum terse_status (*broadcast)(const struct collective *ranks, void *data, size_t bytes, struct terse_error *error);
    /* Ends this process, which has failed, with that status, and by that the whole job, without waiting for other ranks. */
    void (*give_up)(int status);
};

/* A collective_counters counts a rank's calls, and the bytes that it has given to others: to each of them what it gathers, and of
 * what rank 0 broadcasts its own copies. */
struct collective_counters {
    uint64_t gathers, broadcasts, bytes;
};

/* A collective_outcome says what became of something on a rank. */
struct collective_outcome {
    int32_t status;    /* enum terse_status */
    char message[252]; /* why it failed */
};

struct collective {
    const struct collective_ops *ops;
    uint32_t rank, ranks; /* rank < ranks */
    /* [ranks], where there are several: collective_agree works in it, since one rank that is refused memory there would leave the others waiting. */
    struct collective_outcome *outcomes;
    uint64_t refusals; /* calls of collective_agree that have failed, the same number on all ranks */
    struct collective_counters counters;
};

extern struct collective collective_local; /* one rank */

/* Returns the number of this process among those of its job that are on this machine; 0 where what has started it does not say. */
uint32_t collective_local_rank(void);

/* Returns on how many processors this process computes unless it is told, at least 1: on all on which it may run, and where its job has several
 * ranks on this machine on no more than a rank's share. */
uint32_t collective_processors(void);
/* Returns the share of one of n ranks of a machine with so many processors, on `allowed` of which it may run: a launcher that lets each rank
 * run on some of them alone has divided them already. */
uint32_t collective_share(uint32_t allowed, uint32_t processors, uint32_t n);

/* Opens the collective of the job to which this process belongs; of no job collective_local. It is the process's, and lasts as
 * long as that: the first call enters the job, which takes all of its ranks. TERSE_E_UNSUPPORTED says what is missing. */
enum terse_status collective_open(struct collective **ranks, struct terse_error *error);

static inline enum terse_status collective_gather(struct collective *ranks, const void *own, size_t bytes, void *all,
                                                  struct terse_error *error) {
    ranks->counters.gathers++;
    ranks->counters.bytes += (ranks->ranks - 1) * (uint64_t)bytes;
    return ranks->ops->gather(ranks, own, bytes, all, error);
}

static inline enum terse_status collective_broadcast(struct collective *ranks, void *data, size_t bytes,
                                                     struct terse_error *error) {
    ranks->counters.broadcasts++;
    if (!ranks->rank) ranks->counters.bytes += (ranks->ranks - 1) * (uint64_t)bytes;
    return ranks->ops->broadcast(ranks, data, bytes, error);
}

/* Exchanges what became of something that all of several ranks have done, `own` here, with *error where it failed. Returns the same on all:
 * TERSE_OK, or the failure of the first rank where it failed, whose message then says which it is. */
enum terse_status collective_agree(struct collective *ranks, enum terse_status own, struct terse_error *error);
/* Agrees on what became of work within which ranks agree as well, before which there were so many refusals. A rank that fails outside these comes here
 * early, and its call is the others' within; so the first agreement that fails is the last on all ranks, and after it this returns `own`, a
 * failure. */
enum terse_status collective_conclude(struct collective *ranks, uint64_t refusals, enum terse_status own,
                                      struct terse_error *error);

/* The plug-in libterse-mpi.so exports one symbol, which is this. It has its own copy of what it needs of src/base and must be of the library's very
 * version. */
#define COLLECTIVE_SYMBOL "terse_collective_plugin"

struct collective_plugin {
    /* These members differ where the two were not built together. */
    const char *version; /* PLUGIN_VERSION */
    size_t collective_bytes, ops_bytes;
    /* Enters the job, once in a process. */
    enum terse_status (*open)(struct collective **ranks, struct terse_error *error);
};

#define COLLECTIVE_PLUGIN(open) \
    { PLUGIN_VERSION, sizeof(struct collective), sizeof(struct collective_ops), open }

#endif
