/* Finds a template's default system text. The template is not run: of its tags only those are looked at that depend on the role of the first
 * message, and the text must be a literal, so that nothing is taken for one that the template would not write. Two forms are known:
 *
 *   {% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nTEXT<|im_end|>\n' }}{% endif %}
 *   {% if messages[0]['role'] == 'system' %}{% set NAME = messages[0]['content'] %}{% else %}{% set NAME = 'TEXT' %}{% endif %}
 *
 * The second may name a literal that was set before. A branch that depends on anything else (tools, a flag) is passed over, and a text put
 * together from more than literals (a date) is none. */
#include "text/chat_default.h"

#include <stdlib.h>
#include <string.h>

struct span {
    const char *at;
    size_t n;
};

/* ---- Spans of the template ----------------------------------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static struct span strip(struct span s) {
    while (s.n && is_blank(s.at[0])) s.at++, s.n--;
    while (s.n && is_blank(s.at[s.n - 1])) s.n--;
    return s;
}

static bool same(struct span a, struct span b) { return a.n == b.n && a.n && memcmp(a.at, b.at, a.n) == 0; }

static bool is(struct span s, const char *text) { return same(s, (struct span){text, strlen(text)}); }

/* Takes `text` off the front. */
static bool take(struct span *s, const char *text) {
    size_t n = strlen(text);
    if (s->n < n || memcmp(s->at, text, n) != 0) return false;
    s->at += n;
    s->n -= n;
    *s = strip(*s);
    return true;
}

/* Does the same as take where the text is a whole word. */
static bool take_word(struct span *s, const char *word) {
    size_t n = strlen(word);
    return (s->n == n || (s->n > n && is_blank(s->at[n]))) && take(s, word);
}

/* Returns what stands before `text` and removes it together with `text`; all of it where `text` is not there. */
static struct span cut(struct span *s, const char *text) {
    size_t n = strlen(text);
    for (size_t i = 0; i + n <= s->n; i++) {
        if (memcmp(s->at + i, text, n) != 0) continue;
        struct span before = {s->at, i};
        *s = strip((struct span){s->at + i + n, s->n - i - n});
        return strip(before);
    }
    struct span all = strip(*s);
    s->n = 0;
    return all;
}

/* ---- Tags ---------------------------------------------------------------------------------------------------------------- */

/* A tag is the text between {% and %}, or {{ and }}, without signs that trim white space. */
struct tag {
    bool statement; /* {% %} */
    struct span inner;
};

/* Takes the next tag off the front of *rest; comments do not count as tags. Returns false where there is none. */
static bool next_tag(struct span *rest, struct tag *tag) {
    const char *end = rest->at + rest->n, *at = rest->at;
    for (; end - at >= 4; at++) {
        if (at[0] != '{' || !(at[1] == '%' || at[1] == '{' || at[1] == '#')) continue;
        char close = at[1] == '{' ? '}' : at[1], quote = 0;
        const char *from = at + 2, *to = from;
        for (; end - to >= 2; to++) {
            if (quote && *to == '\\')
                to++;
            else if (quote)
                quote = *to == quote ? 0 : quote;
            else if (close != '#' && (*to == '\'' || *to == '"'))
                quote = *to;
            else if (to[0] == close && to[1] == '}')
                break;
        }
        if (end - to < 2) return false;
        *rest = (struct span){to + 2, (size_t)(end - to - 2)};
        if (close == '#') {
            at = to + 1;
            continue;
        }
        if (to > from && (*from == '-' || *from == '+')) from++;
        if (to > from && (to[-1] == '-' || to[-1] == '+')) to--;
        *tag = (struct tag){close == '%', strip((struct span){from, (size_t)(to - from)})};
        return true;
    }
    return false;
}

/* Takes a string literal off the front of *s and appends it to text[*size]. Returns false where there is none, or one with escapes
 * of other kinds. */
static bool take_literal(struct span *s, char *text, size_t *size) {
    static const char letters[] = "ntr\\'\"", stand_for[] = "\n\t\r\\'\"";
    char quote = s->n ? s->at[0] : 0;
    size_t i = 1;
    if (quote != '\'' && quote != '"') return false;
    for (; i < s->n && s->at[i] != quote; i++) {
        char c = s->at[i];
        if (c == '\\') {
            const char *letter = ++i < s->n && s->at[i] ? strchr(letters, s->at[i]) : NULL;
            if (!letter) return false;
            c = stand_for[letter - letters];
        }
        if (!c) return false;
        text[(*size)++] = c;
    }
    if (i >= s->n) return false;
    *s = strip((struct span){s->at + i + 1, s->n - i - 1});
    return true;
}

