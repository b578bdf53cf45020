/* Reads an argument vector by a table of options, and prints that table as help. */
#include "options.h"

#include "console.h"
#include "llama_flags.h"

#include <terse_choice.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the words of "a|b|c" and of "-c, --ctx-size" one after another: *at is just past the last one found. */
static bool next_word(const char **at, size_t *length, const char *separators) {
    *at += strspn(*at, separators);
    *length = strcspn(*at, separators);
    return *length > 0;
}

static bool has_word(const char *words, const char *separators, const char *word, int *index) {
    size_t length;
    for (*index = 0; next_word(&words, &length, separators); words += length, ++*index)
        if (strlen(word) == length && memcmp(words, word, length) == 0) return true;
    return false;
}

bool options_next_name(const char **at, size_t *length) { return next_word(at, length, ", |"); }

const struct option *options_row(const struct option_set *set, size_t i) {
    if (i < set->n_options) return &set->options[i];
    return i < set->n_options + set->n_common ? &set->common[i - set->n_options] : NULL;
}

static const struct option *find_option(const struct option_set *set, const char *argument) {
    const struct option *option;
    int index;
    for (size_t i = 0; (option = options_row(set, i)); i++)
        if (has_word(option->names, ", |", argument, &index)) return option;
    return NULL;
}

/* Returns how many letters must be put in, taken out, replaced or swapped with their neighbour to make a[n] of b[m]; at most `most`, else more
 * than that. */
static size_t edits(const char *a, size_t n, const char *b, size_t m, size_t most) {
    enum { LONGEST = 40 };
    size_t rows[3][LONGEST + 1], *before = rows[0], *above = rows[1], *row = rows[2];
    if (n > LONGEST || m > LONGEST || (n > m ? n - m : m - n) > most) return most + 1;
    for (size_t j = 0; j <= m; j++) above[j] = j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t least = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < least) least = above[j] + 1;
            if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < least)
                least = before[j - 2] + 1;
            row[j] = least;
        }
        size_t *last = before;
        before = above, above = row, row = last;
    }
    return above[m];
}

/* Finds the name that is least unlike argument, if it is like it at all: short ones are all alike. */
static bool find_nearest(const struct option_set *set, const char *argument, char *nearest, size_t capacity) {
    size_t n = strlen(argument), least = n / 3 + 1; /* fewer edits than this */
    *nearest = 0;
    if (strncmp(argument, "--", 2) != 0) return false;
    const struct option *option;
    for (size_t i = 0; (option = options_row(set, i)); i++) {
        const char *name = option->names;
        size_t length;
        for (; options_next_name(&name, &length); name += length) {
            if (name[1] != '-') continue;
            size_t same = length < n ? length : n; /* one begins as the other: --temperature, --n-pred */
            size_t found = same > 4 && memcmp(argument, name, same) == 0 ? 1 : edits(argument, n, name, length, least);
            if (found >= least) continue;
            least = found;
            snprintf(nearest, capacity, "%.*s", (int)length, name);
        }
    }
    return *nearest;
}

/* ---- Values */

static bool parse_integer(const struct option *option, const char *name, const char *text) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)value < option->minimum || (double)value > option->maximum) {
        complain("%s takes a whole number from %.0f to %.0f, not \"%s\"", name, option->minimum, option->maximum, text);
        return false;
    }
    *(int64_t *)option->target = value;
    return true;
}

static bool parse_number(const struct option *option, const char *name, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= option->minimum && value <= option->maximum)) {
        complain("%s takes a number from %g to %g, not \"%s\"", name, option->minimum, option->maximum, text);
        return false;
    }
    *(double *)option->target = value;
    return true;
}

static bool parse_size(const struct option *option, const char *name, const char *text) {
    if (terse_parse_size(text, option->target)) return true;
    complain("%s takes a size such as 512M or 4G (K, M, G, T: powers of 1024), not \"%s\"", name, text);
    return false;
}

