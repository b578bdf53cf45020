/* Writes the manual's pages and the shells' completions from the tables of options that the commands parse their arguments by. */
#ifndef TERSE_TOOLS_PAGES_H
#define TERSE_TOOLS_PAGES_H

#include "commands.h"

#include <stddef.h>

/* Writes terse.1, terse-NAME.1 of each command, terse.bash and _terse (for zsh) to a folder that exists. Returns an exit status. */
int pages_write(const char *folder, const struct command *commands, size_t n);

#endif
