/* Owns a thread for as long as one piece of work takes. */
#include "apart.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

struct work {
    void (*function)(void *user);
    void *user;
};

static void *thread_main(void *user) {
    struct work *work = user;
    work->function(work->user);
    return NULL;
}

void run_apart(void (*function)(void *user), void *user) {
    struct work work = {function, user};
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all); /* signals are for the thread that waits */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, thread_main, &work);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        function(user);
    else
        pthread_join(thread, NULL);
}
