/* Implements collectives by MPI: the plug-in libterse-mpi.so. Exchanges are MPI_Allgather, MPI_Iallgather and MPI_Ibcast alone, which move data and
 * compute nothing. MPI_Allreduce with an operation that merges partial states would send less for many ranks, but the standard (MPI 3.1,
 * section 5.9.1) only recommends that the same operands give the same result. */
#include "base/status.h"
#include "dist/collective.h"
#include "dist/mpi/watch.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static MPI_Comm world; /* a copy of MPI_COMM_WORLD of our own */
static bool watched;   /* srun --mpi=pmi2 ends no rank when another is killed: ranks watch each other (watch.h) */

static enum terse_status check(const struct collective *ranks, int code, struct terse_error *error) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS) return TERSE_OK;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
    return status_fail(error, TERSE_E_IO, "rank %u of %u: the exchange with the other ranks failed: %.*s", ranks->rank,
                       ranks->ranks, length, text);
}

#define POLLS 20000      /* of an exchange, some milliseconds, before a rank looks after others or sleeps between them */
#define NAP_MOST 2000000 /* nanoseconds: what a broadcast may come late then */
#define NAP_LEAST 50000
#define LAST_SECONDS 5 /* in which what has started the ranks may end them with a line of its own, when one is gone */

/* Waits for an exchange. MPI waits by polling; a rank that `naps` leaves the processor to others meanwhile. */
static enum terse_status wait_for(const struct collective *ranks, int code, MPI_Request *request, bool naps,
                                  struct terse_error *error) {
    static bool waited;
    int done = 0;
    long nap = NAP_LEAST;
    for (size_t polls = 0; code == MPI_SUCCESS && !done; polls++) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done || polls < POLLS) continue;
        const uint32_t lost = watched && (naps || polls % POLLS == 0) ? watch_lost() : UINT32_MAX;
        if (lost != UINT32_MAX) {
            if (!waited) sleep(LAST_SECONDS);
            waited = true;
            return status_fail(error, TERSE_E_IO, "rank %u of %u: the exchange with the other ranks failed: rank %u has ended",
                               ranks->rank, ranks->ranks, lost);
        }
        if (!naps) continue;
        nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
        if (nap < NAP_MOST) nap += nap / 8;
    }
    return check(ranks, code, error);
}

static enum terse_status gather(const struct collective *ranks, const void *own, size_t bytes, void *all,
                                struct terse_error *error) {
    if (bytes > INT_MAX) return status_fail(error, TERSE_E_ARGUMENT, "an exchange of %zu bytes", bytes);
    if (!watched) return check(ranks, MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, world), error);
    MPI_Request request;
    const int code = MPI_Iallgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, world, &request);
    return wait_for(ranks, code, &request, false, error);
}

/* Rank 0 may have nothing to do for hours. */
static enum terse_status broadcast(const struct collective *ranks, void *data, size_t bytes, struct terse_error *error) {
    MPI_Request request;
    if (bytes > INT_MAX) return status_fail(error, TERSE_E_ARGUMENT, "an exchange of %zu bytes", bytes);
    const int code = MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, world, &request);
    return wait_for(ranks, code, &request, true, error);
}

/* A process that gives up must not finalize, since its ranks might wait for each other: mpirun ends the others when a process ends without
 * that, and srun has to be told by MPI_Abort (at which mpirun of Open MPI writes errors of its own). */
static void give_up(int status) {
    fflush(NULL);
    if (getenv("SLURM_PROCID")) MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}

static const struct collective_ops ops = {"MPI", gather, broadcast, give_up};
static struct collective job = {.ops = &ops};

/* Leaves the job, as a process must that ends well. */
static void leave(int status, void *user) {
    int left = 0;
    (void)user;
    if (MPI_Finalized(&left) != MPI_SUCCESS || left) return;
    if (status) give_up(status);
    if (watched) watch_end();
    MPI_Finalize();
}

static enum terse_status enter(struct collective **ranks, struct terse_error *error) {
    int there = 0, level = MPI_THREAD_SINGLE, rank = 0, size = 1;
    MPI_Initialized(&there); /* by the program that uses the library, which then leaves, too */
    const int failed = there ? MPI_Query_thread(&level) : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (failed || level < MPI_THREAD_SERIALIZED)
        return status_fail(error, TERSE_E_UNSUPPORTED, "MPI does not let threads call it one at a time (MPI_THREAD_SERIALIZED)");
    if (!there) on_exit(leave, NULL);
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    watched = !there && getenv("SLURM_PROCID") && getenv("PMI_RANK");
    if (watched) watch_begin(world, (uint32_t)rank, (uint32_t)size);
    job.rank = (uint32_t)rank;
    job.ranks = (uint32_t)size;
    job.outcomes = calloc((size_t)size, sizeof *job.outcomes);
    if (!job.outcomes) return status_no_memory(error, (size_t)size * sizeof *job.outcomes, "exchanges between ranks");
    *ranks = &job;
    return TERSE_OK;
}

extern const struct collective_plugin terse_collective_plugin;
__attribute__((visibility("default"))) const struct collective_plugin terse_collective_plugin = COLLECTIVE_PLUGIN(enter);