static bool parse_time(const struct option *option, const char *name, const char *text) {
    char *end;
    double value = strtod(text, &end);
    double unit = end == text || !*end || end[1] ? 0 : *end == 's' ? 1 : *end == 'm' ? 60 : *end == 'h' ? 3600 : 0;
    if (unit > 0 && value * unit >= option->minimum && value * unit <= option->maximum) {
        *(double *)option->target = value * unit;
        return true;
    }
    complain("%s takes a time such as 90s, 10m or 1h, from %.0fs to %.0fh, not \"%s\"", name, option->minimum,
             option->maximum / 3600, text);
    return false;
}

static bool parse_amount(const struct option *option, const char *name, const char *text) {
    struct amount *amount = option->target;
    char *end;
    double percent = strtod(text, &end);
    if (end != text && strcmp(end, "%") == 0 && percent >= 0 && percent <= 100) {
        *amount = (struct amount){percent, 0};
        return true;
    }
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end != text && !*end && !errno && number >= 0 && number <= INT32_MAX) {
        *amount = (struct amount){0, (uint32_t)number};
        return true;
    }
    complain("%s takes a part such as 1%%, from 0%% to 100%%, or a number of them such as 64, not \"%s\"", name, text);
    return false;
}

static bool parse_value(const struct option *option, const char *name, const char *text) {
    switch (option->kind) {
    case OPTION_FLAG: break;
    case OPTION_TEXT: *(const char **)option->target = text; return true;
    case OPTION_TEXTS: {
        struct texts *texts = option->target;
        size_t most = sizeof texts->text / sizeof texts->text[0];
        if (texts->n < most)
            texts->text[texts->n++] = text;
        else
            complain("%s may come %zu times", name, most);
        return texts->text[texts->n - 1] == text;
    }
    case OPTION_CHOICE:
        if (has_word(option->value, "|", text, option->target)) return true;
        complain("%s takes one of %s, not \"%s\"", name, option->value, text);
        return false;
    case OPTION_INTEGER: return parse_integer(option, name, text);
    case OPTION_NUMBER: return parse_number(option, name, text);
    case OPTION_SIZE: return parse_size(option, name, text);
    case OPTION_TIME: return parse_time(option, name, text);
    case OPTION_AMOUNT: return parse_amount(option, name, text);
    }
    return false;
}

/* ---- Help */

enum { HELP_COLUMN = 33, HELP_WIDTH = 132 - HELP_COLUMN };

void options_default(const struct option *option, char *text, size_t capacity) {
    text[0] = 0;
    switch (option->kind) {
    case OPTION_TEXT:
        if (*(const char **)option->target) snprintf(text, capacity, " [%s]", *(const char **)option->target);
        break;
    case OPTION_INTEGER: snprintf(text, capacity, " [%lld]", (long long)*(int64_t *)option->target); break;
    case OPTION_NUMBER: snprintf(text, capacity, " [%.7g]", *(double *)option->target); break;
    case OPTION_TIME: snprintf(text, capacity, " [%.4gm]", *(double *)option->target / 60); break;
    case OPTION_CHOICE: {
        const char *word = option->value;
        size_t length;
        for (int i = 0; next_word(&word, &length, "|"); i++, word += length)
            if (i == *(int *)option->target) snprintf(text, capacity, " [%.*s]", (int)length, word);
        break;
    }
    default: break;
    }
}

/* Prints the text beside the names; continuation lines are indented to its column. */
static void print_wrapped(const char *text) {
    size_t left = strlen(text);
    while (left > HELP_WIDTH) {
        size_t cut = HELP_WIDTH;
        while (cut > 0 && text[cut] != ' ') cut--;
        if (!cut) break;
        printf("%.*s\n%*s", (int)cut, text, HELP_COLUMN, "");
        text += cut + 1;
        left -= cut + 1;
    }
    puts(text);
}

