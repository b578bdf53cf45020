/* Holds a conversation at a terminal or from standard input: `terse run -cnv`. */
#ifndef TERSE_TOOLS_CHAT_H
#define TERSE_TOOLS_CHAT_H

#include "run.h"

/* Reads messages and commands (/help lists them) until they end, and writes replies. At a terminal nothing but its end ends the
 * chat: an interrupt stops the reply, and failures are reported. Elsewhere an interrupt or a failed reply ends it; *refused: a line
 * was no message and no command, or a command failed. Returns an exit status. */
int chat(struct run *run, bool *refused);

#endif
