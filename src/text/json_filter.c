/* Implements the automaton: what is expected next, a stack of open objects and arrays, and the string or number that is being
 * written. It keeps one such state for each way to read the text; two that expect the same are merged. */
#include "text/json_filter.h"

#include <string.h>

enum where {
    VALUE,      /* a value begins */
    FIRST_ITEM, /* or the array ends */
    FIRST_NAME, /* or the object ends */
    NAME,       /* a name begins */
    COLON,
    AFTER_VALUE, /* a comma, or the end of the object or array */
    DONE,        /* up to here nothing is being written */
    IN_STRING,
    IN_NAME,
    IN_NUMBER,
    IN_WORD, /* true, false, null */
    IN_CHOICE
};

/* `step` of a number says which of its parts was written last. */
enum { MINUS, ZERO, DIGITS, POINT, FRACTION, EXPONENT, SIGN, EXPONENT_DIGITS };

/* `step` of a string says that plain characters follow, that a backslash came last, or how many hexadecimal digits are still to
 * come. */
enum { PLAIN, ESCAPE = 5 };

static const char *const words[] = {"true", "false", "null"};

struct json_state json_begin(void) {
    return (struct json_state){.ways = 1, .way = {{.where = VALUE, .node = 1}}};
}

static struct json_frame *top(struct json_way *s) { return &s->frame[s->depth - 1]; }

static uint64_t all(uint32_t n) { return n == 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1; }

static void end_value(struct json_way *s) {
    s->where = s->depth ? AFTER_VALUE : DONE;
    s->node = 0;
}

/* Returns whether the depth suffices for a value of this node. */
static bool fits(const struct json_schema *schema, const struct json_way *s, uint32_t node) {
    return s->depth + schema->node[node].levels <= JSON_DEPTH;
}

static bool expect(struct json_way *s, enum where where, uint32_t node) {
    s->where = (uint8_t)where;
    s->node = node;
    return true;
}

/* ---- Strings */

static int hex_digit(unsigned char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Returns whether the digits of \u so far can begin a unit that is allowed here: the second half of a pair, or anything but that. */
static bool unit_possible(struct json_way *s) {
    unsigned bits = 4u * s->step, low = (unsigned)s->unit << bits, high = low | ((1u << bits) - 1);
    if (s->low_surrogate ? high < 0xdc00 || low > 0xdfff : low >= 0xdc00 && high <= 0xdfff) return false;
    if (!bits) s->low_surrogate = s->unit >= 0xd800 && s->unit <= 0xdbff;
    return true;
}

/* Takes a byte of a string; *ended: it was the quote that ends the string. */
static bool string_byte(struct json_way *s, unsigned char c, bool *ended) {
    *ended = false;
    if (s->rest.left) return utf8_go_on(c, &s->rest);
    if (s->step == PLAIN) {
        if (c == '\\') {
            s->step = ESCAPE;
            return true;
        }
        if (s->low_surrogate) return false;
        *ended = c == '"';
        return c >= 0x20 && utf8_begin(c, &s->rest);
    }
    if (s->step == ESCAPE) {
        s->step = c == 'u' ? 4 : PLAIN;
        s->unit = 0;
        return c == 'u' || (!s->low_surrogate && c && strchr("\"\\/bfnrt", c));
    }
    int digit = hex_digit(c);
    if (digit < 0) return false;
    s->unit = (uint16_t)(s->unit << 4 | (unsigned)digit);
    s->step--;
    return unit_possible(s);
}

static bool begin_string(struct json_way *s, enum where where) {
    s->where = (uint8_t)where;
    s->step = PLAIN;
    s->at = 0;
    return true;
}

/* ---- Strings with a pattern */

/* Returns the byte that a backslash and this letter stand for; -1 for \u, and for a letter that stands for nothing. */
static int escape_value(unsigned char c) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name = c ? strchr(names, c) : NULL;
    return name ? (unsigned char)values[name - names] : -1;
}

