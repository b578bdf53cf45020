/* A buffer is bytes that grow at their end. */
#ifndef TERSE_SERVE_BUFFER_H
#define TERSE_SERVE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

struct buffer {
    char *bytes; /* bytes[n] is 0 once anything was added */
    size_t n, capacity;
    bool failed; /* no memory: nothing more is added */
};

void buffer_add(struct buffer *buffer, const void *bytes, size_t n);
void buffer_add_text(struct buffer *buffer, const char *text);
__attribute__((format(printf, 2, 3))) void buffer_print(struct buffer *buffer, const char *format, ...);
void buffer_free(struct buffer *buffer);

#endif
