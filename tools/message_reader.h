/* Reads messages from standard input, one line each or several. */
#ifndef TERSE_TOOLS_MESSAGE_READER_H
#define TERSE_TOOLS_MESSAGE_READER_H

#include <stdbool.h>

struct message_reader;

enum message_read {
    MESSAGE_READ,        /* it may be empty */
    MESSAGE_REFUSED,     /* not text, as one line has said */
    MESSAGE_END,         /* of the input */
    MESSAGE_INTERRUPTED, /* by a signal: what was typed is dropped */
    MESSAGE_FAILED       /* the input cannot be read, as one line has said */
};

/* Makes a reader of standard input. Lines are edited where standard input and output are terminals (line_editor.h). `color`: what
 * is typed at a terminal is green. NULL when memory is refused, which has been reported. */
struct message_reader *message_reader_new(bool color);
void message_reader_free(struct message_reader *reader);
/* Returns whether standard input is a terminal. */
bool message_reader_terminal(const struct message_reader *reader);
/* Reads the next message into *message, valid until the next call: a line without its end (LF or CR LF). Where a line ends with a
 * backslash, a newline takes the backslash's place and the next line follows. */
enum message_read message_reader_next(struct message_reader *reader, char **message);

#endif
