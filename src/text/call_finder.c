/* Finds tool calls in the text of a reply, as it is written. */
#include "base/memory.h"
#include "base/status.h"
#include "text/chat_format.h"
#include "text/json_text.h"

#include <cjson/cJSON.h>
#include <string.h>

/* A text_buffer is text that grows. */
struct text_buffer {
    char *at; /* [capacity] */
    size_t size, capacity;
};

struct terse_call_finder {
    struct text_buffer held, out; /* what may still be a part of a call; what the last push has shown */
    size_t searched;              /* bytes of an open call in which no end begins */
    struct terse_tool_call *calls;
    size_t n_calls, calls_capacity;
};

enum { OPEN_SIZE = sizeof CHAT_CALL_OPEN - 1, CLOSE_SIZE = sizeof CHAT_CALL_CLOSE - 1 };

/* ---- Memory --------------------------------------------------------------------------------------------------------------- */

static enum terse_status append(struct text_buffer *b, const char *text, size_t n, struct terse_error *error) {
    if (b->size + n > b->capacity) {
        size_t capacity = 2 * (b->size + n);
        char *larger = memory_array(capacity, 1);
        if (!larger) return status_no_memory(error, capacity, "the tool calls of a reply");
        if (b->size) memcpy(larger, b->at, b->size);
        memory_free(b->at);
        b->at = larger;
        b->capacity = capacity;
    }
    if (n) memcpy(b->at + b->size, text, n);
    b->size += n;
    return TERSE_OK;
}

static char *copy(const char *text, size_t n) {
    char *made = memory_array(n + 1, 1);
    if (made) memcpy(made, text, n), made[n] = '\0';
    return made;
}

static enum terse_status keep_call(struct terse_call_finder *f, const char *name, const char *arguments, size_t n_arguments,
                                   struct terse_error *error) {
    if (f->n_calls == f->calls_capacity) {
        size_t capacity = 2 * f->n_calls + 4;
        struct terse_tool_call *larger = memory_array(capacity, sizeof *larger);
        if (!larger) return status_no_memory(error, capacity * sizeof *larger, "the tool calls of a reply");
        if (f->n_calls) memcpy(larger, f->calls, f->n_calls * sizeof *larger);
        memory_free(f->calls);
        f->calls = larger;
        f->calls_capacity = capacity;
    }
    struct terse_tool_call call = {copy(name, strlen(name)), copy(arguments, n_arguments)};
    if (!call.name || !call.arguments) {
        memory_free((char *)call.name);
        memory_free((char *)call.arguments);
        return status_no_memory(error, n_arguments, "the tool calls of a reply");
    }
    f->calls[f->n_calls++] = call;
    return TERSE_OK;
}

enum terse_status terse_call_finder_new(bool open_call, struct terse_call_finder **finder, struct terse_error *error) {
    *finder = memory_zeros(1, sizeof **finder);
    if (!*finder) return status_no_memory(error, sizeof **finder, "the tool calls of a reply");
    enum terse_status status = append(&(*finder)->held, CHAT_CALL_OPEN, open_call ? OPEN_SIZE : 0, error);
    if (!status) return TERSE_OK;
    terse_call_finder_free(*finder);
    *finder = NULL;
    return status;
}

void terse_call_finder_free(struct terse_call_finder *f) {
    if (!f) return;
    for (size_t i = 0; i < f->n_calls; i++) {
        memory_free((char *)f->calls[i].name);
        memory_free((char *)f->calls[i].arguments);
    }
    memory_free(f->calls);
    memory_free(f->held.at);
    memory_free(f->out.at);
    memory_free(f);
}

const struct terse_tool_call *terse_call_finder_calls(const struct terse_call_finder *f, size_t *n) {
    *n = f->n_calls;
    return f->calls;
}

/* ---- Searching ------------------------------------------------------------------------------------------------------------ */

/* Returns where `mark` begins in text[n], from `from` on; n: nowhere. */
static size_t find(const char *text, size_t n, size_t from, const char *mark, size_t size) {
    for (size_t at = from; at + size <= n; at++)
        if (memcmp(text + at, mark, size) == 0) return at;
    return n;
}

