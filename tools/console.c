/* Messages, the progress bar, signals, and the check that results really were written. */
#include "console.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static const char *command_name = "terse";
static atomic_int stop_signal; /* whichever thread the signal came to */
static int output_errno;       /* of the first failed write to stdout */

static void on_signal(int number) {
    if (stop_signal != SIGTERM) stop_signal = number;
}

static void catch_signal(int number, void (*handler)(int), unsigned flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = (int)flags};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

void console_begin(const char *command) {
    command_name = command;
    catch_signal(SIGINT, on_signal, SA_RESETHAND);
    catch_signal(SIGTERM, on_signal, SA_RESETHAND);
    signal(SIGPIPE, SIG_IGN);
}

bool console_interrupted(void) { return stop_signal != 0; }

/* Who presses Ctrl-C twice to stop a reply does not mean the conversation. */
static void on_interrupt(int number) {
    static atomic_int unanswered;
    if (stop_signal) {
        if (++unanswered >= 2) signal(number, SIG_DFL);
    } else
        unanswered = 0;
    on_signal(number);
}

void console_expect_interrupts(void) { catch_signal(SIGINT, on_interrupt, 0); }

bool console_take_interrupt(void) {
    int expected = SIGINT;
    if (!atomic_compare_exchange_strong(&stop_signal, &expected, 0)) return false;
    console_expect_interrupts();
    return true;
}

double console_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- Messages */

int complain(const char *format, ...) {
    va_list arguments;
    progress_clear();
    fprintf(stderr, "%s: ", command_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return EXIT_FAILED;
}

int complain_error(const struct terse_error *error) {
    if (error->code == TERSE_E_INTERRUPTED) {
        progress_clear();
        return EXIT_INTERRUPTED;
    }
    return complain("%s", error->message);
}

void remark(const char *format, ...) {
    va_list arguments;
    progress_clear();
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* ---- Results */

bool output_write(const char *bytes, size_t n_bytes) {
    if (output_errno) return false;
    if (fwrite(bytes, 1, n_bytes, stdout) != n_bytes || fflush(stdout) != 0) output_errno = errno ? errno : EIO;
    return !output_errno;
}

int console_end(int status) {
    progress_clear();
    bool failed_before = ferror(stdout) != 0;
    if (fclose(stdout) != 0 && !output_errno) output_errno = errno;
    if (failed_before && !output_errno) output_errno = EIO;
    if (status == EXIT_INTERRUPTED) return stop_signal == SIGTERM ? EXIT_TERMINATED : status;
    if (!output_errno) return status;
    if (output_errno == EPIPE) return EXIT_CLOSED_PIPE; /* whoever reads has enough: `terse ... | head` */
    return complain("cannot write to standard output: %s", strerror(output_errno));
}

/* ---- Progress */

static struct {
    char what[64];
    uint64_t done;
    double started, shown;
    bool drawn; /* a bar stands on the terminal's line */
} bar;

static bool stderr_is_terminal(void) {
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

void progress_clear(void) {
    if (bar.drawn) fputs("\r\033[K", stderr);
    bar.drawn = false;
}

/* Asked before each bar: the terminal may have changed. */
static size_t terminal_columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* A line that leaves the last column free, beyond which a terminal would begin another: the stage, 4 to 30 cells, the percentage and the time
 * left; where there is no room, without the cells, then without the time, and then of the stage what there is room for. */
static void draw_bar(double fraction, double seconds_left) {
    enum { LEAST = 4, MOST = 30 };
    char cells[MOST + 5] = "", left[32], percent[8];
    size_t room = terminal_columns() - 1, what = strlen(bar.what);
    snprintf(percent, sizeof percent, " %3.0f%%", 100 * fraction);
    snprintf(left, sizeof left, "  %.0f s left", seconds_left);
    if (what + strlen(percent) + strlen(left) > room) left[0] = 0;
    size_t text = what + strlen(percent) + strlen(left);
    if (text + LEAST + strlen(" []") <= room) {
        size_t n = room - text - strlen(" []"), full;
        n = n < MOST ? n : MOST;
        full = (size_t)(fraction * (double)n);
        memcpy(cells, " [", 2);
        for (size_t i = 0; i < n; i++) cells[2 + i] = i < full ? '#' : '-';
        memcpy(cells + 2 + n, "]", 2);
    }
    if (text > room) what = room > strlen(percent) ? room - strlen(percent) : 0;
    fprintf(stderr, "\r\033[K%.*s%s%.*s%s", (int)what, bar.what, cells, (int)room, percent, left);
    bar.drawn = true;
}

bool progress_show(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    double now = console_seconds();
    if (done < bar.done || strncmp(bar.what, what, sizeof bar.what - 1) != 0) {
        snprintf(bar.what, sizeof bar.what, "%s", what);
        bar.started = bar.shown = now;
    }
    bar.done = done;
    bool terminal = stderr_is_terminal();
    double pause = terminal ? (bar.drawn ? 0.1 : 0.5) : 5;
    if (done >= total) {
        progress_clear();
        bar.what[0] = 0;
    } else if (done > 0 && now - bar.shown >= pause) {
        double fraction = (double)done / (double)total, left = (now - bar.started) * (1 - fraction) / fraction;
        if (terminal)
            draw_bar(fraction, left);
        else
            fprintf(stderr, "%s: %.0f%%, %.0f s left\n", bar.what, 100 * fraction, left);
        bar.shown = now;
    }
    return !console_interrupted();
}
