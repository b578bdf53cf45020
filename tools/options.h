/* Reads command-line options by a table: parsing, range checks and --help come from the same rows, so that they cannot disagree. */
#ifndef TERSE_TOOLS_OPTIONS_H
#define TERSE_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kind says what `target` points to and what the value looks like. */
enum option_kind {
    OPTION_FLAG,    /* bool */
    OPTION_TEXT,    /* const char * */
    OPTION_TEXTS,   /* struct texts: may come several times */
    OPTION_CHOICE,  /* int: the index of the word in `value`, "exact|compressed" */
    OPTION_INTEGER, /* int64_t in minimum..maximum */
    OPTION_NUMBER,  /* double in minimum..maximum */
    OPTION_SIZE,    /* uint64_t bytes: 512M, 4G */
    OPTION_TIME,    /* double seconds: 90s, 10m, 1h, in minimum..maximum */
    OPTION_AMOUNT   /* struct amount: 1%, 64 */
};

/* An amount is a part or a number of something. */
struct amount {
    double percent;  /* negative: not given */
    uint32_t number; /* instead, when not 0 */
};

enum { TEXTS_MOST = 64 };

struct texts {
    const char *text[TEXTS_MOST];
    size_t n;
};

struct option {
    const char *names; /* "-n, --predict|--n-predict": those after the bar are not shown */
    const char *value; /* how --help shows the value: "N" */
    enum option_kind kind;
    void *target; /* holds the default before parsing; --help shows it */
    double minimum, maximum;
    const char *help; /* NULL: the row is not shown */
};

struct option_set {
    const char *usage; /* "terse run [options]" */
    const char *about; /* a few lines, or "" */
    const struct option *options;
    size_t n_options;
    const struct option *common; /* options that other commands have too; n_common may be 0 */
    size_t n_common;
    const char **positional; /* [n_positional]: the first that are NULL receive the arguments that are no options */
    size_t n_positional;
    bool llama_flags; /* those of llama_flags.h are known as well, and its variables are read */
};

enum options_result { OPTIONS_GO, OPTIONS_HELP, OPTIONS_BAD };

/* From here on options_parse reads no arguments: it calls describe(user, set) and returns OPTIONS_HELP. */
void options_describe(void (*describe)(void *user, const struct option_set *set), void *user);

/* Returns the i-th row, a command's own ones first; NULL past the last. */
const struct option *options_row(const struct option_set *set, size_t i);
/* Finds the next of the option's names, also of those behind the bar, at or behind *at, which it moves there. Returns false past the
 * last. Go on behind the name, at *at + *length. */
bool options_next_name(const char **at, size_t *length);
/* Writes the default as " [512]" to text[capacity], or "". */
void options_default(const struct option *option, char *text, size_t capacity);

/* Sets the targets from argv[argc] and, where these leave an option out, from the environment (llama_flags.h). In argv a value may be a part of a long name: --top-k=4. OPTIONS_HELP: the help was printed to stdout. OPTIONS_BAD: one line on stderr said why. */
enum options_result options_parse(const struct option_set *set, int argc, char **argv);

/* Cuts the next item off a list "a,b,c": copies it to item[capacity] and advances *list; returns false at the end. An empty item,
 * or one that does not fit, is returned as "". */
bool list_next(const char **list, char *item, size_t capacity);

#endif
