/* Declares the subcommands of `terse`. Each gets the arguments after its name and returns the exit status of the program: 0, 1
 * after a line on stderr that says what went wrong, 130 when interrupted. */
#ifndef TERSE_TOOLS_COMMANDS_H
#define TERSE_TOOLS_COMMANDS_H

#include <stdbool.h>

/* A command of the program, as terse.c lists them. */
struct command {
    const char *name, *console, *summary; /* console: its name in messages */
    int (*main)(int argc, char **argv);
    bool over_ranks; /* several ranks may run it together */
};

int cmd_run(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);

#endif
