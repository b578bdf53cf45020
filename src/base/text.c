/* Recognises printable characters and writes lines of text cut to fit a buffer. */
#include "base/text.h"

#include <stdio.h>
#include <string.h>

size_t text_character(const char *data, uint64_t size) {
    const unsigned char *c = (const unsigned char *)data;
    if (c[0] < 0x80) return c[0] >= 0x20 && c[0] != 0x7f;
    if (c[0] < 0xc2 || c[0] > 0xf4) return 0;
    size_t n = c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
    if (size < n) return 0;
    /* The second byte excludes C1 controls, overlong forms, surrogates and what lies past U+10FFFF. */
    unsigned low = c[0] == 0xc2 || c[0] == 0xe0 ? 0xa0 : c[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = c[0] == 0xed ? 0x9f : c[0] == 0xf4 ? 0x8f : 0xbf;
    if (c[1] < low || c[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    return n;
}

bool text_is_printable(const char *data, uint64_t size) {
    for (uint64_t i = 0; i < size;) {
        size_t n = text_character(data + i, size - i);
        if (n == 0) return false;
        i += n;
    }
    return true;
}

struct text_line text_line_begin(char *buffer, size_t capacity) {
    return (struct text_line){.buffer = buffer, .capacity = capacity, .cut = capacity == 0};
}

void text_line_unit(struct text_line *line, const char *text, size_t size) {
    if (line->cut) return;
    if (size > line->capacity - 1 - line->length) {
        line->cut = true;
        return;
    }
    memcpy(line->buffer + line->length, text, size);
    line->length += size;
    if (line->length + 4 <= line->capacity) line->mark = line->length;
}

void text_line_string(struct text_line *line, const char *data, uint64_t size, bool quoted) {
    if (quoted) text_line_unit(line, "\"", 1);
    for (uint64_t i = 0; i < size && !line->cut;) {
        size_t n = text_character(data + i, size - i);
        if (n > 1 || (n == 1 && !(quoted && (data[i] == '"' || data[i] == '\\')))) {
            text_line_unit(line, data + i, n);
            i += n;
            continue;
        }
        static const char escaped[] = "\"\\\n\t\r", letters[] = "\"\\ntr";
        char escape[5];
        unsigned char c = (unsigned char)data[i++];
        const char *found = c ? strchr(escaped, c) : NULL;
        if (found)
            snprintf(escape, sizeof escape, "\\%c", letters[found - escaped]);
        else
            snprintf(escape, sizeof escape, "\\x%02x", c);
        text_line_unit(line, escape, strlen(escape));
    }
    if (quoted) text_line_unit(line, "\"", 1);
}

size_t text_line_end(struct text_line *line) {
    if (line->capacity == 0) return 0;
    if (line->cut) {
        size_t space = line->capacity - 1 - line->mark;
        size_t dots = space < 3 ? space : 3;
        memcpy(line->buffer + line->mark, "...", dots);
        line->length = line->mark + dots;
    }
    line->buffer[line->length] = '\0';
    return line->length;
}

const char *text_quote(char *buffer, size_t capacity, const char *data, uint64_t size) {
    struct text_line line = text_line_begin(buffer, capacity);
    text_line_string(&line, data, size, true);
    text_line_end(&line);
    return buffer;
}

void text_file_name(char *buffer, size_t capacity, const char *name) {
    size_t size = strlen(name), most = capacity - 1;
    struct text_line line = text_line_begin(buffer, capacity);
    if (size > most) {
        name += size - most + 3;
        while (((unsigned char)*name & 0xc0) == 0x80) name++; /* to the beginning of a character */
        text_line_unit(&line, "...", 3);
    }
    text_line_string(&line, name, strlen(name), false);
    text_line_end(&line);
}
