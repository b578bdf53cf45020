/* Handles the terminal for the command: messages and progress go to stderr, results to stdout, and signals set flags. One command
 * runs per process, so this state is the process's. */
#ifndef TERSE_TOOLS_CONSOLE_H
#define TERSE_TOOLS_CONSOLE_H

#include "terse.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_INTERRUPTED = 130, EXIT_TERMINATED = 143, EXIT_CLOSED_PIPE = 141 };

/* Names the command in messages ("terse run"). From here on SIGINT and SIGTERM only set a flag (a second one kills), and a closed
 * pipe is an error of the write. */
void console_begin(const char *command);
/* A process may be one of several ranks of a job (docs/distributed.md). Then all but the first are silent, except for complaints that are
 * theirs alone. */
uint32_t console_ranks(void);
bool console_is_first(void);
/* Leaves it to rank 0 to end this rank, which does not end by SIGINT or SIGTERM then. */
void console_ignore_signals(void);
/* Flushes and closes stdout. Returns `status`, or after a full disk or a closed pipe EXIT_FAILED, with a line on stderr. */
int console_end(int status);

bool console_interrupted(void);
/* Makes SIGINT end a reply, not the conversation: from here on a second and a third one do not kill while the first is unanswered. */
void console_expect_interrupts(void);
/* Answers SIGINT: true if there was one, and no SIGTERM; console_interrupted is false until the next. */
bool console_take_interrupt(void);
double console_seconds(void); /* of a clock that only goes forward */

/* Writes one line to stderr, after the command's name and after clearing the bar. Returns EXIT_FAILED. */
__attribute__((format(printf, 1, 2))) int complain(const char *format, ...);
/* Does the same for a failure of the library; returns EXIT_INTERRUPTED, silently, when the failure is an interrupt. */
int complain_error(const struct terse_error *error);
/* Writes one line to stderr without the command's name. */
__attribute__((format(printf, 1, 2))) void remark(const char *format, ...);

/* Writes to stdout and flushes. Returns false after a failure, which console_end reports. */
/* Returns whether stdout is a terminal that knows how to dim text. */
bool output_is_terminal(void);
bool output_write(const char *bytes, size_t n_bytes);

/* Shows progress, as a struct terse_progress.report and for the commands themselves: a bar on a terminal, a line every few seconds
 * otherwise, nothing for short work. Returns false after an interrupt. `user` is not used. */
bool progress_show(void *user, const char *what, uint64_t done, uint64_t total);
/* Takes the bar away, before something else is printed or when the work is over. */
void progress_clear(void);

#endif