static size_t without_white_end(const char *text, size_t n) {
    while (n && strchr(" \t\r\n", text[n - 1]) && text[n - 1]) n--;
    return n;
}

/* Returns how much of text[n], in which no call begins, cannot be a part of what comes before one. */
static size_t certain_text(const char *text, size_t n) {
    size_t begun = n < OPEN_SIZE ? n : OPEN_SIZE - 1;
    while (begun && memcmp(text + n - begun, CHAT_CALL_OPEN, begun) != 0) begun--;
    return without_white_end(text, n - begun);
}

/* Reads what stands between the marks. *whole: it was a call, which is kept. */
static enum terse_status read_call(struct terse_call_finder *f, const char *text, size_t n, bool *whole,
                                   struct terse_error *error) {
    const char *end;
    *whole = false;
    n = without_white_end(text, n);
    cJSON *call = n ? cJSON_ParseWithLengthOpts(text, n, &end, false) : NULL;
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(call, "name");
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(call, "arguments");
    enum terse_status status = TERSE_OK;
    if (cJSON_IsObject(arguments) && cJSON_IsString(name) && name->valuestring[0] && end == text + n) {
        struct text_span value = json_member(text, n, "arguments");
        *whole = value.end > value.begin && text[value.begin] == '{';
        if (*whole) status = keep_call(f, name->valuestring, text + value.begin, value.end - value.begin, error);
    }
    cJSON_Delete(call);
    return status;
}

/* Drops the first n bytes of what is held. */
static void drop(struct terse_call_finder *f, size_t n) {
    f->held.size -= n;
    if (n && f->held.size) memmove(f->held.at, f->held.at + n, f->held.size);
    f->searched = 0;
}

static enum terse_status show(struct terse_call_finder *f, size_t n, struct terse_error *error) {
    enum terse_status status = append(&f->out, f->held.at, n, error);
    if (!status) drop(f, n);
    return status;
}

/* Takes one call, or text that is none, off what is held. *more: there may be another. `ended`: the reply goes no further. */
static enum terse_status take(struct terse_call_finder *f, bool ended, bool *more, struct terse_error *error) {
    const char *text = f->held.at;
    size_t n = f->held.size, open = find(text, n, 0, CHAT_CALL_OPEN, OPEN_SIZE), body = open + OPEN_SIZE;
    bool whole;
    *more = false;
    if (open == n) {
        size_t white = without_white_end(text, n);
        bool behind_call = f->n_calls && white == 0;
        if (ended && behind_call) drop(f, n);
        return show(f, ended ? f->held.size : certain_text(text, n), error);
    }
    size_t close = find(text, n, f->searched > body ? f->searched : body, CHAT_CALL_CLOSE, CLOSE_SIZE);
    if (close == n && !ended) {
        size_t before = without_white_end(text, open);
        enum terse_status status = show(f, before, error);
        f->searched = f->held.size < CLOSE_SIZE ? 0 : f->held.size - (CLOSE_SIZE - 1);
        return status;
    }
    enum terse_status status = read_call(f, text + body, close - body, &whole, error);
    if (status) return status;
    *more = true;
    if (!whole) return show(f, body, error);
    status = show(f, without_white_end(text, open), error);
    if (!status) drop(f, (close == n ? n : close + CLOSE_SIZE) - (n - f->held.size));
    return status;
}

static enum terse_status go_on(struct terse_call_finder *f, const char *text, size_t n_bytes, bool ended, const char **out,
                               size_t *n_out, struct terse_error *error) {
    bool more = true;
    *out = "";
    *n_out = f->out.size = 0;
    enum terse_status status = append(&f->held, text, n_bytes, error);
    while (!status && more) status = take(f, ended, &more, error);
    if (status || !f->out.size) return status;
    *out = f->out.at;
    *n_out = f->out.size;
    return TERSE_OK;
}

enum terse_status terse_call_finder_push(struct terse_call_finder *f, const char *text, size_t n_bytes, const char **out,
                                         size_t *n_out, struct terse_error *error) {
    return go_on(f, text, n_bytes, false, out, n_out, error);
}

enum terse_status terse_call_finder_finish(struct terse_call_finder *f, const char **out, size_t *n_out,
                                           struct terse_error *error) {
    return go_on(f, "", 0, true, out, n_out, error);
}
