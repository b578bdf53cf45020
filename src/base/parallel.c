/* Implements workers and how they wait. */
#include "base/parallel.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A wait polls for so many seconds before it sleeps. Sleeping and waking take some microseconds, and so does the work between two
 * waits. */
#define PATIENCE_MOST 50e-6
#define PATIENCE_LEAST 2e-6
#define POLLS 16 /* between two looks at the clock */
#define LINE 64  /* bytes of a cache line */

/* A gate is opened again and again; a thread that waits for it knows how often it was opened before. */
struct gate {
    _Alignas(LINE) _Atomic uint32_t opened;
    _Atomic uint32_t sleepers;
};

struct barrier {
    _Alignas(LINE) _Atomic uint32_t arrived;
    struct gate gate;
};

struct parallel {
    struct gate start;
    struct barrier inside, end; /* of those who run the body; of all */
    uint32_t threads;
    struct worker *workers; /* [threads - 1] */
    /* The work's fields are written before `start` opens. */
    uint32_t width;
    void (*body)(void *user); /* NULL: stop */
    void *user;
    double patience; /* the driver's */
};

struct worker {
    _Alignas(LINE) struct parallel *parallel;
    pthread_t thread;
    uint32_t number;
    double patience;
};

static _Thread_local struct parallel *driven;

/* A place says which part of some work the calling thread does. */
struct place {
    struct parallel *parallel;
    uint32_t number, width; /* width 0: it is in none of ours */
    double *patience;
};
static _Thread_local struct place place;

/* ---- Waiting */

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool is_open(struct gate *gate, uint32_t seen) { return atomic_load(&gate->opened) != seen; }

static bool poll(struct gate *gate, uint32_t seen, double patience) {
    double end = clock_now() + patience;
    do {
        for (int i = 0; i < POLLS; i++) {
            if (is_open(gate, seen)) return true;
            relax();
        }
    } while (clock_now() < end);
    return false;
}

/* Waits until `gate` was opened more than `seen` times. A thread that sleeps counts as a sleeper before it looks a last time, and
 * one that opens looks for sleepers afterwards, so that one of them sees the other. */
static void gate_wait(struct gate *gate, uint32_t seen, double *patience) {
    if (poll(gate, seen, *patience)) {
        *patience = *patience * 2 < PATIENCE_MOST ? *patience * 2 : PATIENCE_MOST;
        return;
    }
    *patience = *patience / 2 > PATIENCE_LEAST ? *patience / 2 : PATIENCE_LEAST;
    atomic_fetch_add(&gate->sleepers, 1);
    while (!is_open(gate, seen)) syscall(SYS_futex, &gate->opened, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&gate->sleepers, 1);
}

static void gate_open(struct gate *gate) {
    atomic_fetch_add(&gate->opened, 1);
    if (atomic_load(&gate->sleepers)) syscall(SYS_futex, &gate->opened, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void barrier_wait(struct barrier *barrier, uint32_t n, double *patience) {
    uint32_t seen = atomic_load(&barrier->gate.opened);
    if (atomic_fetch_add(&barrier->arrived, 1) + 1 < n) {
        gate_wait(&barrier->gate, seen, patience);
        return;
    }
    atomic_store(&barrier->arrived, 0);
    gate_open(&barrier->gate);
}

/* ---- Workers */

static void take_part(struct parallel *p, uint32_t number, double *patience) {
    if (number < p->width) {
        place = (struct place){p, number, p->width, patience};
        p->body(p->user);
        place = (struct place){0};
    }
    barrier_wait(&p->end, p->threads, patience);
}

static void *work(void *user) {
    struct worker *worker = user;
    struct parallel *p = worker->parallel;
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&p->start, seen, &worker->patience);
        if (!p->body) return NULL;
        take_part(p, worker->number, &worker->patience);
    }
}

enum terse_status parallel_new(uint32_t threads, struct parallel **parallel, struct terse_error *error) {
    struct parallel *p = memory_zeros(1, sizeof *p);
    struct worker *workers = memory_zeros(threads, sizeof *workers);
    *parallel = NULL;
    if (!p || !workers) {
        memory_free(p);
        memory_free(workers);
        return status_no_memory(error, sizeof *p + threads * sizeof *workers, "threads");
    }
    *p = (struct parallel){.threads = 1, .workers = workers, .patience = PATIENCE_MOST};
    for (; p->threads < threads; p->threads++) {
        struct worker *worker = &workers[p->threads - 1];
        *worker = (struct worker){.parallel = p, .number = p->threads, .patience = PATIENCE_MOST};
        if (!thread_start(&worker->thread, work, worker)) continue;
        parallel_free(p);
        return status_fail(error, TERSE_E_MEMORY, "the system refused a thread");
    }
    *parallel = p;
    return TERSE_OK;
}

void parallel_free(struct parallel *p) {
    if (!p) return;
    p->body = NULL;
    gate_open(&p->start);
    for (uint32_t i = 1; i < p->threads; i++) pthread_join(p->workers[i - 1].thread, NULL);
    memory_free(p->workers);
    memory_free(p);
}

void parallel_drive(struct parallel *parallel) { driven = parallel; }

/* ---- Work */

static void run_alone(void (*body)(void *user), void *user) {
    struct place before = place;
    place = (struct place){.width = 1};
    body(user);
    place = before;
}

void parallel_run(uint32_t threads, void (*body)(void *user), void *user) {
    struct parallel *p = driven;
    if (threads <= 1 || place.width || omp_in_parallel()) {
        run_alone(body, user);
        return;
    }
    if (!p) {
#pragma omp parallel num_threads(threads)
        body(user);
        return;
    }
    if (p->threads == 1) {
        run_alone(body, user);
        return;
    }
    p->width = threads < p->threads ? threads : p->threads;
    p->body = body;
    p->user = user;
    gate_open(&p->start);
    take_part(p, 0, &p->patience);
}

uint32_t parallel_thread(void) { return place.width ? place.number : (uint32_t)omp_get_thread_num(); }

uint32_t parallel_threads(void) { return place.width ? place.width : (uint32_t)omp_get_num_threads(); }

void parallel_barrier(void) {
    if (place.width > 1) {
        barrier_wait(&place.parallel->inside, place.width, place.patience);
    } else if (!place.width) {
#pragma omp barrier
    }
}

struct parallel_part parallel_part_of(size_t n) {
    size_t thread = parallel_thread(), threads = parallel_threads();
    return (struct parallel_part){n * thread / threads, n * (thread + 1) / threads};
}
