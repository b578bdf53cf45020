#include "buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buffer_add(struct buffer *buffer, const void *bytes, size_t n) {
    if (buffer->failed) return;
    if (!buffer->bytes || n >= buffer->capacity - buffer->n) {
        size_t capacity = (buffer->n + n + 32) * 2;
        char *larger = realloc(buffer->bytes, capacity);
        if (!larger) {
            buffer->failed = true;
            return;
        }
        buffer->bytes = larger;
        buffer->capacity = capacity;
    }
    if (n) memcpy(buffer->bytes + buffer->n, bytes, n);
    buffer->n += n;
    buffer->bytes[buffer->n] = 0;
}

void buffer_add_text(struct buffer *buffer, const char *text) { buffer_add(buffer, text, strlen(text)); }

void buffer_print(struct buffer *buffer, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (n > 0) buffer_add(buffer, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

void buffer_free(struct buffer *buffer) {
    free(buffer->bytes);
    *buffer = (struct buffer){0};
}
