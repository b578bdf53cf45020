/* Writes messages and the progress bar, handles signals, and checks that results really were written. */
#include "console.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *command_name = "terse";
static atomic_int stop_signal; /* whichever thread the signal came to */
static int output_errno;       /* of the first failed write to stdout */
static FILE *messages;         /* of a rank that is otherwise silent; NULL: stderr */

static void on_signal(int number) {
    if (stop_signal != SIGTERM) stop_signal = number;
}

static void catch_signal(int number, void (*handler)(int), unsigned flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = (int)flags};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

static uint32_t rank, ranks = 1; /* of the job that this process belongs to */

/* Makes all ranks but the first one silent, since all compute the same. Messages alone have a stderr of their own. */
static void be_silent(void) {
    messages = fdopen(dup(STDERR_FILENO), "w");
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(EXIT_FAILED);
}

static void join_job(void) {
    struct terse_error error;
    const enum terse_status status = terse_job(&rank, &ranks, &error);
    if (rank) be_silent();
    if (status) exit(complain_error(&error));
}

uint32_t console_ranks(void) { return ranks; }

bool console_is_first(void) { return !rank; }

void console_begin(const char *command) {
    command_name = command;
    join_job();
    catch_signal(SIGINT, on_signal, SA_RESETHAND);
    catch_signal(SIGTERM, on_signal, SA_RESETHAND);
    signal(SIGPIPE, SIG_IGN);
}

void console_ignore_signals(void) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
}

bool console_interrupted(void) { return stop_signal != 0; }

/* Lets Ctrl-C pressed twice stop the reply, not the conversation: an impatient user means only the reply. */
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

/* As a rule all ranks fail alike, and the first one's message stands for all: when it ends so does the job, and the others with it. A
 * rank that is still there after that has failed alone. */
#define RANK_WAITS 4 /* seconds */

int complain(const char *format, ...) {
    FILE *to = messages ? messages : stderr;
    va_list arguments;
    progress_clear();
    if (rank && (sleep(RANK_WAITS) || console_interrupted())) _exit(EXIT_FAILED); /* the job is ending already */
    fprintf(to, "%s: ", command_name);
    if (rank) fprintf(to, "rank %u: ", rank);
    va_start(arguments, format);
    vfprintf(to, format, arguments);
    va_end(arguments);
    fputc('\n', to);
    fflush(to);
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
    if (output_errno == EPIPE) return EXIT_CLOSED_PIPE; /* the reader has enough: `terse ... | head` */
    return complain("cannot write to standard output: %s", strerror(output_errno));
}

/* ---- Progress */

static struct {
    char what[64];
    uint64_t done;
    double started, shown;
    bool drawn; /* a bar stands on the terminal's line */
} bar;

static bool is_terminal(int file) {
    const char *term = getenv("TERM");
    return isatty(file) && term && strcmp(term, "dumb") != 0;
}

bool output_is_terminal(void) { return is_terminal(STDOUT_FILENO); }

void progress_clear(void) {
    if (bar.drawn) fputs("\r\033[K", stderr);
    bar.drawn = false;
}

static void draw_bar(double fraction, double seconds_left) {
    char cells[31];
    int full = (int)(fraction * 30);
    for (int i = 0; i < 30; i++) cells[i] = i < full ? '#' : '-';
    cells[30] = 0;
    fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %.0f s left", bar.what, cells, 100 * fraction, seconds_left);
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
    bool terminal = is_terminal(STDERR_FILENO);
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
