/* Implements Thompson's construction: a program of classes, splits and jumps, which runs for all of its threads at once. Jumps are
 * relative, so that what a quantifier repeats is copied as it is. */
#include "text/pattern.h"

#include "base/memory.h"
#include "text/utf8.h"

#include <string.h>

#define RANGES 4096 /* of all classes */
#define SET 256     /* ranges of a class as it is written */
#define DEPTH 64    /* groups within one another */
#define WITHOUT_END UINT32_MAX

enum operation {
    CLASS, /* takes a character of class `a` */
    SPLIT, /* goes on at both `a` and `b` */
    JUMP,  /* goes on at `a` */
    MATCH
};

struct instruction {
    enum operation operation;
    int32_t a, b; /* of SPLIT and JUMP: relative to it */
};

struct range {
    uint32_t low, high;
};

struct class {
    uint32_t first, n; /* ranges */
};

struct pattern {
    struct instruction code[PATTERN_PLACES];
    struct class classes[PATTERN_PLACES];
    struct range ranges[RANGES]; /* of a class in order, apart */
    uint32_t n, n_classes, n_ranges;
};

/* ---- Sets of characters */

static const struct range digits[] = {{'0', '9'}};
static const struct range letters[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct range spaces[] = {{0x9, 0xd},       {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                                      {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const struct range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
/* A JSON string can hold these characters as they are or as a backslash and a letter. */
static const struct range writable[] = {{'\b', '\n'}, {'\f', '\r'}, {0x20, 0xd7ff}, {0xe000, 0x10ffff}};
#define N(array) (uint32_t)(sizeof(array) / sizeof *(array))
#define MOST_CHARACTER 0x10ffffu

/* ---- Reading */

struct parser {
    struct pattern *pattern;
    const char *text;
    size_t at, size;
    unsigned depth;
    struct range set[SET]; /* the class being read */
    uint32_t n_set;
    const char *why; /* what is wrong; NULL: nothing so far */
};

static bool refuse(struct parser *p, const char *why) {
    if (!p->why) p->why = why;
    return false;
}

static char peek(const struct parser *p) { return p->text[p->at]; }

static bool skip(struct parser *p, const char *what) {
    size_t n = strlen(what);
    if (strncmp(p->text + p->at, what, n) != 0) return false;
    p->at += n;
    return true;
}

static bool character(struct parser *p, uint32_t *value) {
    static const unsigned char masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    size_t n;
    if (p->at == p->size) return refuse(p, "it ends too early");
    if (utf8_next(p->text + p->at, p->size - p->at, &n) != UTF8_WHOLE) return refuse(p, "it is not UTF-8");
    *value = (unsigned char)p->text[p->at] & masks[n];
    for (size_t i = 1; i < n; i++) *value = *value << 6 | ((unsigned char)p->text[p->at + i] & 0x3f);
    p->at += n;
    return true;
}

static bool emit(struct parser *p, struct instruction instruction) {
    struct pattern *out = p->pattern;
    if (out->n == PATTERN_PLACES - 1)
        return refuse(p, "it is too large: more than 1,000 characters when repetitions are written out");
    out->code[out->n++] = instruction;
    return true;
}

/* Inserts an instruction before the code that begins at `at`, whose jumps stay within it. */
static bool insert(struct parser *p, uint32_t at, struct instruction instruction) {
    struct pattern *out = p->pattern;
    if (!emit(p, instruction)) return false;
    memmove(&out->code[at + 1], &out->code[at], (out->n - 1 - at) * sizeof *out->code);
    out->code[at] = instruction;
    return true;
}

/* ---- Classes */

static bool add_range(struct parser *p, uint32_t low, uint32_t high) {
    if (p->n_set == SET) return refuse(p, "a class has too many parts");
    p->set[p->n_set++] = (struct range){low, high};
    return true;
}

static bool add_ranges(struct parser *p, const struct range *ranges, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (!add_range(p, ranges[i].low, ranges[i].high)) return false;
    return true;
}

/* Adds all characters that are not in ranges[n], which are in order and apart. */
static bool add_others(struct parser *p, const struct range *ranges, uint32_t n) {
    uint32_t from = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (ranges[i].low > from && !add_range(p, from, ranges[i].low - 1)) return false;
        from = ranges[i].high + 1;
    }
    return from > MOST_CHARACTER || add_range(p, from, MOST_CHARACTER);
}

static void sort_set(struct parser *p) {
    uint32_t n = 0;
    for (uint32_t i = 1; i < p->n_set; i++)
        for (uint32_t j = i; j > 0 && p->set[j].low < p->set[j - 1].low; j--) {
            struct range lower = p->set[j];
            p->set[j] = p->set[j - 1];
            p->set[j - 1] = lower;
        }
    for (uint32_t i = 0; i < p->n_set; i++) {
        if (n && p->set[i].low <= p->set[n - 1].high + 1) {
            if (p->set[i].high > p->set[n - 1].high) p->set[n - 1].high = p->set[i].high;
        } else {
            p->set[n++] = p->set[i];
        }
    }
    p->n_set = n;
}

/* Makes the set a class, as far as it can be written, and an instruction that takes a character of it. */
static bool emit_set(struct parser *p) {
    struct pattern *out = p->pattern;
    sort_set(p);
    uint32_t first = out->n_ranges;
    for (uint32_t i = 0; i < p->n_set; i++)
        for (uint32_t j = 0; j < N(writable); j++) {
            uint32_t low = p->set[i].low > writable[j].low ? p->set[i].low : writable[j].low;
            uint32_t high = p->set[i].high < writable[j].high ? p->set[i].high : writable[j].high;
            if (low > high) continue;
            if (out->n_ranges == RANGES) return refuse(p, "its classes have too many parts");
            out->ranges[out->n_ranges++] = (struct range){low, high};
        }
    if (out->n_ranges == first) return refuse(p, "a class has no character that a JSON string can hold without \\u");
    if (!emit(p, (struct instruction){CLASS, (int32_t)out->n_classes, 0})) return false;
    out->classes[out->n_classes++] = (struct class){first, out->n_ranges - first};
    return true;
}

/* Adds the characters of \d, \w, \s or of their opposites; *known: `name` was one of those. */
static bool add_named(struct parser *p, char name, bool *known) {
    *known = true;
    switch (name) {
    case 'd': return add_ranges(p, digits, N(digits));
    case 'w': return add_ranges(p, letters, N(letters));
    case 's': return add_ranges(p, spaces, N(spaces));
    case 'D': return add_others(p, digits, N(digits));
    case 'W': return add_others(p, letters, N(letters));
    case 'S': return add_others(p, spaces, N(spaces));
    default: *known = false; return true;
    }
}

static bool hexadecimal(struct parser *p, unsigned n, uint32_t *value) {
    *value = 0;
    for (; n > 0; n--, p->at++) {
        char c = peek(p), lower = (char)(c | 0x20);
        bool digit = c >= '0' && c <= '9';
        if (!digit && (lower < 'a' || lower > 'f')) return refuse(p, "a digit of \\x or \\u is missing");
        *value = *value << 4 | (uint32_t)(digit ? c - '0' : lower - 'a' + 10);
    }
    return true;
}

/* Reads the character that a backslash and what follows it stand for. */
static bool escaped(struct parser *p, uint32_t *value) {
    static const char names[] = "tnrfv", values[] = "\t\n\r\f\v";
    char c = peek(p);
    const char *name = c ? strchr(names, c) : NULL;
    p->at += c != 0;
    if (name) {
        *value = (unsigned char)values[name - names];
        return true;
    }
    if (c == 'x') return hexadecimal(p, 2, value);
    if (c == 'u') return hexadecimal(p, 4, value);
    *value = (unsigned char)c;
    if (c > ' ' && c < 0x7f && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !(c >= '0' && c <= '9')) return true;
    p->at -= c != 0;
    return refuse(p, c >= '1' && c <= '9' ? "references to groups are not understood" : "this escape is not understood");
}

/* Reads a character of a class, or \d and its like: then *named, and its characters have been added. */
static bool class_part(struct parser *p, uint32_t *value, bool *named) {
    *named = false;
    if (!skip(p, "\\")) return character(p, value);
    if (skip(p, "b")) {
        *value = '\b';
        return true;
    }
    if (!add_named(p, peek(p), named)) return false;
    if (!*named) return escaped(p, value);
    p->at++;
    return true;
}

/* Reads a class from behind its opening bracket. */
static bool class_behind_bracket(struct parser *p) {
    bool inverted = skip(p, "^"), named;
    uint32_t low, high;
    p->n_set = 0;
    while (!skip(p, "]")) {
        if (!class_part(p, &low, &named)) return false;
        bool range = peek(p) == '-' && p->at + 1 < p->size && p->text[p->at + 1] != ']';
        if (named && range) return refuse(p, "a range of a class begins with a class");
        if (named) continue;
        high = low;
        if (range) {
            p->at++;
            if (!class_part(p, &high, &named)) return false;
            if (named || high < low) return refuse(p, "a range of a class ends before it begins");
        }
        if (!add_range(p, low, high)) return false;
    }
    if (inverted) {
        struct range own[SET];
        sort_set(p);
        uint32_t n = p->n_set;
        memcpy(own, p->set, n * sizeof *own);
        p->n_set = 0;
        if (!add_others(p, own, n)) return false;
    }
    return emit_set(p);
}

/* ---- Expressions */

static bool alternatives(struct parser *p, bool outermost);

static bool group(struct parser *p) {
    if (!skip(p, "?:") && peek(p) == '?') return refuse(p, "of groups that begin with (? only (?: ) are understood");
    if (++p->depth > DEPTH) return refuse(p, "its groups are too deep");
    if (!alternatives(p, false)) return false;
    p->depth--;
    return skip(p, ")") || refuse(p, "a group is not closed");
}

static bool atom(struct parser *p) {
    uint32_t value;
    bool named = false;
    p->n_set = 0;
    switch (peek(p)) {
    case '(': p->at++; return group(p);
    case '[': p->at++; return class_behind_bracket(p);
    case '.': p->at++; return add_others(p, line_ends, N(line_ends)) && emit_set(p);
    case '^': return refuse(p, "^ is understood at the beginning alone");
    case '*':
    case '+':
    case '?':
    case '{': return refuse(p, "there is nothing to repeat here");
    case '\\':
        p->at++;
        if (!add_named(p, peek(p), &named)) return false;
        if (named) p->at++;
        return (named || (escaped(p, &value) && add_range(p, value, value))) && emit_set(p);
    default: return character(p, &value) && add_range(p, value, value) && emit_set(p);
    }
}

static bool number(struct parser *p, uint32_t *value) {
    *value = 0;
    if (peek(p) < '0' || peek(p) > '9') return refuse(p, "{ begins no number of repetitions; as a character it is written \\{");
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        if ((*value = *value * 10 + (uint32_t)(peek(p) - '0')) > 100000) return refuse(p, "that is too often");
    return true;
}

/* Reads a quantifier behind an atom; without one the atom stands once: 1 and 1. */
static bool quantifier(struct parser *p, uint32_t *least, uint32_t *most) {
    *least = *most = 1;
    if (skip(p, "*") || skip(p, "+")) {
        *least = p->text[p->at - 1] == '+';
        *most = WITHOUT_END;
    } else if (skip(p, "?")) {
        *least = 0;
    } else if (skip(p, "{")) {
        if (!number(p, least)) return false;
        *most = *least;
        if (skip(p, ",")) {
            *most = WITHOUT_END;
            if (peek(p) != '}' && !number(p, most)) return false;
        }
        if (*most < *least || !skip(p, "}")) return refuse(p, "a number of repetitions is not {n}, {n,} or {n,m}");
    } else {
        return true;
    }
    skip(p, "?");
    return true;
}

/* Repeats what was written since `start`. */
static bool repeat(struct parser *p, uint32_t start, uint32_t least, uint32_t most) {
    struct pattern *out = p->pattern;
    int32_t length = (int32_t)(out->n - start);
    uint32_t body = start, copies = most == WITHOUT_END ? least : most;
    if (!length || (least == 1 && most == 1)) return true;
    if (most == 0) {
        out->n = start;
        return true;
    }
    if (!least) {
        if (!insert(p, start, (struct instruction){SPLIT, 1, most == WITHOUT_END ? length + 2 : length + 1})) return false;
        if (most == WITHOUT_END) return emit(p, (struct instruction){JUMP, -(length + 1), 0});
        body++;
    }
    for (uint32_t i = 1; i < copies; i++) {
        if (i >= least && !emit(p, (struct instruction){SPLIT, 1, length + 1})) return false;
        for (int32_t k = 0; k < length; k++)
            if (!emit(p, out->code[body + (uint32_t)k])) return false;
    }
    return most != WITHOUT_END || emit(p, (struct instruction){SPLIT, -length, 1});
}

static bool any_text(struct parser *p) {
    uint32_t start = p->pattern->n;
    p->n_set = 0;
    return add_range(p, 0, MOST_CHARACTER) && emit_set(p) && repeat(p, start, 0, WITHOUT_END);
}

static bool ends_branch(const struct parser *p) { return p->at == p->size || peek(p) == '|' || peek(p) == ')'; }

static bool branch(struct parser *p, bool outermost) {
    uint32_t least, most;
    if (outermost && !skip(p, "^") && !any_text(p)) return false;
    while (!ends_branch(p) && peek(p) != '$') {
        uint32_t start = p->pattern->n;
        if (!atom(p) || !quantifier(p, &least, &most) || !repeat(p, start, least, most)) return false;
    }
    if (!outermost) return ends_branch(p) || refuse(p, "$ is understood at the end alone");
    if (!skip(p, "$")) return any_text(p);
    return ends_branch(p) || refuse(p, "$ is understood at the end alone");
}

static bool alternatives(struct parser *p, bool outermost) {
    struct pattern *out = p->pattern;
    uint32_t start = out->n;
    if (!branch(p, outermost)) return false;
    if (!skip(p, "|")) return true;
    if (!insert(p, start, (struct instruction){SPLIT, 1, 0})) return false;
    uint32_t jump = out->n;
    if (!emit(p, (struct instruction){JUMP, 0, 0})) return false;
    out->code[start].b = (int32_t)(out->n - start);
    if (!alternatives(p, outermost)) return false;
    out->code[jump].a = (int32_t)(out->n - jump);
    return true;
}

enum terse_status pattern_new(const char *text, struct pattern **pattern, struct terse_error *error) {
    struct pattern *made = memory_array(1, sizeof *made);
    struct parser p = {.pattern = made, .text = text, .size = strlen(text)};
    *pattern = NULL;
    if (!made) return status_no_memory(error, sizeof *made, "a pattern");
    made->n = made->n_classes = made->n_ranges = 0;
    if (alternatives(&p, true) && p.at < p.size) refuse(&p, "a group is closed that was not opened");
    if (p.why) {
        size_t characters = 1;
        for (size_t i = 0; i < p.at; i++) characters += ((unsigned char)text[i] & 0xc0) != 0x80;
        memory_free(made);
        return status_fail(error, TERSE_E_ARGUMENT, "character %zu of the pattern: %s", characters, p.why);
    }
    made->code[made->n++] = (struct instruction){MATCH, 0, 0}; /* emit has left its place */
    *pattern = made;
    return TERSE_OK;
}

void pattern_free(struct pattern *pattern) { memory_free(pattern); }

/* ---- Running */

/* Adds an instruction and those that are reached from it without a character. */
static void activate(const struct pattern *p, struct pattern_state *state, uint32_t at) {
    uint32_t open[PATTERN_PLACES], n = 0;
    open[n++] = at;
    while (n > 0) {
        at = open[--n];
        if (state->active[at / 64] >> at % 64 & 1) continue;
        state->active[at / 64] |= (uint64_t)1 << at % 64;
        const struct instruction *i = &p->code[at];
        if (i->operation == SPLIT || i->operation == JUMP) open[n++] = (uint32_t)((int32_t)at + i->a);
        if (i->operation == SPLIT) open[n++] = (uint32_t)((int32_t)at + i->b);
    }
}

/* Returns the first active instruction from `from` on; PATTERN_PLACES when there is none. */
static uint32_t next_active(const struct pattern_state *state, uint32_t from) {
    for (uint32_t word = from / 64; word < PATTERN_WORDS; word++, from = 64 * word) {
        uint64_t left = state->active[word] >> from % 64;
        if (left) return from + (uint32_t)__builtin_ctzll(left);
    }
    return PATTERN_PLACES;
}

static bool takes(const struct pattern *p, uint32_t at, uint32_t low, uint32_t high) {
    if (p->code[at].operation != CLASS) return false;
    const struct class *class = &p->classes[p->code[at].a];
    for (uint32_t i = class->first; i < class->first + class->n && p->ranges[i].low <= high; i++)
        if (p->ranges[i].high >= low) return true;
    return false;
}

void pattern_begin(const struct pattern *pattern, struct pattern_state *state) {
    *state = (struct pattern_state){{0}};
    activate(pattern, state, 0);
}

bool pattern_allows(const struct pattern *pattern, const struct pattern_state *state, uint32_t low, uint32_t high) {
    for (uint32_t at = 0; (at = next_active(state, at)) < PATTERN_PLACES; at++)
        if (takes(pattern, at, low, high)) return true;
    return false;
}

bool pattern_take(const struct pattern *pattern, struct pattern_state *state, uint32_t character) {
    struct pattern_state next = {{0}};
    bool any = false;
    for (uint32_t at = 0; (at = next_active(state, at)) < PATTERN_PLACES; at++) {
        if (!takes(pattern, at, character, character)) continue;
        activate(pattern, &next, at + 1);
        any = true;
    }
    *state = next;
    return any;
}

bool pattern_may_end(const struct pattern *pattern, const struct pattern_state *state) {
    uint32_t at = pattern->n - 1;
    return state->active[at / 64] >> at % 64 & 1;
}
