#include "text/text_buffer.h"

#include "base/memory.h"

#include <string.h>

enum terse_status text_buffer_add(struct text_buffer *b, const char *text, size_t n, struct terse_error *error) {
    if (b->size + n > b->capacity) {
        size_t capacity = 2 * (b->size + n);
        char *larger = memory_array(capacity, 1);
        if (!larger) return status_no_memory(error, capacity, "the text of a reply");
        if (b->size) memcpy(larger, b->at, b->size);
        memory_free(b->at);
        b->at = larger;
        b->capacity = capacity;
    }
    if (n) memcpy(b->at + b->size, text, n);
    b->size += n;
    return TERSE_OK;
}

void text_buffer_drop(struct text_buffer *b, size_t n) {
    b->size -= n;
    if (n && b->size) memmove(b->at, b->at + n, b->size);
}

void text_buffer_free(struct text_buffer *b) {
    memory_free(b->at);
    *b = (struct text_buffer){0};
}
