/* The automaton: what is expected next, a stack of open objects and arrays, and the string or number that is being written. */
#include "text/json_filter.h"

#include <string.h>

enum where {
    VALUE,      /* a value begins */
    FIRST_ITEM, /* or the array ends */
    FIRST_NAME, /* or the object ends */
    NAME,       /* a name begins */
    COLON,
    AFTER_VALUE, /* a comma, or the end of the object or array */
    IN_STRING,
    IN_NAME,
    IN_NUMBER,
    IN_WORD, /* true, false, null */
    IN_CHOICE,
    DONE
};

/* Of a number: what was written last. */
enum { MINUS, ZERO, DIGITS, POINT, FRACTION, EXPONENT, SIGN, EXPONENT_DIGITS };

/* Of a string: plain, after a backslash, or so many hexadecimal digits are to come. */
enum { PLAIN, ESCAPE = 5 };

static const char *const words[] = {"true", "false", "null"};

struct json_state json_begin(void) {
    return (struct json_state){.where = VALUE, .node = 1};
}

static struct json_frame *top(struct json_state *s) { return &s->frame[s->depth - 1]; }

static uint64_t all(uint32_t n) { return n == 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1; }

static void end_value(struct json_state *s) { s->where = s->depth ? AFTER_VALUE : DONE; }

