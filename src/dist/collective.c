/* Has the collective of one rank, lets ranks agree on what became of something, finds out whether this process is one of several, and
 * opens what joins those: sockets (host.h), or the plug-in for MPI. Divides a machine's processors among its ranks. */
#include "dist/collective.h"

#include "dist/host.h"

#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- One rank */

static enum terse_status gather_local(const struct collective *ranks, const void *own, size_t bytes, void *all,
                                      struct terse_error *error) {
    (void)ranks, (void)error;
    if (bytes) memcpy(all, own, bytes);
    return TERSE_OK;
}

static enum terse_status broadcast_local(const struct collective *ranks, void *data, size_t bytes, struct terse_error *error) {
    (void)ranks, (void)data, (void)bytes, (void)error;
    return TERSE_OK;
}

static void give_up(int status) {
    fflush(NULL);
    _exit(status);
}

static const struct collective_ops local = {"local", gather_local, broadcast_local, give_up};

struct collective collective_local = {.ops = &local, .ranks = 1};

/* ---- All ranks */

enum terse_status collective_agree(struct collective *ranks, enum terse_status own, struct terse_error *error) {
    struct collective_outcome mine = {.status = (int32_t)own};
    if (own && error) snprintf(mine.message, sizeof mine.message, "%.250s", error->message);
    enum terse_status status = collective_gather(ranks, &mine, sizeof mine, ranks->outcomes, error);
    for (uint32_t rank = 0; rank < ranks->ranks && !status; rank++) {
        status = (enum terse_status)ranks->outcomes[rank].status;
        if (status && rank != ranks->rank) status_fail(error, status, "rank %u: %s", rank, ranks->outcomes[rank].message);
    }
    if (status) ranks->refusals++;
    return status;
}

enum terse_status collective_conclude(struct collective *ranks, uint64_t refusals, enum terse_status own,
                                      struct terse_error *error) {
    return ranks->refusals == refusals ? collective_agree(ranks, own, error) : own;
}

/* ---- The job. What starts processes tells each of them its rank by the environment. */

static const struct {
    const char *rank, *ranks;
} launchers[] = {
    {"TERSE_RANK", "TERSE_RANKS"},                    /* terse --ranks */
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* mpirun of Open MPI */
    {"PMI_RANK", "PMI_SIZE"},                         /* mpirun of MPICH; srun --mpi=pmi2 */
    {"PMIX_RANK", "SLURM_NTASKS"},                    /* srun --mpi=pmix; a batch script by itself has no PMIX_RANK */
};

static const char *const local_ranks[] = {"TERSE_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};

/* Reads a number below 2^31 from the environment; returns false if there is none. */
static bool read_number(const char *name, uint32_t *number) {
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return false;
    const unsigned long value = strtoul(text, &end, 10);
    *number = (uint32_t)value;
    return !*end && value <= INT32_MAX;
}

static void read_job(uint32_t *rank, uint32_t *ranks) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++)
        if (read_number(launchers[i].rank, rank) && read_number(launchers[i].ranks, ranks) && *rank < *ranks) return;
    *rank = 0;
    *ranks = 1;
}

uint32_t collective_local_rank(void) {
    uint32_t rank;
    for (size_t i = 0; i < sizeof local_ranks / sizeof local_ranks[0]; i++)
        if (read_number(local_ranks[i], &rank)) return rank;
    return 0;
}

/* ---- Processors */

/* Returns how many ranks the job has on this machine, for srun alone where it has as many on each; 1 where nothing says so. Slurm writes `2`, `2(x3)` for
 * three machines with two each, or `2(x3),1`. */
static uint32_t local_ranks_of_launcher(void) {
    uint32_t ranks;
    if (read_number("OMPI_COMM_WORLD_LOCAL_SIZE", &ranks) || read_number("MPI_LOCALNRANKS", &ranks)) return ranks;
    const char *text = getenv("SLURM_STEP_TASKS_PER_NODE");
    char *end;
    if (!text || *text < '0' || *text > '9') return 1;
    const unsigned long value = strtoul(text, &end, 10);
    return (*end && *end != '(') || strchr(end, ',') || value > INT32_MAX ? 1 : (uint32_t)value;
}