static void print_options(const struct option *options, size_t n) {
    for (const struct option *option = options; option < options + n; option++) {
        char left[64], preset[64], help[640];
        if (!option->help) continue;
        snprintf(left, sizeof left, "%.*s%s%s", (int)strcspn(option->names, "|"), option->names, option->value ? " " : "",
                 option->value ? option->value : "");
        options_default(option, preset, sizeof preset);
        snprintf(help, sizeof help, "%s%s", option->help, preset);
        printf("  %-*s ", HELP_COLUMN - 3, left);
        print_wrapped(help);
    }
}

static struct {
    void (*describe)(void *user, const struct option_set *set);
    void *user;
} description;

void options_describe(void (*describe)(void *user, const struct option_set *set), void *user) {
    description.describe = describe;
    description.user = user;
}

static void print_help(const struct option_set *set) {
    printf("usage: %s\n%s", set->usage, set->about);
    print_options(set->options, set->n_options);
    print_options(set->common, set->n_common);
}

/* ---- Arguments */

static const struct llama_flag *find_llama_flag(const struct option_set *set, const char *name) {
    const struct llama_flag *flag;
    int index;
    for (int i = 0; set->llama_flags && (flag = llama_flag_at(i)); i++)
        if (has_word(flag->names, ", ", name, &index)) return flag;
    return NULL;
}

/* An argument has its name, and the value that may be a part of it or follow it. */
struct argument {
    char name[64];
    const char *value; /* NULL: there is none */
    bool own_value;    /* --name=value */
};

static struct argument read_argument(int argc, char **argv, int i) {
    struct argument a = {.value = i + 1 < argc ? argv[i + 1] : NULL};
    const char *equals = strncmp(argv[i], "--", 2) == 0 ? strchr(argv[i], '=') : NULL;
    size_t length = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
    snprintf(a.name, sizeof a.name, "%.*s", (int)(length < sizeof a.name ? length : sizeof a.name), argv[i]);
    a.own_value = equals != NULL;
    if (equals) a.value = equals + 1;
    return a;
}

/* Returns how many arguments are used by a flag whose value may be one of `words`, or which takes none (NULL); 0 after a complaint. */
static int take_word(const struct argument *a, const char *words) {
    int index;
    bool fits = words && a->value && has_word(words, "|", a->value, &index);
    if (!a->own_value) return 1 + fits;
    if (fits) return 1;
    if (words)
        complain("%s takes one of %s, not \"%s\"", a->name, words, a->value);
    else
        complain("%s takes no value: leave \"=%s\" out", a->name, a->value);
    return 0;
}

/* Returns false, after a complaint, where a value is missing. */
static bool has_value(const struct option_set *set, const struct argument *a, const char *shown) {
    if (a->own_value || (a->value && !find_option(set, a->value) && !find_llama_flag(set, a->value))) return true;
    complain("%s needs a value: %s %s", a->name, a->name, shown);
    return false;
}

static int parse_llama_flag(const struct option_set *set, const struct llama_flag *flag, const struct argument *a) {
    bool optional = flag->value && strchr(flag->value, '|');
    if (flag->refused) {
        bool with_value = flag->value && a->value;
        complain("%s%s%s: %s", a->name, with_value ? " " : "", with_value ? a->value : "", flag->reason);
        return 0;
    }
    if (!flag->value || optional) return take_word(a, flag->value);
    return has_value(set, a, flag->value) ? 2 - a->own_value : 0;
}

static int refuse_unknown(const struct option_set *set, const char *name) {
    char nearest[64];
    if (find_nearest(set, name, nearest, sizeof nearest))
        complain("unknown option %s; did you mean %s? See --help", name, nearest);
    else
        complain("unknown option %s; see --help", name);
    return 0;
}