static bool expect(struct json_state *s, enum where where, uint32_t node) {
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

static bool end_unit(struct json_state *s) {
    bool low = s->unit >= 0xdc00 && s->unit <= 0xdfff;
    if (low != s->low_surrogate) return false;
    s->low_surrogate = s->unit >= 0xd800 && s->unit <= 0xdbff;
    return true;
}

/* A byte of a string; *ended: it was the quote that ends it. */
static bool string_byte(struct json_state *s, unsigned char c, bool *ended) {
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
    return --s->step != PLAIN || end_unit(s);
}

static bool begin_string(struct json_state *s, enum where where) {
    s->where = (uint8_t)where;
    s->step = PLAIN;
    s->at = 0;
    return true;
}

/* ---- Names */

static bool more_names(const struct json_schema *schema, const struct json_frame *frame) {
    const struct json_node *node = &schema->node[frame->node];
    return node->additional || (all(node->n_properties) & ~frame->seen);
}

static bool begin_name(const struct json_schema *schema, struct json_state *s) {
    const struct json_frame *frame = top(s);
    s->possible = all(schema->node[frame->node].n_properties);
    return more_names(schema, frame) && begin_string(s, IN_NAME);
}

static bool end_name(const struct json_schema *schema, struct json_state *s) {
    struct json_frame *frame = top(s);
    const struct json_node *node = &schema->node[frame->node];
    for (uint32_t i = 0; i < node->n_properties; i++) {
        if (!(s->possible >> i & 1) || schema->property[node->properties + i][s->at]) continue;
        if (frame->seen >> i & 1) return false;
        frame->seen |= (uint64_t)1 << i;
        return expect(s, COLON, schema->property_node[node->properties + i]);
    }
    return node->additional && expect(s, COLON, 0);
}

static bool name_byte(const struct json_schema *schema, struct json_state *s, unsigned char c) {
    const struct json_node *node = &schema->node[top(s)->node];
    bool ended;
    if (!string_byte(s, c, &ended)) return false;
    if (ended) return end_name(schema, s);
    for (uint32_t i = 0; i < node->n_properties; i++)
        if (s->possible >> i & 1 && (unsigned char)schema->property[node->properties + i][s->at] != c)
            s->possible &= ~((uint64_t)1 << i);
    s->at++;
    return node->additional || (s->possible & ~top(s)->seen);
}

/* ---- Numbers */

static bool number_ends(const struct json_state *s) {
    return s->step == ZERO || s->step == DIGITS || s->step == FRACTION || s->step == EXPONENT_DIGITS;
}

/* Whether a number goes on with this byte. */
static bool number_byte(const struct json_schema *schema, struct json_state *s, unsigned char c) {
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

/* A number must be able to end before it is too long. */
static bool number_room(const struct json_state *s) { return s->at + 2 <= JSON_NUMBER || number_ends(s); }

/* ---- Choices and words */

static bool choice_byte(const struct json_schema *schema, struct json_state *s, unsigned char c) {
    const struct json_node *node = &schema->node[s->node];
    uint64_t left = 0;
    for (uint32_t i = 0; i < node->n_choices; i++)
        if (s->possible >> i & 1 && (unsigned char)schema->choice[node->choices + i][s->at] == c) left |= (uint64_t)1 << i;
    if (!left || !c) return false;
    s->possible = left;
    s->at++;
    return true;
}

/* Whether one choice is whole; *longer: another one goes on. */
static bool choice_ends(const struct json_schema *schema, const struct json_state *s, bool *longer) {
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

static bool open_frame(struct json_state *s, bool object) {
    if (s->depth == JSON_DEPTH) return false;
    s->frame[s->depth++] = (struct json_frame){.node = s->node, .object = object};
    s->where = object ? FIRST_NAME : FIRST_ITEM;
    return true;
}

static bool begin_word(struct json_state *s, unsigned word) {
    s->where = IN_WORD;
    s->word = (uint8_t)word;
    s->at = 1;
    return true;
}

static bool begin_number(struct json_state *s, unsigned char c) {
    s->where = IN_NUMBER;
    s->step = c == '-' ? MINUS : c == '0' ? ZERO : DIGITS;
    s->at = 1;
    return true;
}

static bool begin_value(const struct json_schema *schema, struct json_state *s, unsigned char c) {
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
    case '{': return node->kinds & JSON_OBJECT && open_frame(s, true);
    case '[': return node->kinds & JSON_ARRAY && open_frame(s, false);
    case '"': return node->kinds & JSON_STRING && begin_string(s, IN_STRING);
    case 't': return node->kinds & JSON_BOOLEAN && begin_word(s, 0);
    case 'f': return node->kinds & JSON_BOOLEAN && begin_word(s, 1);
    case 'n': return node->kinds & JSON_NULL && begin_word(s, 2);
    default: return (c == '-' || (c >= '0' && c <= '9')) && node->kinds & (JSON_NUMBERS | JSON_INTEGER) && begin_number(s, c);
    }
}

static bool begin_item(const struct json_schema *schema, struct json_state *s) {
    struct json_frame *frame = top(s);
    const struct json_node *node = &schema->node[frame->node];
    if (frame->count == node->items_most) return false;
    frame->count++;
    return expect(s, VALUE, node->items);
}

static bool close_frame(const struct json_schema *schema, struct json_state *s, unsigned char c) {
    const struct json_frame *frame = top(s);
    const struct json_node *node = &schema->node[frame->node];
    if (c != (frame->object ? '}' : ']')) return false;
    if (frame->object ? node->required & ~frame->seen : frame->count < node->items_least) return false;
    s->depth--;
    end_value(s);
    return true;
}

/* A byte where no string, number, word or choice is being written. */
static bool between(const struct json_schema *schema, struct json_state *s, unsigned char c) {
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') return ++s->spaces <= JSON_SPACES;
    s->spaces = 0;
    switch (s->where) {
    case VALUE: return begin_value(schema, s, c);
    case FIRST_ITEM: return c == ']' ? close_frame(schema, s, c) : begin_item(schema, s) && begin_value(schema, s, c);
    case FIRST_NAME: return c == '}' ? close_frame(schema, s, c) : c == '"' && begin_name(schema, s);
    case NAME: return c == '"' && begin_name(schema, s);
    case COLON: return c == ':' && expect(s, VALUE, s->node);
    case AFTER_VALUE:
        if (c != ',') return close_frame(schema, s, c);
        return top(s)->object ? more_names(schema, top(s)) && expect(s, NAME, 0) : begin_item(schema, s);
    default: return false;
    }
}

static bool push_byte(const struct json_schema *schema, struct json_state *s, unsigned char c) {
    bool ended, longer;
    switch (s->where) {
    case IN_STRING:
        if (!string_byte(s, c, &ended)) return false;
        if (ended) end_value(s);
        return true;
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

bool json_push(const struct json_schema *schema, struct json_state *state, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!push_byte(schema, state, (unsigned char)text[i])) return false;
    return true;
}

bool json_allows(const struct json_schema *schema, const struct json_state *state, const char *text, size_t n) {
    struct json_state copy; /* frames that are not open are not read */
    memcpy(&copy, state, offsetof(struct json_state, frame) + state->depth * sizeof *state->frame);
    return json_push(schema, &copy, text, n);
}

bool json_may_end(const struct json_schema *schema, const struct json_state *s) {
    bool longer;
    if (s->depth) return false;
    return s->where == DONE || (s->where == IN_NUMBER && number_ends(s)) ||
           (s->where == IN_CHOICE && choice_ends(schema, s, &longer));
}
