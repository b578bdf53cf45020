/* Makes strings from files fit for one line of a terminal: whatever is not printable UTF-8 is written as an escape. */
#ifndef TERSE_BASE_TEXT_H
#define TERSE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns how many bytes (1 to 4) the well-formed, printable UTF-8 character has that begins at data[0 < size]; 0 when there is
 * none: control characters (U+0000-001F, 007F-009F), surrogates, overlong and cut sequences. */
size_t text_character(const char *data, uint64_t size);
/* Returns whether every byte belongs to a printable character. */
bool text_is_printable(const char *data, uint64_t size);

/* A line of text that is being written into buffer[capacity]. The part that does not fit is cut off between characters, and text_line_end puts
 * "..." in its place. */
struct text_line {
    char *buffer;
    size_t capacity, length;
    size_t mark; /* the last place between characters that leaves space for "..." */
    bool cut;
};
struct text_line text_line_begin(char *buffer, size_t capacity);
/* Adds text that is kept or cut as a whole. */
void text_line_unit(struct text_line *line, const char *text, size_t size);
/* Adds a string character by character, unprintable ones as \n, \t, \r or \xHH; `quoted` puts it between double quotes and
 * escapes quotes and backslashes. */
void text_line_string(struct text_line *line, const char *data, uint64_t size, bool quoted);
/* Terminates the line with a zero and returns its length. */
size_t text_line_end(struct text_line *line);
/* Writes a file's name for messages: printable, and of a long name the end, which tells files apart. */
void text_file_name(char *buffer, size_t capacity, const char *name);
/* Writes one quoted string as a whole line, for messages that repeat what a file or a caller gave. Returns `buffer`. */
const char *text_quote(char *buffer, size_t capacity, const char *data, uint64_t size);

#endif
