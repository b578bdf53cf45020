/* Starts the command as several ranks on this machine, without mpirun: terse --ranks N COMMAND ... (docs/distributed.md). */
#ifndef TERSE_TOOLS_LOCAL_RANKS_H
#define TERSE_TOOLS_LOCAL_RANKS_H

#include <stdbool.h>

/* Starts the ranks that `count` says. Returns true in each of them, which goes on as the command; false in the process that was called, when
 * all have ended, with *status to exit with. One that fails, or is killed, ends the others. */
bool local_ranks_start(const char *count, int *status);

#endif
