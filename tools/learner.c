/* A process that learns. One at a time for each profile: it holds a lock on a file beside the profile's place for as long as it lives. */
#define _GNU_SOURCE /* SCHED_IDLE */
#include "learner.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

/* Returns a descriptor that holds the lock, which a child inherits; -1: there is none to be had, and *held says that another process has it. */
static int take_lock(const char *path, bool *held) {
    char name[4096 + 8];
    snprintf(name, sizeof name, "%s.lock", path);
    int lock = open(name, O_RDWR | O_CREAT, 0600);
    *held = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0;
    if (!*held) return lock;
    close(lock);
    return -1;
}

/* Becomes the learner, in the child, where only what is safe after fork in a program with threads may be called. */
static void become_learner(char *const arguments[], int nowhere) {
    const struct sched_param none = {0};
    setsid(); /* Ctrl-C is for the command that answers, which ends the learner if it ends itself by that; and the terminal may close */
    if (nice(19) < 0) errno = 0;
    sched_setscheduler(0, SCHED_IDLE, &none);
    for (int i = 0; i < 3; i++) dup2(nowhere, i);
    execv("/proc/self/exe", arguments);
    _exit(EXIT_FAILED);
}

enum learner_start learner_start(struct setup *setup, const char *path) {
    char threads[24];
    char *arguments[] = {"terse", "calibrate", "--kv", METHOD_DEFAULT, "-t", threads, "-m", (char *)setup->model_path, NULL};
    bool held;
    int lock = take_lock(path, &held), nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    snprintf(threads, sizeof threads, "%d", (int)setup->threads);
    if (!setup->model_path) arguments[6] = NULL;
    pid_t child = lock >= 0 && nowhere >= 0 ? fork() : -1;
    if (child == 0) become_learner(arguments, nowhere);
    if (lock >= 0) close(lock);
    if (nowhere >= 0) close(nowhere);
    if (child > 0) setup->learner = child;
    return child > 0 ? LEARNER_STARTED : held ? LEARNER_ELSEWHERE : LEARNER_IMPOSSIBLE;
}

/* Returns false while it still learns. */
static bool learner_ended(struct setup *setup, int *status) {
    if (waitpid(setup->learner, status, WNOHANG) == 0) return false;
    setup->learner = 0;
    return true;
}

void learner_look(struct setup *setup) {
    char command[4096 + 64];
    int status = 0;
    if (!setup->learner || !learner_ended(setup, &status)) return;
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_OK)
        remark("the profile is learned: the next start takes it");
    else
        remark("no profile was learned in the background: %s says why",
               setup_calibrate_command(setup, METHOD_DEFAULT, command, sizeof command));
}

void learner_leave(struct setup *setup, bool goes_on) {
    learner_look(setup);
    if (!setup->learner) return;
    if (goes_on)
        remark("the profile is still being learned in the background by process %d; kill %d ends that", (int)setup->learner,
               (int)setup->learner);
    else
        kill(setup->learner, SIGTERM);
    setup->learner = 0;
}
