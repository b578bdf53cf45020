/* Starts the library's own threads. */
#ifndef TERSE_BASE_THREAD_H
#define TERSE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Starts a thread that blocks all signals, as do the threads that it starts: signals are for the threads that the caller knows of.
 * Returns 0 or an error number. */
static inline int thread_start(pthread_t *thread, void *(*work)(void *user), void *user) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, work, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

#endif