/* Reads literals alone, joined by + or ~, into `text`, which has room for s.n bytes and a zero. */
static bool read_literals(struct span s, char *text) {
    size_t size = 0;
    bool good = take_literal(&s, text, &size);
    while (good && s.n) good = (take(&s, "+") || take(&s, "~")) && take_literal(&s, text, &size);
    text[size] = 0;
    return good;
}

/* ---- Branches ------------------------------------------------------------------------------------------------------------ */

/* These values say when a part of the template is reached, in conversations without tools. */
enum when { ALWAYS, WITHOUT_SYSTEM, WITH_SYSTEM, NEVER, DOUBTFUL };

enum { MOST_FRAMES = 32 };

struct frame {
    enum when now;
    bool loop;
    bool with_system, doubtful; /* conditions of branches before this one: the role of the first message; others */
};

struct search {
    struct span template;
    const struct chat_format *format;
    struct frame frames[MOST_FRAMES];
    size_t depth;
    struct span flag; /* that is set where there is a system message */
    struct span name; /* that such a message's text is set to */
    char *text;       /* [template.n + 1] */
};

static enum when both(enum when a, enum when b) {
    if (a == NEVER || b == NEVER) return NEVER;
    if (a == DOUBTFUL || b == DOUBTFUL) return DOUBTFUL;
    if (a == ALWAYS || b == ALWAYS || a == b) return a == ALWAYS ? b : a;
    return NEVER;
}

/* Judges one condition of those that "and" joins. */
static enum when judge_part(const struct search *s, struct span part) {
    while (part.n > 1 && part.at[0] == '(' && part.at[part.n - 1] == ')') part = strip((struct span){part.at + 1, part.n - 2});
    if (is(part, "loop.first") || is(part, "messages") || is(part, "true")) return ALWAYS;
    if (is(part, "tools") || is(part, "false") || is(part, "false == true")) return NEVER;
    struct span rest = part;
    if (take_word(&rest, "not") && same(rest, s->flag)) return WITHOUT_SYSTEM;
    rest = part;
    if (!take(&rest, "messages[0]")) return DOUBTFUL;
    if (!take(&rest, "['role']") && !take(&rest, "[\"role\"]") && !take(&rest, ".role")) return DOUBTFUL;
    bool differs = take(&rest, "!=");
    if (!differs && !take(&rest, "==")) return DOUBTFUL;
    return !is(rest, "'system'") && !is(rest, "\"system\"") ? DOUBTFUL : differs ? WITHOUT_SYSTEM : WITH_SYSTEM;
}

static enum when judge(const struct search *s, struct span condition) {
    enum when when = ALWAYS;
    while (condition.n) when = both(when, judge_part(s, cut(&condition, " and ")));
    return when;
}

static enum when where_now(const struct search *s) {
    enum when when = ALWAYS;
    for (size_t i = 0; i < s->depth; i++) when = both(when, s->frames[i].now);
    return when;
}

static bool in_loop(const struct search *s) {
    for (size_t i = 0; i < s->depth; i++)
        if (s->frames[i].loop) return true;
    return false;
}

/* Enters the next branch of an if statement. */
static void enter_branch(struct frame *frame, enum when condition) {
    frame->now = condition;
    if (frame->doubtful) frame->now = DOUBTFUL;
    if (frame->with_system) frame->now = both(frame->now, WITHOUT_SYSTEM);
    if (condition == WITH_SYSTEM)
        frame->with_system = true;
    else if (condition != NEVER)
        frame->doubtful = true; /* what follows it is reached where it does not hold */
}

/* ---- The search ---------------------------------------------------------------------------------------------------------- */

/* Takes a whole message of the system, in the format's marks, as the default text. Without marks a text inside a loop may be
 * anything. */
static bool take_message(struct search *s, struct span expression) {
    const char *open = s->format->open[CHAT_SYSTEM], *close = s->format->close[CHAT_SYSTEM];
    size_t n_open = strlen(open), n_close = strlen(close), n;
    if (where_now(s) != WITHOUT_SYSTEM || s->format->system != CHAT_SYSTEM_OWN || (in_loop(s) && !n_open)) return false;
    if (!read_literals(expression, s->text)) return false;
    n = strlen(s->text);
    if (n <= n_open + n_close || memcmp(s->text, open, n_open) != 0 || strcmp(s->text + n - n_close, close) != 0) return false;
    memmove(s->text, s->text + n_open, n - n_open - n_close);
    s->text[n - n_open - n_close] = 0;
    return true;
}