static bool escape_possible(const struct pattern *pattern, const struct json_way *s) {
    static const char escapable[] = "\"\\/\b\f\n\r\t";
    for (const char *c = escapable; *c; c++)
        if (pattern_allows(pattern, &s->pattern, (unsigned char)*c, (unsigned char)*c)) return true;
    return false;
}

/* Takes a byte of a character that is written without a backslash: some allowed character must begin like this. */
static bool plain_byte(const struct pattern *pattern, struct json_way *s, unsigned char c) {
    static const unsigned char masks[] = {0x7f, 0x1f, 0x0f, 0x07};
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    bool first = !s->rest.left, ended;
    if (!string_byte(s, c, &ended)) return false;
    unsigned left = s->rest.left, bits = 6 * left;
    s->character = first ? c & masks[left] : s->character << 6 | (c & 0x3f);
    if (!left) return pattern_take(pattern, &s->pattern, s->character);
    uint32_t low = s->character << bits, high = low | (((uint32_t)1 << bits) - 1);
    return pattern_allows(pattern, &s->pattern, first && low < least[left] ? least[left] : low, high);
}

/* Does the same as string_byte for a string with a pattern. */
static bool pattern_byte(const struct pattern *pattern, struct json_way *s, unsigned char c, bool *ended) {
    *ended = false;
    if (s->step == ESCAPE) {
        int value = escape_value(c);
        s->step = PLAIN;
        return value >= 0 && pattern_take(pattern, &s->pattern, (uint32_t)value);
    }
    if (s->rest.left || (c != '"' && c != '\\')) return plain_byte(pattern, s, c);
    if (c == '\\') {
        s->step = ESCAPE;
        return escape_possible(pattern, s);
    }
    *ended = pattern_may_end(pattern, &s->pattern);
    return *ended;
}

/* Returns the pattern of the string that is being written, or NULL. */
static const struct pattern *pattern_of(const struct json_schema *schema, const struct json_way *s) {
    uint32_t pattern = schema->node[s->node].pattern;
    return pattern ? schema->pattern[pattern - 1] : NULL;
}

static bool begin_text(const struct json_schema *schema, struct json_way *s) {
    const struct pattern *pattern = pattern_of(schema, s);
    if (pattern) pattern_begin(pattern, &s->pattern);
    return begin_string(s, IN_STRING);
}

static bool text_byte(const struct json_schema *schema, struct json_way *s, unsigned char c) {
    const struct pattern *pattern = pattern_of(schema, s);
    bool ended, good = pattern ? pattern_byte(pattern, s, c, &ended) : string_byte(s, c, &ended);
    if (good && ended) end_value(s);
    return good;
}

/* ---- Names */

/* Returns the names that may come next, as bits: those not seen yet whose values fit the depth that is left. */
static uint64_t open_names(const struct json_schema *schema, const struct json_way *s) {
    const struct json_frame *frame = &s->frame[s->depth - 1];
    const struct json_node *node = &schema->node[frame->node];
    uint64_t names = all(node->n_properties) & ~frame->seen;
    for (uint32_t i = 0; i < node->n_properties; i++)
        if (!fits(schema, s, schema->property_node[node->properties + i])) names &= ~((uint64_t)1 << i);
    return names;
}

static bool more_names(const struct json_schema *schema, const struct json_way *s) {
    return schema->node[s->frame[s->depth - 1].node].additional || open_names(schema, s);
}

static bool begin_name(const struct json_schema *schema, struct json_way *s) {
    s->possible = all(schema->node[top(s)->node].n_properties);
    return more_names(schema, s) && begin_string(s, IN_NAME);
}

static bool end_name(const struct json_schema *schema, struct json_way *s) {
    struct json_frame *frame = top(s);
    const struct json_node *node = &schema->node[frame->node];
    for (uint32_t i = 0; i < node->n_properties; i++) {
        if (!(s->possible >> i & 1) || schema->property[node->properties + i][s->at]) continue;
        if (!(open_names(schema, s) >> i & 1)) return false;
        frame->seen |= (uint64_t)1 << i;
        return expect(s, COLON, schema->property_node[node->properties + i]);
    }
    return node->additional && expect(s, COLON, 0);
}

