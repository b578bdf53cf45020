/* Walks over the bytes of JSON text that a parser has accepted. */
#include "text/json_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* Returns the place behind the string that begins at `at`. */
static size_t behind_string(const char *text, size_t n, size_t at) {
    for (at++; at < n && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return at < n ? at + 1 : n;
}

/* ---- Strings ------------------------------------------------------------------------------------------------------------- */

/* Reads the four digits of \uXXXX at text[at]; returns false where they are not all there. */
static bool read_unit(const char *text, size_t n, size_t at, uint32_t *unit) {
    char digits[5] = {0}, *end;
    if (n < 4 || at > n - 4) return false;
    memcpy(digits, text + at, 4);
    *unit = (uint32_t)strtoul(digits, &end, 16);
    return end == digits + 4;
}

static size_t write_character(char *to, uint32_t c) {
    if (c < 0x80) return to[0] = (char)c, 1;
    if (c < 0x800) return to[0] = (char)(0xc0 | c >> 6), to[1] = (char)(0x80 | (c & 0x3f)), 2;
    if (c < 0x10000) {
        to[0] = (char)(0xe0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 0x3f));
        return to[2] = (char)(0x80 | (c & 0x3f)), 3;
    }
    to[0] = (char)(0xf0 | c >> 18);
    to[1] = (char)(0x80 | (c >> 12 & 0x3f));
    to[2] = (char)(0x80 | (c >> 6 & 0x3f));
    return to[3] = (char)(0x80 | (c & 0x3f)), 4;
}

/* Writes a character of a string the way json.dumps does. Returns the bytes written, 6 at most. */
static size_t write_escaped(char *to, uint32_t c) {
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *found = c && c < 0x80 ? strchr(plain, (int)c) : NULL;
    char escape[16];
    if (found) return to[0] = '\\', to[1] = letters[found - plain], 2;
    if (c >= 0x20 && (c < 0xd800 || c > 0xdfff)) return write_character(to, c);
    snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
    memcpy(to, escape, 6);
    return 6;
}

/* Reads the escape behind the backslash at text[*at - 1] and moves *at behind it. */
static uint32_t read_escape(const char *text, size_t n, size_t *at) {
    static const char letters[] = "bfnrt", plain[] = "\b\f\n\r\t";
    char letter = text[(*at)++];
    const char *found = letter ? strchr(letters, letter) : NULL;
    uint32_t high, low;
    if (found) return (uint32_t)(unsigned char)plain[found - letters];
    if (letter != 'u' || !read_unit(text, n, *at, &high)) return (uint32_t)(unsigned char)letter;
    *at += 4;
    bool pair = high >= 0xd800 && high < 0xdc00 && *at + 1 < n && text[*at] == '\\' && text[*at + 1] == 'u' &&
                read_unit(text, n, *at + 2, &low) && low >= 0xdc00 && low < 0xe000;
    if (!pair) return high;
    *at += 6;
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

/* Copies the string text[from, to), quotes included; returns the bytes written. */
static size_t copy_string(char *out, const char *text, size_t from, size_t to) {
    size_t size = 1, at = from + 1, last = to - 1;
    out[0] = '"';
    while (at < last) {
        unsigned char c = (unsigned char)text[at++];
        if (c == '\\' && at < last)
            size += write_escaped(out + size, read_escape(text, last, &at));
        else if (c < 0x20)
            size += write_escaped(out + size, c);
        else
            out[size++] = (char)c;
    }
    out[size++] = '"';
    return size;
}

char *json_spaced(const char *text, size_t n) {
    char *out = n < SIZE_MAX / 6 ? malloc(6 * n + 1) : NULL; /* a control character becomes 6 bytes */
    size_t size = 0;
    if (!out) return NULL;
    for (size_t at = 0; at < n;) {
        if (text[at] == '"') {
            size_t end = behind_string(text, n, at);
            size += copy_string(out + size, text, at, end);
            at = end;
            continue;
        }
        char c = text[at++];
        if (is_space(c)) continue;
        out[size++] = c;
        if (c == ',' || c == ':') out[size++] = ' ';
    }
    out[size] = '\0';
    return out;
}

char *json_quoted(const char *text) {
    size_t n = strlen(text), size = 0;
    char *out = n < SIZE_MAX / 6 - 1 ? malloc(6 * n + 3) : NULL;
    if (!out) return NULL;
    out[size++] = '"';
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == '"' || c == '\\')
            size += write_escaped(out + size, c);
        else
            out[size++] = *text;
    }
    out[size++] = '"';
    out[size] = '\0';
    return out;
}

/* ---- Members ------------------------------------------------------------------------------------------------------------- */

/* Returns the place behind the value that begins at `at`. */
static size_t behind_value(const char *text, size_t n, size_t at) {
    size_t depth = 0;
    while (at < n) {
        char c = text[at];
        if (depth == 0 && (c == ',' || c == '}' || c == ']' || is_space(c))) return at;
        at = c == '"' ? behind_string(text, n, at) : at + 1;
        if (c == '{' || c == '[') depth++;
        if ((c == '}' || c == ']') && --depth == 0) return at;
    }
    return n;
}

struct text_span json_member(const char *text, size_t n, const char *name) {
    struct text_span found = {0, 0};
    size_t at = 0, length = strlen(name);
    while (at < n && text[at] != '{') at++;
    for (at++; at < n;) {
        if (text[at] != '"') {
            at++;
            continue;
        }
        size_t from = at + 1, to = behind_string(text, n, at) - 1;
        for (at = to + 1; at < n && (is_space(text[at]) || text[at] == ':');) at++;
        size_t end = behind_value(text, n, at);
        if (!found.end && to - from == length && memcmp(text + from, name, length) == 0) found = (struct text_span){at, end};
        at = end;
    }
    return found;
}

bool json_next_item(const char *text, size_t n, struct text_span *item) {
    size_t at = item->end;
    if (!at)
        while (at < n && text[at++] != '[') {}
    while (at < n && (is_space(text[at]) || text[at] == ',')) at++;
    if (at == n || text[at] == ']') return false;
    *item = (struct text_span){at, behind_value(text, n, at)};
    return true;
}

bool json_behind(const char *text, size_t n, size_t begin, size_t *end) {
    size_t depth = 0;
    bool quoted = false;
    for (size_t at = begin; at < n; at++) {
        char c = text[at];
        if (quoted && c == '\\') {
            at++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (c == '{' || c == '[')) {
            depth++;
        } else if (!quoted && (c == '}' || c == ']') && --depth == 0) {
            *end = at + 1;
            return true;
        }
    }
    return false;
}
