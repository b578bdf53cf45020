/* Reads lines, edited or plain, and makes messages of them. */
#include "message_reader.h"

#include "console.h"
#include "line_editor.h"
#include "text.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct message_reader {
    bool terminal, color;
    struct line_editor *editor; /* NULL: plain lines */
    size_t number;              /* of lines read */
    char *plain, *message;
    size_t plain_capacity, message_size, message_capacity;
};

struct message_reader *message_reader_new(bool color) {
    struct message_reader *r = calloc(1, sizeof *r);
    if (!r) {
        complain("no memory for a conversation");
        return NULL;
    }
    r->terminal = isatty(STDIN_FILENO);
    r->color = color && r->terminal;
    r->editor = line_editor_new(r->color);
    return r;
}

void message_reader_free(struct message_reader *reader) {
    if (!reader) return;
    line_editor_free(reader->editor);
    free(reader->plain);
    free(reader->message);
    free(reader);
}

bool message_reader_terminal(const struct message_reader *reader) { return reader->terminal; }

/* ---- Lines: to *line, with their ends */

static enum message_read read_edited(struct message_reader *r, const char *prompt, const char **line, size_t *n_bytes) {
    switch (line_editor_next(r->editor, prompt, line, n_bytes)) {
    case LINE_EDITED: return MESSAGE_READ;
    case LINE_NO_TEXT:
        complain("line %zu of standard input is not text: bytes that are not UTF-8; give UTF-8 text", r->number);
        return MESSAGE_REFUSED;
    case LINE_INTERRUPTED: return MESSAGE_INTERRUPTED;
    default: return MESSAGE_END;
    }
}

/* Waits until a terminal, which gives whole lines, has one. It does not wait for ever, since a signal may come just before the
 * call. */
static void await_line(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!console_interrupted() && poll(&input, 1, 500) <= 0) {}
}

static enum message_read read_plain(struct message_reader *r, const char *prompt, const char **line, size_t *n_bytes) {
    char name[48];
    if (r->terminal) fprintf(stderr, r->color ? "%s\033[32m" : "%s", prompt);
    if (r->terminal) await_line();
    errno = 0;
    ssize_t length = console_interrupted() ? -1 : getline(&r->plain, &r->plain_capacity, stdin);
    if (r->color) fputs("\033[0m", stderr);
    *line = r->plain;
    *n_bytes = length < 0 ? 0 : (size_t)length;
    if (length < 0) {
        bool interrupted = console_interrupted(), failed = ferror(stdin) && !interrupted;
        if (r->terminal) fputc('\n', stderr);
        if (failed) complain("cannot read standard input: %s", strerror(errno));
        clearerr(stdin);
        return interrupted ? MESSAGE_INTERRUPTED : failed ? MESSAGE_FAILED : MESSAGE_END;
    }
    snprintf(name, sizeof name, "line %zu of standard input", r->number);
    return text_check(name, *line, *n_bytes) == EXIT_OK ? MESSAGE_READ : MESSAGE_REFUSED;
}

/* ---- Messages */

static bool append(struct message_reader *r, const char *line, size_t n_bytes) {
    size_t needed = r->message_size + n_bytes + 1;
    if (needed > r->message_capacity) {
        char *larger = realloc(r->message, 2 * needed);
        if (!larger) return false;
        r->message = larger;
        r->message_capacity = 2 * needed;
    }
    memcpy(r->message + r->message_size, line, n_bytes);
    r->message_size += n_bytes;
    r->message[r->message_size] = 0;
    return true;
}

enum message_read message_reader_next(struct message_reader *r, char **message) {
    enum message_read whole = MESSAGE_READ; /* or refused, by one of its lines; the others are read all the same */
    r->message_size = 0;
    for (bool first = true, goes_on = true; goes_on; first = false) {
        const char *line;
        size_t n_bytes;
        r->number++;
        enum message_read read = (r->editor ? read_edited : read_plain)(r, first ? "> " : ". ", &line, &n_bytes);
        if (read == MESSAGE_END && !first) break;
        if (read != MESSAGE_READ && read != MESSAGE_REFUSED) return read;
        if (read == MESSAGE_REFUSED) whole = read;
        if (n_bytes && line[n_bytes - 1] == '\n') n_bytes--;
        if (n_bytes && line[n_bytes - 1] == '\r') n_bytes--;
        goes_on = n_bytes && line[n_bytes - 1] == '\\';
        if (goes_on) n_bytes--;
        if (!append(r, line, n_bytes) || (goes_on && !append(r, "\n", 1))) {
            complain("no memory for a message of %zu bytes", r->message_size + n_bytes);
            return MESSAGE_FAILED;
        }
    }
    *message = r->message;
    return whole;
}
