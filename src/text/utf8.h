/* Walks over UTF-8 that may be damaged. Owns nothing. (base/text.h is about printable characters only.) */
#ifndef TERSE_TEXT_UTF8_H
#define TERSE_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>

enum utf8_state {
    UTF8_WHOLE, /* a well-formed character */
    UTF8_CUT,   /* the data ends inside a character that more bytes could complete */
    UTF8_BAD    /* bytes that begin no character: one U+FFFD stands for them (Unicode's "maximal subpart" practice) */
};

/* A utf8_rest describes the bytes that are still to follow in a character: `left` of them, of which the next lies between `low` and
 * `high`; those after it are 0x80 to 0xbf. */
struct utf8_rest {
    unsigned char left, low, high;
};

/* Finds which bytes follow `first`; returns false where it begins no character. Characters are well-formed: no overlong form, no surrogate,
 * nothing past U+10FFFF (Unicode 15, table 3-7). */
static inline bool utf8_begin(unsigned char first, struct utf8_rest *rest) {
    *rest = (struct utf8_rest){0, 0x80, 0xbf};
    if (first < 0x80) return true;
    if (first < 0xc2 || first > 0xf4) return false;
    rest->left = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
    if (first == 0xe0) rest->low = 0xa0;
    if (first == 0xf0) rest->low = 0x90;
    if (first == 0xed) rest->high = 0x9f;
    if (first == 0xf4) rest->high = 0x8f;
    return true;
}

/* Takes a byte that follows. Returns false where it does not belong there. */
static inline bool utf8_go_on(unsigned char byte, struct utf8_rest *rest) {
    if (byte < rest->low || byte > rest->high) return false;
    *rest = (struct utf8_rest){(unsigned char)(rest->left - 1), 0x80, 0xbf};
    return true;
}

/* Returns what kind of character begins at data[0 < size], and writes to *length how many bytes it takes. */
static inline enum utf8_state utf8_next(const char *data, size_t size, size_t *length) {
    const unsigned char *c = (const unsigned char *)data;
    struct utf8_rest rest;
    *length = 1;
    if (!utf8_begin(c[0], &rest)) return UTF8_BAD;
    for (; rest.left; ++*length) {
        if (*length == size) return UTF8_CUT;
        if (!utf8_go_on(c[*length], &rest)) return UTF8_BAD;
    }
    return UTF8_WHOLE;
}

/* Returns how many bytes at the beginning of data[size] are well-formed UTF-8. */
static inline size_t utf8_prefix(const char *data, size_t size) {
    size_t at = 0, length;
    while (at < size && utf8_next(data + at, size - at, &length) == UTF8_WHOLE) at += length;
    return at;
}

#endif
