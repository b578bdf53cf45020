/* Walking UTF-8 that may be damaged. Owns nothing. (base/text.h speaks of printable characters only.) */
#ifndef TERSE_TEXT_UTF8_H
#define TERSE_TEXT_UTF8_H

#include <stddef.h>

enum utf8_state {
    UTF8_WHOLE, /* a well-formed character */
    UTF8_CUT,   /* the data ends inside a character that more bytes could complete */
    UTF8_BAD    /* bytes that begin no character: one U+FFFD stands for them (Unicode's "maximal subpart" practice) */
};

/* What begins at data[0 < size], and in *length how many bytes it takes. Well-formed: no overlong form, no surrogate, nothing past
 * U+10FFFF (Unicode 15, table 3-7). */
static inline enum utf8_state utf8_next(const char *data, size_t size, size_t *length) {
    const unsigned char *c = (const unsigned char *)data;
    *length = 1;
    if (c[0] < 0x80) return UTF8_WHOLE;
    if (c[0] < 0xc2 || c[0] > 0xf4) return UTF8_BAD;
    size_t whole = c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
    unsigned low = c[0] == 0xe0 ? 0xa0 : c[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = c[0] == 0xed ? 0x9f : c[0] == 0xf4 ? 0x8f : 0xbf;
    for (; *length < whole; ++*length) {
        if (*length == size) return UTF8_CUT;
        if (c[*length] < low || c[*length] > high) return UTF8_BAD;
        low = 0x80;
        high = 0xbf;
    }
    return UTF8_WHOLE;
}

/* Bytes at the beginning of data[size] that are well-formed UTF-8. */
static inline size_t utf8_prefix(const char *data, size_t size) {
    size_t at = 0, length;
    while (at < size && utf8_next(data + at, size - at, &length) == UTF8_WHOLE) at += length;
    return at;
}

#endif
