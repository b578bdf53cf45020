/* Watches whether the other ranks of an MPI job are still there, since not all that starts ranks ends them when one is killed. Rank 0 has a TCP
 * connection with each other rank; its end without a farewell says that the process behind it is gone. Between ranks that cannot connect
 * there is none, and they wait for each other as MPI has it. All ranks call these, one thread at a time. */
#ifndef TERSE_DIST_MPI_WATCH_H
#define TERSE_DIST_MPI_WATCH_H

#include <mpi.h>
#include <stdint.h>

/* Connects the ranks, which call it together. */
void watch_begin(MPI_Comm world, uint32_t rank, uint32_t ranks);
/* Returns the first rank that was found gone, of those to which this one is connected; UINT32_MAX: there is none. It does not wait. */
uint32_t watch_lost(void);
/* Says farewell: this process ends well. */
void watch_end(void);

#endif