static bool name_byte(const struct json_schema *schema, struct json_way *s, unsigned char c) {
    const struct json_node *node = &schema->node[top(s)->node];
    bool ended;
    if (!string_byte(s, c, &ended)) return false;
    if (ended) return end_name(schema, s);
    for (uint32_t i = 0; i < node->n_properties; i++)
        if (s->possible >> i & 1 && (unsigned char)schema->property[node->properties + i][s->at] != c)
            s->possible &= ~((uint64_t)1 << i);
    s->at++;
    return node->additional || (s->possible & open_names(schema, s));
}

/* ---- Numbers */

static bool number_ends(const struct json_way *s) {
    return s->step == ZERO || s->step == DIGITS || s->step == FRACTION || s->step == EXPONENT_DIGITS;
}

/* Takes the next byte of a number; returns whether the number may go on with it. */
static bool number_byte(const struct json_schema *schema, struct json_way *s, unsigned char c) {
    bool digit = c >= '0' && c <= '9', whole = !(schema->node[s->node].kinds & JSON_NUMBERS);
    int next = -1;
    switch (s->step) {
    case MINUS: next = c == '0' ? ZERO : digit ? DIGITS : -1; break;
    case ZERO:
    case DIGITS:
        if (digit && s->step == DIGITS) next = DIGITS;
        if (c == '.' && !whole) next = POINT;
        if ((c == 'e' || c == 'E') && !whole) next = EXPONENT;
        break;
    case POINT:
    case FRACTION:
        if (digit) next = FRACTION;
        if ((c == 'e' || c == 'E') && s->step == FRACTION) next = EXPONENT;
        break;
    case EXPONENT: next = c == '+' || c == '-' ? SIGN : digit ? EXPONENT_DIGITS : -1; break;
    default: next = digit ? EXPONENT_DIGITS : -1; break;
    }
    if (next < 0 || ++s->at > JSON_NUMBER) return false;
    s->step = (uint8_t)next;
    return true;
}

/* Returns whether a number can still end before it is too long. */
static bool number_room(const struct json_way *s) { return s->at + 2 <= JSON_NUMBER || number_ends(s); }

/* ---- Choices and words */

static bool choice_byte(const struct json_schema *schema, struct json_way *s, unsigned char c) {
    const struct json_node *node = &schema->node[s->node];
    uint64_t left = 0;
    for (uint32_t i = 0; i < node->n_choices; i++)
        if (s->possible >> i & 1 && (unsigned char)schema->choice[node->choices + i][s->at] == c) left |= (uint64_t)1 << i;
    if (!left || !c) return false;
    s->possible = left;
    s->at++;
    return true;
}

/* Returns whether one choice is whole; sets *longer to whether another one goes on. */
static bool choice_ends(const struct json_schema *schema, const struct json_way *s, bool *longer) {
    const struct json_node *node = &schema->node[s->node];
    bool whole = false;
    *longer = false;
    for (uint32_t i = 0; i < node->n_choices; i++) {
        if (!(s->possible >> i & 1)) continue;
        if (schema->choice[node->choices + i][s->at])
            *longer = true;
        else
            whole = true;
    }
    return whole;
}

/* ---- Values */

/* Returns whether an object's required values, or an array's least number of items, fit the depth that is left. */
static bool frame_fits(const struct json_schema *schema, const struct json_way *s, bool object) {
    const struct json_node *node = &schema->node[s->node];
    if (s->depth == JSON_DEPTH) return false;
    if (!object) return !node->items_least || s->depth + 1 + schema->node[node->items].levels <= JSON_DEPTH;
    for (uint32_t i = 0; i < node->n_properties; i++)
        if (node->required >> i & 1 && s->depth + 1 + schema->node[schema->property_node[node->properties + i]].levels > JSON_DEPTH)
            return false;
    return true;
}

static bool open_frame(const struct json_schema *schema, struct json_way *s, bool object) {
    if (!frame_fits(schema, s, object)) return false;
    s->frame[s->depth++] = (struct json_frame){.node = s->node, .object = object};
    return expect(s, object ? FIRST_NAME : FIRST_ITEM, 0);
}