uint32_t collective_share(uint32_t allowed, uint32_t processors, uint32_t n) {
    const uint32_t share = processors / (n ? n : 1), least = share < allowed ? share : allowed;
    return least ? least : 1;
}

uint32_t collective_processors(void) {
    const uint32_t allowed = (uint32_t)omp_get_num_procs();
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t rank, ranks;
    read_job(&rank, &ranks);
    if (ranks == 1) return allowed;
    /* terse --ranks binds none of its ranks, so that they have the same processors. */
    if (read_number("TERSE_RANKS", &ranks)) return collective_share(allowed, allowed, ranks);
    return collective_share(allowed, online > 0 ? (uint32_t)online : allowed, local_ranks_of_launcher());
}

/* ---- Processes with sockets between them */

static enum terse_status gather_host(const struct collective *ranks, const void *own, size_t bytes, void *all,
                                     struct terse_error *error) {
    (void)ranks;
    return host_ranks_gather(own, bytes, all, error);
}

static enum terse_status broadcast_host(const struct collective *ranks, void *data, size_t bytes, struct terse_error *error) {
    (void)ranks;
    return host_ranks_broadcast(data, bytes, error);
}

static enum terse_status open_host(uint32_t rank, uint32_t n, struct collective **ranks, struct terse_error *error) {
    static const struct collective_ops ops = {"sockets", gather_host, broadcast_host, give_up};
    static struct collective job = {.ops = &ops};
    job.rank = rank;
    job.ranks = n;
    job.outcomes = calloc(n, sizeof *job.outcomes);
    *ranks = &job;
    if (!job.outcomes) return status_no_memory(error, n * sizeof *job.outcomes, "exchanges between ranks");
    return host_ranks_open(rank, n, error);
}

/* ---- The plug-in */

static enum terse_status open_plugin(struct collective **ranks, struct terse_error *error) {
    const struct collective_plugin own = COLLECTIVE_PLUGIN(NULL);
    struct plugin_file file;
    if (!plugin_find("mpi", &file))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "started as one of several ranks, and there is no libterse-mpi.so in %s: build terse where MPI is "
                           "(Debian: libopenmpi-dev), or start it alone",
                           file.folder[0] ? file.folder : "the library's folder");
    void *object = dlopen(file.path, RTLD_NOW | RTLD_LOCAL);
    if (!object) return status_fail(error, TERSE_E_UNSUPPORTED, "MPI cannot be opened: %s", dlerror());
    const struct collective_plugin *plugin = dlsym(object, COLLECTIVE_SYMBOL);
    if (plugin && strcmp(plugin->version, own.version) == 0 && plugin->collective_bytes == own.collective_bytes &&
        plugin->ops_bytes == own.ops_bytes)
        return plugin->open(ranks, error);
    dlclose(object);
    return status_fail(error, TERSE_E_UNSUPPORTED, "%s belongs to another version of terse: build both together", file.path);
}

enum terse_status collective_open(struct collective **ranks, struct terse_error *error) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct collective *opened;
    enum terse_status status = TERSE_OK;
    uint32_t rank, n;
    read_job(&rank, &n);
    pthread_mutex_lock(&mutex);
    if (!opened && n > 1) status = host_ranks_given() ? open_host(rank, n, &opened, error) : open_plugin(&opened, error);
    *ranks = opened ? opened : &collective_local;
    pthread_mutex_unlock(&mutex);
    if (!status && (*ranks)->ranks != n)
        status = status_fail(
            error, TERSE_E_UNSUPPORTED,
            "%u ranks were started, and MPI knows of %u: use the mpirun of the MPI that terse was built with, or another "
            "--mpi of srun",
            n, (*ranks)->ranks);
    return status;
}

enum terse_status terse_job(uint32_t *rank, uint32_t *ranks, struct terse_error *error) {
    struct collective *job;
    read_job(rank, ranks);
    return collective_open(&job, error);
}
