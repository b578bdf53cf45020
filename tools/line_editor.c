/* Edits lines by libedit. It reads characters itself, since libedit would begin anew after a signal, and since text is UTF-8
 * whatever the locale says. */
#include "line_editor.h"

#include "console.h"
#include "text.h"

#ifdef TERSE_LIBEDIT
#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 1000
#define NO_BYTE (-1)

struct line_editor {
    EditLine *lines;
    History *history;
    char prompt[32];
    bool color, interrupted, no_text; /* the latter two: of the line being edited */
    int read_ahead;                   /* a byte that begins the next character, or NO_BYTE */
};

static atomic_bool resized, resumed; /* the terminal; this program on it */

static void on_resize(int number) {
    (void)number;
    resized = true;
}

static void on_resume(int number) {
    (void)number;
    resumed = true;
}

static struct line_editor *editor_of(EditLine *lines) {
    void *editor = NULL;
    el_get(lines, EL_CLIENTDATA, &editor);
    return editor;
}

static char *prompt_of(EditLine *lines) { return editor_of(lines)->prompt; }

static void follow_terminal(struct line_editor *e) {
    if (atomic_exchange(&resumed, false)) { /* the program that had the terminal meanwhile has set it otherwise */
        el_set(e->lines, EL_PREP_TERM, 0);
        el_set(e->lines, EL_PREP_TERM, 1);
        el_set(e->lines, EL_REFRESH);
    }
    if (atomic_exchange(&resized, false)) el_resize(e->lines);
}

/* Reads a byte. Returns 1; 0 at the end of standard input; -1 after a failure, or a signal that asks to stop. */
static int next_byte(struct line_editor *e, unsigned char *byte) {
    if (e->read_ahead != NO_BYTE) {
        *byte = (unsigned char)e->read_ahead;
        e->read_ahead = NO_BYTE;
        return 1;
    }
    for (;;) {
        /* A signal may come to another thread, or just before the call, so this does not wait for ever. */
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        int ready = poll(&input, 1, 500);
        if (ready < 0 && errno != EINTR) return -1;
        if ((e->interrupted = console_interrupted())) return -1;
        follow_terminal(e);
        if (ready <= 0) continue;
        ssize_t n = read(STDIN_FILENO, byte, 1);
        if (n >= 0 || errno != EINTR) return (int)n;
    }
}

/* Reads a character, as an EL_GETCFN. Bytes that are not UTF-8 show as U+FFFD. */
static int next_character(EditLine *lines, wchar_t *character) {
    struct line_editor *e = editor_of(lines);
    unsigned char bytes[4];
    mbstate_t state = {0};
    int got = next_byte(e, &bytes[0]);
    if (got <= 0) return got;
    size_t n = 1, length = bytes[0] < 0xc0 ? 1 : bytes[0] < 0xe0 ? 2 : bytes[0] < 0xf0 ? 3 : 4;
    *character = bytes[0];
    if (bytes[0] < 0x80) return 1;
    for (; n < length; n++) {
        if ((got = next_byte(e, &bytes[n])) <= 0) return got;
        if ((bytes[n] & 0xc0) == 0x80) continue;
        e->read_ahead = bytes[n];
        break;
    }
    if (text_valid((char *)bytes, n) == n && mbrtowc(character, (char *)bytes, n, &state) == n) return 1;
    *character = 0xfffd;
    e->no_text = true;
    return 1;
}

static void catch_signal(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

struct line_editor *line_editor_new(bool color) {
    const char *term = getenv("TERM");
    HistEvent event;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !term || strcmp(term, "dumb") == 0) return NULL;
    if (!setlocale(LC_CTYPE, "C.UTF-8")) return NULL;
    struct line_editor *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->color = color;
    e->read_ahead = NO_BYTE;
    e->history = history_init();
    e->lines = el_init("terse", stdin, stdout, stderr);
    if (!e->history || !e->lines) {
        line_editor_free(e);
        return NULL;
    }
    history(e->history, &event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->lines, EL_CLIENTDATA, e);
    el_set(e->lines, EL_EDITOR, "emacs");
    el_set(e->lines, EL_HIST, history, e->history);
    el_set(e->lines, EL_PROMPT_ESC, prompt_of, '\1');
    el_set(e->lines, EL_GETCFN, next_character);
    el_source(e->lines, NULL); /* ~/.editrc */
    catch_signal(SIGWINCH, on_resize);
    catch_signal(SIGCONT, on_resume);
    return e;
}

void line_editor_free(struct line_editor *editor) {
    if (!editor) return;
    if (editor->lines) el_end(editor->lines);
    if (editor->history) history_end(editor->history);
    free(editor);
}

enum line_edited line_editor_next(struct line_editor *e, const char *prompt, const char **line, size_t *n_bytes) {
    HistEvent event;
    int count = 0;
    snprintf(e->prompt, sizeof e->prompt, e->color ? "%s\1\033[32m\1" : "%s", prompt);
    e->interrupted = e->no_text = false;
    if (atomic_exchange(&resized, false)) el_resize(e->lines); /* while no line was edited */
    el_set(e->lines, EL_PREP_TERM, 1);                         /* before the prompt is there to be answered */
    *line = el_gets(e->lines, &count);
    bool got = *line && count > 0;
    if (e->color) fputs("\033[0m", stdout);
    if (!got) fputc('\n', stdout);
    fflush(stdout);
    *n_bytes = got ? (size_t)count : 0;
    if (!got) return e->interrupted ? LINE_INTERRUPTED : LINE_END;
    if (e->no_text) return LINE_NO_TEXT;
    if ((*line)[0] != '\n') history(e->history, &event, H_ENTER, *line);
    return LINE_EDITED;
}

#endif
