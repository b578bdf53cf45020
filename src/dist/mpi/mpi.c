/* Implements collectives by MPI: the plug-in libterse-mpi.so. It calls MPI_Allgather and MPI_Ibcast alone, which move data and compute
 * nothing. MPI_Allreduce with an operation that merges partial states would send less for many ranks, but the standard (MPI 3.1,
 * section 5.9.1) only recommends that the same operands give the same result. */
#include "base/status.h"
#include "dist/collective.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static MPI_Comm world; /* a copy of MPI_COMM_WORLD of our own */

static enum terse_status check(const struct collective *ranks, int code, struct terse_error *error) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS) return TERSE_OK;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
    return status_fail(error, TERSE_E_IO, "rank %u of %u: the exchange with the other ranks failed: %.*s", ranks->rank,
                       ranks->ranks, length, text);
}

static enum terse_status gather(const struct collective *ranks, const void *own, size_t bytes, void *all,
                                struct terse_error *error) {
    if (bytes > INT_MAX) return status_fail(error, TERSE_E_ARGUMENT, "an exchange of %zu bytes", bytes);
    return check(ranks, MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, world), error);
}

#define POLLS 20000      /* of a broadcast that does not come, some milliseconds, before a rank sleeps between them */
#define NAP_MOST 2000000 /* nanoseconds: what a broadcast may come late then */

/* MPI waits by polling. A rank that waits for rank 0, which may have nothing to do for hours, leaves the processor to others. */
static enum terse_status broadcast(const struct collective *ranks, void *data, size_t bytes, struct terse_error *error) {
    MPI_Request request;
    int done = 0;
    long nap = 50000;
    if (bytes > INT_MAX) return status_fail(error, TERSE_E_ARGUMENT, "an exchange of %zu bytes", bytes);
    int code = MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, world, &request);
    for (size_t polls = 0; code == MPI_SUCCESS && !done; polls++) {
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done || polls < POLLS) continue;
        nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
        if (nap < NAP_MOST) nap += nap / 8;
    }
    return check(ranks, code, error);
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
    job.rank = (uint32_t)rank;
    job.ranks = (uint32_t)size;
    job.outcomes = calloc((size_t)size, sizeof *job.outcomes);
    if (!job.outcomes) return status_no_memory(error, (size_t)size * sizeof *job.outcomes, "exchanges between ranks");
    *ranks = &job;
    return TERSE_OK;
}

extern const struct collective_plugin terse_collective_plugin;
__attribute__((visibility("default"))) const struct collective_plugin terse_collective_plugin = COLLECTIVE_PLUGIN(enter);