static bool begin_word(struct json_way *s, unsigned word) {
    s->where = IN_WORD;
    s->word = (uint8_t)word;
    s->at = 1;
    return true;
}

static bool begin_number(struct json_way *s, unsigned char c) {
    s->where = IN_NUMBER;
    s->step = c == '-' ? MINUS : c == '0' ? ZERO : DIGITS;
    s->at = 1;
    return true;
}

static bool begin_value(const struct json_schema *schema, struct json_way *s, unsigned char c) {
    const struct json_node *node = &schema->node[s->node];
    if (node->n_choices) {
        bool longer;
        s->where = IN_CHOICE;
        s->possible = all(node->n_choices);
        s->at = 0;
        if (!choice_byte(schema, s, c)) return false;
        if (choice_ends(schema, s, &longer) && !longer) end_value(s);
        return true;
    }
    switch (c) {
    case '{': return node->kinds & JSON_OBJECT && open_frame(schema, s, true);
    case '[': return node->kinds & JSON_ARRAY && open_frame(schema, s, false);
    case '"': return node->kinds & JSON_STRING && begin_text(schema, s);
    case 't': return node->kinds & JSON_BOOLEAN && begin_word(s, 0);
    case 'f': return node->kinds & JSON_BOOLEAN && begin_word(s, 1);
    case 'n': return node->kinds & JSON_NULL && begin_word(s, 2);
    default: return (c == '-' || (c >= '0' && c <= '9')) && node->kinds & (JSON_NUMBERS | JSON_INTEGER) && begin_number(s, c);
    }
}

static bool begin_item(const struct json_schema *schema, struct json_way *s) {
    struct json_frame *frame = top(s);
    const struct json_node *node = &schema->node[frame->node];
    if (frame->count == node->items_most || !fits(schema, s, node->items)) return false;
    if (frame->count < UINT32_MAX) frame->count++;
    return expect(s, VALUE, node->items);
}

static bool close_frame(const struct json_schema *schema, struct json_way *s, unsigned char c) {
    const struct json_frame *frame = top(s);
    const struct json_node *node = &schema->node[frame->node];
    if (c != (frame->object ? '}' : ']')) return false;
    if (frame->object ? node->required & ~frame->seen : frame->count < node->items_least) return false;
    s->depth--;
    end_value(s);
    return true;
}

/* Takes a byte where no string, number, word or choice is being written. */
static bool between(const struct json_schema *schema, struct json_way *s, unsigned char c) {
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') return ++s->spaces <= JSON_SPACES;
    s->spaces = 0;
    switch (s->where) {
    case VALUE: return begin_value(schema, s, c);
    case FIRST_ITEM: return close_frame(schema, s, c); /* what begins a value has become one before */
    case FIRST_NAME: return c == '}' ? close_frame(schema, s, c) : c == '"' && begin_name(schema, s);
    case NAME: return c == '"' && begin_name(schema, s);
    case COLON: return c == ':' && expect(s, VALUE, s->node);
    case AFTER_VALUE:
        if (c != ',') return close_frame(schema, s, c);
        return top(s)->object ? more_names(schema, s) && expect(s, NAME, 0) : begin_item(schema, s);
    default: return false;
    }
}

static bool push_byte(const struct json_schema *schema, struct json_way *s, unsigned char c) {
    bool longer;
    switch (s->where) {
    case IN_STRING: return text_byte(schema, s, c);
    case IN_NAME: return name_byte(schema, s, c);
    case IN_NUMBER:
        if (number_byte(schema, s, c)) return number_room(s);
        if (!number_ends(s)) return false;
        end_value(s);
        return between(schema, s, c);
    case IN_WORD:
        if ((unsigned char)words[s->word][s->at++] != c) return false;
        if (!words[s->word][s->at]) end_value(s);
        return true;
    case IN_CHOICE:
        if (choice_byte(schema, s, c)) {
            if (choice_ends(schema, s, &longer) && !longer) end_value(s);
            return true;
        }
        if (!choice_ends(schema, s, &longer)) return false;
        end_value(s);
        return between(schema, s, c);
    default: return between(schema, s, c);
    }
}

