/* Reads text files, and handles the buffers of text and tokens that the commands work on. */
#include "text.h"

#include "console.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the length of the UTF-8 character at s, at most n > 0 bytes long; 0 when there is none (Unicode 15, table 3-7). */
static size_t utf8_length(const unsigned char *s, size_t n) {
    if (s[0] < 0x80) return 1;
    size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n < length) return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] > 0x9f, beyond = s[0] == 0xf4 && s[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : length;
}

size_t text_valid(const char *text, size_t n_bytes) {
    size_t at = 0;
    for (size_t length; at < n_bytes && text[at]; at += length) {
        length = utf8_length((const unsigned char *)text + at, n_bytes - at);
        if (!length) break;
    }
    return at;
}

static int refuse_text(const char *name, const char *text, size_t at, const char *advice) {
    return complain("%s is not text: %s at offset %zu; %s", name, text[at] ? "bytes that are not UTF-8" : "a NUL byte", at, advice);
}

int text_check(const char *name, const char *text, size_t n_bytes) {
    size_t at = text_valid(text, n_bytes);
    return at == n_bytes ? EXIT_OK : refuse_text(name, text, at, "give UTF-8 text");
}

/* Checks all of a file, which may be text in another encoding. `path` is NULL for standard input. */
static int check_file(const char *path, const char *name, const char *text, size_t n_bytes) {
    char advice[4200];
    size_t at = text_valid(text, n_bytes);
    if (at == n_bytes) return EXIT_OK;
    bool wide = n_bytes >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0);
    if (!text[at] && !wide) return refuse_text(name, text, at, "give UTF-8 text");
    snprintf(advice, sizeof advice, "if it is %s text, iconv -f %s -t UTF-8%s%s makes UTF-8 of it", wide ? "UTF-16" : "Latin-1",
             wide ? "UTF-16" : "LATIN1", path ? " " : "", path ? path : "");
    return refuse_text(name, text, at, advice);
}

#define MOST_TEXT ((size_t)256 << 20)

int text_read(const char *path, char **text, size_t *n_bytes) {
    int status = EXIT_FAILED;
    bool standard = strcmp(path, "-") == 0;
    size_t size = 0, capacity = 1 << 16, got;
    char *buffer = NULL;
    *text = NULL;
    *n_bytes = 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (standard) path = "standard input";
    if (!file) return complain("cannot open %s: %s", path, strerror(errno));
    do {
        capacity *= 2;
        char *larger = realloc(buffer, capacity);
        if (!larger) {
            complain("no memory for the text of %s (%zu bytes so far)", path, size);
            goto done;
        }
        buffer = larger;
        got = fread(buffer + size, 1, capacity - 1 - size, file);
        size += got;
        if (got && memchr(buffer + size - got, 0, got)) break; /* no text, and perhaps without end */
        if (size > MOST_TEXT) {
            complain("%s is longer than %zu MiB: give a part of it", path, MOST_TEXT >> 20);
            goto done;
        }
    } while (got && size == capacity - 1);
    if (ferror(file)) {
        status = console_interrupted() ? EXIT_INTERRUPTED : complain("cannot read %s: %s", path, strerror(errno));
        goto done;
    }
    buffer[size] = 0;
    status = check_file(standard ? NULL : path, path, buffer, size);
    if (status != EXIT_OK) goto done;
    *text = buffer;
    *n_bytes = size;
    buffer = NULL;
done:
    free(buffer);
    if (!standard) fclose(file);
    return status;
}

int text_tokenize(const struct terse_model *model, const char *text, size_t n_bytes, unsigned flags, int32_t **tokens,
                  size_t *n_tokens) {
    struct terse_error error;
    size_t capacity = n_bytes + 4; /* enough for all but strange vocabularies, which say what they need */
    *tokens = NULL;
    do {
        int32_t *larger = realloc(*tokens, capacity * sizeof **tokens);
        if (!larger) {
            complain("no memory for the tokens of %zu bytes of text", n_bytes);
            goto fail;
        }
        *tokens = larger;
        if (terse_tokenize(model, text, n_bytes, flags, *tokens, capacity, n_tokens, &error) == TERSE_OK) return EXIT_OK;
    } while (*n_tokens > capacity && (capacity = *n_tokens));
    complain_error(&error);
fail:
    free(*tokens);
    *tokens = NULL;
    return EXIT_FAILED;
}

int text_read_tokens(const struct terse_model *model, const char *path, int32_t **tokens, size_t *n_tokens) {
    char *text;
    size_t n_bytes;
    int status = text_read(path, &text, &n_bytes);
    if (status != EXIT_OK) return status;
    status = text_tokenize(model, text, n_bytes, TERSE_TOKENIZE_ADD_SPECIAL, tokens, n_tokens);
    free(text);
    return status;
}

char *text_make_printable(char *text) {
    for (size_t at = 0, n = strlen(text), length; at < n; at += length) {
        length = utf8_length((unsigned char *)text + at, n - at);
        unsigned char c = (unsigned char)text[at];
        bool c1_control = c == 0xc2 && length == 2 && (unsigned char)text[at + 1] < 0xa0;
        if (!length || c < 0x20 || c == 0x7f || c1_control) {
            memset(text + at, '?', length ? length : 1);
            if (!length) length = 1;
        }
    }
    return text;
}

enum terse_status text_try_chat(const struct terse_model *model, const char *format, const char *template_text,
                                struct terse_error *error) {
    struct terse_chat_options options = terse_chat_options_defaults();
    const struct terse_message message = {"user", "-"};
    char *text;
    options.format = format;
    options.template_text = template_text;
    enum terse_status status = terse_chat_render_with(model, &options, &message, 1, &text, error);
    terse_string_free(text);
    return status;
}
