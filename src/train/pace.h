/* How far a long work is, asked and told between pieces of some hundredths of a second. Once it shall stop, the work does nothing more where it
 * asks, and what it would have made is for nobody. */
#ifndef TERSE_TRAIN_PACE_H
#define TERSE_TRAIN_PACE_H

#include "terse.h"

struct pace {
    const struct terse_progress *progress; /* NULL or without a callback: nobody is told */
    const char *what;
    uint64_t done, total; /* multiplications; total about */
    uint64_t told;        /* of them when the last report was made */
    bool stopped;
};

/* So many multiplications are about to be done; false where they shall not be. `pace` NULL: always true. Any thread of the caller's team; thread 0
 * alone reports. */
bool pace_go_on(struct pace *pace, uint64_t multiplications);
/* Outside of parallel work: what was done is reported at once. */
bool pace_tell(struct pace *pace);
/* All is done: the last report. False where it was stopped. */
bool pace_end(struct pace *pace);

#endif