/* ---- Ways */

/* Copies a way. Frames that are not open are never read, so they stay out. */
static void copy_way(struct json_way *to, const struct json_way *from) {
    memcpy(to, from, offsetof(struct json_way, frame) + from->depth * sizeof *from->frame);
}

/* Returns whether this byte begins a value, which is then the one of s->node. */
static bool begins_value(const struct json_schema *schema, struct json_way *s, unsigned char c) {
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t' || (s->where == FIRST_ITEM && c == ']')) return false;
    return s->where == VALUE || (s->where == FIRST_ITEM && begin_item(schema, s));
}

/* Takes the first byte of a value of a union: the i-th way goes on with the first of its kinds that the byte may begin, and a way is added for
 * each other such kind. */
static bool split(const struct json_schema *schema, struct json_state *state, uint32_t i, unsigned char c) {
    const struct json_node *node = &schema->node[state->way[i].node];
    struct json_way before;
    bool any = false;
    copy_way(&before, &state->way[i]);
    before.spaces = 0;
    for (uint32_t j = 0; j < node->ways && (!any || state->ways < JSON_WAYS); j++) {
        struct json_way *to = &state->way[any ? state->ways : i];
        copy_way(to, &before);
        to->node = node->way[j];
        if (!begin_value(schema, to, c)) continue;
        state->ways += any;
        any = true;
    }
    return any;
}

static bool same(const struct json_way *a, const struct json_way *b) {
    if (a->where > DONE || a->where != b->where || a->node != b->node || a->spaces != b->spaces || a->depth != b->depth)
        return false;
    for (uint32_t i = 0; i < a->depth; i++) {
        const struct json_frame *x = &a->frame[i], *y = &b->frame[i];
        if (x->node != y->node || x->count != y->count || x->seen != y->seen || x->object != y->object) return false;
    }
    return true;
}

static void remove_way(struct json_state *state, uint32_t i) {
    if (i != --state->ways) copy_way(&state->way[i], &state->way[state->ways]);
}

static void unite(struct json_state *state) {
    for (uint32_t i = 0; i + 1 < state->ways; i++)
        for (uint32_t j = state->ways - 1; j > i; j--)
            if (same(&state->way[i], &state->way[j])) remove_way(state, j);
}

static bool push_all(const struct json_schema *schema, struct json_state *state, unsigned char c) {
    bool good[JSON_WAYS];
    uint32_t ways = state->ways;
    for (uint32_t i = 0; i < ways; i++) {
        struct json_way *s = &state->way[i];
        bool begins = begins_value(schema, s, c);
        good[i] = begins && schema->node[s->node].is_union ? split(schema, state, i, c) : push_byte(schema, s, c);
    }
    for (uint32_t i = ways; i-- > 0;)
        if (!good[i]) remove_way(state, i);
    if (state->ways > 1) unite(state);
    return state->ways > 0;
}

bool json_push(const struct json_schema *schema, struct json_state *state, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!push_all(schema, state, (unsigned char)text[i])) return false;
    return true;
}

void json_copy(struct json_state *to, const struct json_state *from) {
    to->ways = from->ways;
    for (uint32_t i = 0; i < from->ways; i++) copy_way(&to->way[i], &from->way[i]);
}

bool json_allows(const struct json_schema *schema, const struct json_state *state, const char *text, size_t n) {
    struct json_state copy;
    json_copy(&copy, state);
    return json_push(schema, &copy, text, n);
}

bool json_may_end(const struct json_schema *schema, const struct json_state *state) {
    for (uint32_t i = 0; i < state->ways; i++) {
        const struct json_way *s = &state->way[i];
        bool longer;
        if (s->depth) continue;
        if (s->where == DONE || (s->where == IN_NUMBER && number_ends(s)) ||
            (s->where == IN_CHOICE && choice_ends(schema, s, &longer)))
            return true;
    }
    return false;
}
