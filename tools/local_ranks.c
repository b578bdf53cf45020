/* Starts ranks, and waits for them. */
#include "local_ranks.h"
#include "console.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MOST 64

static pid_t pids[RANKS_MOST];
static long ranks;

static void end_all(int number) {
    for (long rank = 0; rank < ranks; rank++)
        if (pids[rank] > 0) kill(pids[rank], number);
}

/* SIGTERM lets rank 0 end what it is at, and with that the others. */
static void pass_on(int number) {
    if (pids[0] > 0) kill(pids[0], number);
}

/* Says to a process which rank it is, and which sockets it has; a rank ends with the process that has started it. */
static bool become(long rank, const int sockets[RANKS_MOST][2]) {
    char text[RANKS_MOST * 8] = "", number[16];
    if (rank) {
        const int nothing = open("/dev/null", O_RDONLY);
        if (nothing >= 0) dup2(nothing, STDIN_FILENO); /* standard input is rank 0's */
    }
    for (long other = 1; other < ranks; other++) {
        const size_t length = strlen(text);
        if (!rank || rank == other)
            snprintf(text + length, sizeof text - length, "%s%d", length ? "," : "", sockets[other][rank ? 1 : 0]);
        close(sockets[other][rank ? 0 : 1]);
        if (rank && rank != other) close(sockets[other][1]);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(number, sizeof number, "%ld", rank);
    if (setenv("TERSE_RANK", number, 1)) return false;
    snprintf(number, sizeof number, "%ld", ranks);
    return !setenv("TERSE_RANKS", number, 1) && !setenv("TERSE_RANK_SOCKETS", text, 1);
}

/* Waits until all have ended, and returns the status of the first that failed. */
static int wait_for_all(void) {
    int status = EXIT_OK;
    for (long left = ranks; left > 0;) {
        int how;
        long rank = 0;
        const pid_t pid = wait(&how);
        if (pid < 0 && errno == EINTR) continue;
        if (pid < 0) break;
        while (rank < ranks && pids[rank] != pid) rank++;
        if (rank == ranks) continue;
        pids[rank] = 0;
        left--;
        if (how == 0 || status != EXIT_OK) continue;
        status = WIFEXITED(how) ? WEXITSTATUS(how) : EXIT_FAILED;
        if (WIFSIGNALED(how)) fprintf(stderr, "terse: rank %ld of %ld was ended by signal %d\n", rank, ranks, WTERMSIG(how));
        end_all(SIGKILL);
    }
    return status;
}

bool local_ranks_start(const char *count, int *status) {
    static int sockets[RANKS_MOST][2];
    char *end;
    ranks = strtol(count, &end, 10);
    *status = EXIT_FAILED;
    if (console_ranks() > 1) {
        complain("--ranks %s: this process is one of %u ranks already, which mpirun or the like has started", count,
                 console_ranks());
        return false;
    }
    if (end == count || *end || ranks < 1 || ranks > RANKS_MOST) {
        complain("--ranks %s: must be a number of processes from 1 to %d", count, RANKS_MOST);
        return false;
    }
    for (long rank = 1; rank < ranks; rank++)
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[rank])) {
            complain("%ld ranks cannot be started: %s", ranks, strerror(errno));
            return false;
        }
    for (long rank = 0; rank < ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) return become(rank, (const int(*)[2])sockets);
        if (pids[rank] < 0) {
            complain("%ld ranks cannot be started: %s", ranks, strerror(errno));
            end_all(SIGKILL);
            return false;
        }
    }
    signal(SIGINT, SIG_IGN); /* a terminal sends it to the ranks, too */
    signal(SIGTERM, pass_on);
    for (long rank = 1; rank < ranks; rank++) close(sockets[rank][0]), close(sockets[rank][1]);
    *status = wait_for_all();
    return false;
}
