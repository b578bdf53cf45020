/* How ranks of one machine divide its processors: by what the launcher says of their number, and not twice where it has bound them to some. */
#include "dist/collective.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const variables[] = {"TERSE_RANK",
                                        "TERSE_RANKS",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MPI_LOCALNRANKS",
                                        "PMIX_RANK",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_TASKS_PER_NODE"};
enum { VARIABLES = sizeof variables / sizeof variables[0] };

static void clear(void) {
    for (size_t i = 0; i < VARIABLES; i++) unsetenv(variables[i]);
}

static void shares_are_at_least_one_processor(void **state) {
    static const struct {
        uint32_t allowed, processors, ranks, share;
    } cases[] = {
        {64, 64, 4, 16}, {64, 64, 1, 64}, {64, 64, 3, 21}, {2, 2, 3, 1}, {64, 64, 0, 64}, {1, 64, 2, 1}, /* bound to a core */
        {32, 64, 2, 32}, /* bound to a socket each: divided already */
        {32, 64, 4, 16}, /* two of them to each socket */
        {6, 64, 4, 6},   /* to as many as srun was asked for */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(collective_share(cases[i].allowed, cases[i].processors, cases[i].ranks), cases[i].share);
}

/* Rank 1 of `ranks`, of which so many are on this machine by the launcher. */
struct launched {
    const char *rank, *ranks, *n, *local, *value;
    uint32_t local_ranks;
    bool binds; /* may bind its ranks */
};

static void launchers_say_how_many_ranks_there_are(void **state) {
    static const struct launched cases[] = {
        {"TERSE_RANK", "TERSE_RANKS", "2", "TERSE_RANKS", "2", 2, false},
        {"TERSE_RANK", "TERSE_RANKS", "5000", "TERSE_RANKS", "5000", 5000, false},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_SIZE", "2", 2, true},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1, true},
        {"PMI_RANK", "PMI_SIZE", "4", "MPI_LOCALNRANKS", "2", 2, true},
        {"PMI_RANK", "PMI_SIZE", "4", "SLURM_STEP_TASKS_PER_NODE", "2(x2)", 2, true},
        {"PMIX_RANK", "SLURM_NTASKS", "4", "SLURM_STEP_TASKS_PER_NODE", "4", 4, true},
        {"PMIX_RANK", "SLURM_NTASKS", "5", "SLURM_STEP_TASKS_PER_NODE", "2(x2),1", 1,
         true}, /* which this machine has is not read */
        {"PMIX_RANK", "SLURM_NTASKS", "4", "SLURM_STEP_TASKS_PER_NODE", "many", 1, true},
        {"PMIX_RANK", "SLURM_NTASKS", "4", "SLURM_STEP_TASKS_PER_NODE", "", 1, true},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "1", "OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1,
         true}, /* one process, as of a rank's child */
    };
    (void)state;
    const uint32_t allowed = (uint32_t)omp_get_num_procs(), online = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct launched *c = &cases[i];
        const uint32_t expected = collective_share(allowed, c->binds ? online : allowed, c->local_ranks);
        clear();
        setenv(c->rank, atoi(c->n) > 1 ? "1" : "0", 1);
        setenv(c->ranks, c->n, 1);
        setenv(c->local, c->value, 1);
        if (collective_processors() != expected) fail_msg("%s=%s: %u threads", c->local, c->value, collective_processors());
    }
    clear();
    assert_int_equal(collective_processors(), allowed);
    setenv("SLURM_STEP_TASKS_PER_NODE", "4", 1); /* as in a batch script: this process belongs to no job of ranks */
    assert_int_equal(collective_processors(), allowed);
    clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shares_are_at_least_one_processor),
                                       cmocka_unit_test(launchers_say_how_many_ranks_there_are)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
