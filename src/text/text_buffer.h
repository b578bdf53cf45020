/* A text_buffer is text that grows. */
#ifndef TERSE_TEXT_TEXT_BUFFER_H
#define TERSE_TEXT_TEXT_BUFFER_H

#include "base/status.h"

#include <stddef.h>

struct text_buffer {
    char *at; /* [capacity]; NULL while it is empty */
    size_t size, capacity;
};

enum terse_status text_buffer_add(struct text_buffer *buffer, const char *text, size_t n, struct terse_error *error);
/* Drops the first n bytes. */
void text_buffer_drop(struct text_buffer *buffer, size_t n);
void text_buffer_free(struct text_buffer *buffer);

#endif
