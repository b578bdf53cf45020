/* Reports of long work. */
#include "train/pace.h"

#include "backend/cpu/piece.h"

#include <omp.h>

static bool stopped(const struct pace *p) {
    bool is;
#pragma omp atomic read
    is = p->stopped;
    return is;
}

static bool tell(struct pace *p, uint64_t done) {
    p->told = done;
    if (!p->progress || !p->progress->report) return true;
    if (p->progress->report(p->progress->user, p->what, done, p->total)) return true;
#pragma omp atomic write
    p->stopped = true;
    return false;
}

bool pace_go_on(struct pace *p, uint64_t multiplications) {
    uint64_t done;
    if (!p) return true;
    if (stopped(p)) return false;
#pragma omp atomic capture
    {
        done = p->done;
        p->done += multiplications;
    }
    if (omp_get_thread_num() != 0 || (double)(done - p->told) < PIECE_MULTIPLICATIONS || done >= p->total) return true;
    return tell(p, done);
}

bool pace_tell(struct pace *p) {
    if (stopped(p)) return false;
    return p->done <= p->told || p->done >= p->total || tell(p, p->done);
}

bool pace_end(struct pace *p) { return !stopped(p) && tell(p, p->total); }