/* Reads argv[i] and, if it takes one, its value; returns the number of arguments used, 0 after a complaint. */
static int parse_argument(const struct option_set *set, int argc, char **argv, int i) {
    if (argv[i][0] != '-' || !argv[i][1]) {
        for (size_t place = 0; place < set->n_positional; place++) {
            if (set->positional[place]) continue;
            set->positional[place] = argv[i];
            return 1;
        }
        complain("unexpected argument \"%s\"; see --help", argv[i]);
        return 0;
    }
    const struct argument a = read_argument(argc, argv, i);
    const struct option *option = find_option(set, a.name);
    const struct llama_flag *flag = option ? NULL : find_llama_flag(set, a.name);
    if (!option) return flag ? parse_llama_flag(set, flag, &a) : refuse_unknown(set, a.name);
    if (option->kind == OPTION_FLAG) {
        *(bool *)option->target = true;
        return take_word(&a, NULL);
    }
    return has_value(set, &a, option->value) && parse_value(option, a.name, a.value) ? 2 - a.own_value : 0;
}

/* ---- Environment */

/* Returns whether the arguments have the option. A value is none: has_value refuses one that is an option's name. */
static bool is_given(const struct option_set *set, int argc, char **argv, const char *name) {
    const struct option *option = find_option(set, name);
    for (int i = 0; i < argc && option; i++)
        if (argv[i][0] == '-' && find_option(set, read_argument(argc, argv, i).name) == option) return true;
    return false;
}

/* Sets a flag by the words that llama.cpp takes. */
static bool parse_switch(const struct option *option, const char *name, const char *text) {
    int index;
    bool on = has_word("1|true|on|enabled", "|", text, &index);
    if (on || has_word("0|false|off|disabled", "|", text, &index)) {
        *(bool *)option->target = on;
        return true;
    }
    complain("%s takes one of 1|true|on|enabled|0|false|off|disabled, not \"%s\"", name, text);
    return false;
}

/* Returns whether the arguments have one of these options, or the command knows none of them. */
static bool is_given_any(const struct option_set *set, int argc, char **argv, const char *names) {
    char name[32];
    bool known = false;
    while (list_next(&names, name, sizeof name)) {
        if (is_given(set, argc, argv, name)) return true;
        known |= find_option(set, name) != NULL;
    }
    return !known;
}

/* Sets what llama.cpp's variables say and the arguments do not; one that is empty says nothing. Returns false after a complaint. */
static bool read_environment(const struct option_set *set, int argc, char **argv) {
    const struct llama_variable *variable;
    for (int i = 0; set->llama_flags && (variable = llama_variable_at(i)); i++) {
        const char *text = getenv(variable->name), *unless = variable->unless;
        const struct option *option = text && *text ? find_option(set, variable->option) : NULL;
        if (!option || is_given(set, argc, argv, variable->option)) continue;
        if (variable->with && !is_given_any(set, argc, argv, variable->with)) continue;
        if (unless && (*unless ? is_given(set, argc, argv, unless) : set->n_positional && set->positional[0])) continue;
        bool good =
            option->kind == OPTION_FLAG ? parse_switch(option, variable->name, text) : parse_value(option, variable->name, text);
        if (!good) return false;
    }
    return true;
}

/* ---- */

enum options_result options_parse(const struct option_set *set, int argc, char **argv) {
    if (description.describe) {
        description.describe(description.user, set);
        return OPTIONS_HELP;
    }
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(set);
            return OPTIONS_HELP;
        }
    }
    for (int i = 0, used; i < argc; i += used) {
        used = parse_argument(set, argc, argv, i);
        if (!used) return OPTIONS_BAD;
    }
    return read_environment(set, argc, argv) ? OPTIONS_GO : OPTIONS_BAD;
}

bool list_next(const char **list, char *item, size_t capacity) {
    if (!*list) return false;
    size_t length = strcspn(*list, ",");
    if (length < capacity) {
        memcpy(item, *list, length);
        item[length] = 0;
    } else {
        item[0] = 0;
    }
    *list = (*list)[length] ? *list + length + 1 : NULL;
    return true;
}
