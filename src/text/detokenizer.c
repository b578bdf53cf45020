/* Turns a stream of tokens into text. Holds back the bytes of an unfinished character until the next token completes it. */
#include "text/detokenizer.h"

#include "base/memory.h"
#include "base/status.h"
#include "text/utf8.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
enum { REPLACEMENT_BYTES = sizeof replacement - 1, MAX_HELD = 3 };

struct terse_detokenizer {
    const struct tokenizer *tokenizer;
    enum detokenizer_shows shows;
    struct chat_format format; /* of a reply */
    size_t n_held;
    char held[MAX_HELD]; /* the beginning of a character */
    char *raw;           /* what is held and one token */
    char *text;          /* the same as characters: a replacement takes three bytes where there may have been one */
};

enum terse_status detokenizer_new(const struct tokenizer *tokenizer, enum detokenizer_shows shows, const struct chat_format *format,
                                  struct terse_detokenizer **detokenizer, struct terse_error *error) {
    *detokenizer = NULL;
    size_t raw = MAX_HELD + tokenizer_longest(tokenizer), text = REPLACEMENT_BYTES * raw + 1;
    struct terse_detokenizer *d = memory_zeros(1, sizeof *d);
    if (!d) return status_no_memory(error, sizeof *d, "the detokenizer");
    d->tokenizer = tokenizer;
    d->shows = shows;
    if (format) d->format = *format;
    d->raw = memory_array(raw, 1);
    d->text = memory_array(text, 1);
    if (!d->raw || !d->text) {
        terse_detokenizer_free(d);
        return status_no_memory(error, raw + text, "the detokenizer");
    }
    *detokenizer = d;
    return TERSE_OK;
}

void terse_detokenizer_free(struct terse_detokenizer *d) {
    if (!d) return;
    memory_free(d->raw);
    memory_free(d->text);
    memory_free(d);
}

static const char *end_text(struct terse_detokenizer *d, size_t n, size_t *n_bytes) {
    d->text[n] = '\0';
    if (n_bytes) *n_bytes = n;
    return d->text;
}

const char *terse_detokenizer_push(struct terse_detokenizer *d, int32_t token, size_t *n_bytes) {
    size_t size, out = 0;
    const char *bytes = d->shows == DETOKENIZER_REPLY ? chat_format_bytes(&d->format, d->tokenizer, token, &size)
                                                      : tokenizer_bytes(d->tokenizer, token, d->shows == DETOKENIZER_ALL, &size);
    memcpy(d->raw, d->held, d->n_held);
    memcpy(d->raw + d->n_held, bytes, size);
    size += d->n_held;
    d->n_held = 0;
    for (size_t at = 0, length; at < size; at += length) {
        enum utf8_state state = utf8_next(d->raw + at, size - at, &length);
        if (state == UTF8_CUT) {
            memcpy(d->held, d->raw + at, length);
            d->n_held = length;
        } else {
            size_t n = state == UTF8_WHOLE ? length : REPLACEMENT_BYTES;
            memcpy(d->text + out, state == UTF8_WHOLE ? d->raw + at : replacement, n);
            out += n;
        }
    }
    return end_text(d, out, n_bytes);
}

const char *terse_detokenizer_finish(struct terse_detokenizer *d, size_t *n_bytes) {
    size_t n = d->n_held ? REPLACEMENT_BYTES : 0;
    memcpy(d->text, replacement, n);
    d->n_held = 0;
    return end_text(d, n, n_bytes);
}