/* Reads a value into s->text: literals, or a name that is set to literals and to nothing else. */
static bool read_value(struct search *s, struct span value) {
    struct span rest = s->template, set = {0};
    struct tag tag;
    size_t n = 0;
    if (read_literals(value, s->text)) return true;
    while (next_tag(&rest, &tag)) {
        struct span body = tag.inner;
        if (!tag.statement || !take_word(&body, "set") || !same(cut(&body, "="), value)) continue;
        set = body;
        n++;
    }
    return n == 1 && read_literals(set, s->text);
}

static bool is_first_content(struct span value) {
    if (!take(&value, "messages[0]")) return false;
    if (!take(&value, "['content']") && !take(&value, "[\"content\"]") && !take(&value, ".content")) return false;
    return !value.n || is(value, "|trim") || is(value, "| trim") || is(value, ".strip()");
}

/* Judges {% set NAME = VALUE %}; returns true where the value is the system's text. */
static bool take_set(struct search *s, struct span name, struct span value) {
    enum when when = where_now(s);
    if (is_first_content(value) && when == WITH_SYSTEM) s->name = name;
    return when == WITHOUT_SYSTEM && same(name, s->name) && read_value(s, value) && s->text[0];
}

/* Notes FLAG of {% set FLAG = true %} in a loop over the messages, under a condition that the message is the system's. */
static void note_flag(struct search *s, struct span before, struct span name, struct span value) {
    struct span test = before;
    bool of_role = take_word(&test, "if") && take(&test, "message") && (take(&test, "['role']") || take(&test, ".role")) &&
                   take(&test, "==") && is(test, "'system'");
    if (of_role && is(value, "true") && in_loop(s)) s->flag = name;
}

/* Adds a frame. Returns false where the template is nested deeper than any known one. */
static bool push(struct search *s, struct frame frame) {
    if (s->depth == MOST_FRAMES) return false;
    s->frames[s->depth++] = frame;
    return true;
}

static bool enter_block(struct search *s, struct span body) {
    if (take_word(&body, "for")) {
        cut(&body, " in ");
        return push(s, (struct frame){.now = is(body, "messages") ? ALWAYS : DOUBTFUL, .loop = true});
    }
    if (take_word(&body, "if")) {
        struct frame frame = {.now = ALWAYS};
        enter_branch(&frame, judge(s, body));
        return push(s, frame);
    }
    bool assigns = memchr(body.at, '=', body.n) != NULL;
    if ((take_word(&body, "set") && !assigns) || take_word(&body, "macro") || take_word(&body, "call") ||
        take_word(&body, "filter"))
        return push(s, (struct frame){.now = DOUBTFUL});
    return !take_word(&body, "generation") || push(s, (struct frame){.now = ALWAYS});
}

/* Follows one statement. *found: s->text is the default. Returns false where the search is over without it. */
static bool search_statement(struct search *s, struct span body, struct span before, bool *found) {
    struct frame *innermost = s->depth ? &s->frames[s->depth - 1] : NULL;
    struct span rest = body;
    if (take(&rest, "end")) {
        if (s->depth) s->depth--;
        return true;
    }
    if (take_word(&rest, "elif")) {
        if (innermost) enter_branch(innermost, judge(s, rest));
        return true;
    }
    if (is(body, "else")) {
        if (innermost) enter_branch(innermost, innermost->loop ? DOUBTFUL : ALWAYS);
        return true;
    }
    if (take_word(&rest, "set") && memchr(rest.at, '=', rest.n)) {
        struct span name = cut(&rest, "=");
        note_flag(s, before, name, rest);
        *found = take_set(s, name, rest);
        return !*found;
    }
    return enter_block(s, body);
}

bool chat_default_system(struct gguf_string template, const struct chat_format *format, char **text) {
    struct search s = {.template = {template.data, template.size}, .format = format};
    struct span rest = s.template, before = {"", 0};
    struct tag tag;
    bool found = false;
    *text = NULL;
    if (!template.size) return true;
    if (!(s.text = malloc(template.size + 1))) return false;
    while (!found && next_tag(&rest, &tag)) {
        if (!tag.statement)
            found = take_message(&s, tag.inner);
        else if (!search_statement(&s, tag.inner, before, &found))
            break;
        before = tag.inner;
    }
    if (found)
        *text = s.text;
    else
        free(s.text);
    return true;
}
