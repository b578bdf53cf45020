#include "text/reply_calls.h"

#include "base/memory.h"
#include "text/json_text.h"

#include <cjson/cJSON.h>
#include <string.h>

/* ---- Calls that were found */

static char *copy(const char *text, size_t n) {
    char *made = memory_array(n + 1, 1);
    if (made) memcpy(made, text, n), made[n] = '\0';
    return made;
}

static enum terse_status add(struct reply_calls *calls, const char *name, size_t n_name, const char *arguments, size_t n_arguments,
                             struct terse_error *error) {
    if (calls->n == calls->capacity) {
        size_t capacity = 2 * calls->n + 4;
        struct terse_tool_call *larger = memory_array(capacity, sizeof *larger);
        if (!larger) return status_no_memory(error, capacity * sizeof *larger, "the tool calls of a reply");
        if (calls->n) memcpy(larger, calls->call, calls->n * sizeof *larger);
        memory_free(calls->call);
        calls->call = larger;
        calls->capacity = capacity;
    }
    struct terse_tool_call call = {copy(name, n_name), copy(arguments, n_arguments)};
    if (!call.name || !call.arguments) {
        memory_free((char *)call.name);
        memory_free((char *)call.arguments);
        return status_no_memory(error, n_arguments, "the tool calls of a reply");
    }
    calls->call[calls->n++] = call;
    return TERSE_OK;
}

/* Takes back all calls but the first n. */
static void cut(struct reply_calls *calls, size_t n) {
    while (calls->n > n) {
        const struct terse_tool_call *last = &calls->call[--calls->n];
        memory_free((char *)last->name);
        memory_free((char *)last->arguments);
    }
}

void reply_calls_free(struct reply_calls *calls) {
    cut(calls, 0);
    memory_free(calls->call);
    *calls = (struct reply_calls){0};
}

/* ---- Reading */

static bool is_white(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static size_t behind_white(const char *text, size_t n, size_t at) {
    while (at < n && is_white(text[at])) at++;
    return at;
}

/* Reads one call, an object. *good: it is one. */
static enum terse_status read_object(struct reply_calls *calls, const struct call_form *form, const cJSON *object, const char *text,
                                     size_t n, bool *good, struct terse_error *error) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(object, form->name_key);
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(object, form->arguments_key);
    struct text_span value = {0, 0};
    *good = cJSON_IsString(name) && name->valuestring[0] && cJSON_IsObject(arguments);
    if (*good) value = json_member(text, n, form->arguments_key);
    *good = *good && value.end > value.begin && text[value.begin] == '{';
    return !*good ? TERSE_OK
                  : add(calls, name->valuestring, strlen(name->valuestring), text + value.begin, value.end - value.begin, error);
}

/* Reads a value that is well-formed: a call, or an array of calls. */
static enum terse_status read_value(struct reply_calls *calls, const struct call_form *form, const cJSON *value, const char *text,
                                    size_t n, bool *good, struct terse_error *error) {
    const cJSON *one;
    struct text_span item = {0, 0};
    enum terse_status status = TERSE_OK;
    *good = true;
    if (!cJSON_IsArray(value)) return read_object(calls, form, value, text, n, good, error);
    cJSON_ArrayForEach(one, value) {
        json_next_item(text, n, &item);
        if (!status && *good) status = read_object(calls, form, one, text + item.begin, item.end - item.begin, good, error);
    }
    return status;
}

/* Compares text[n] behind *at with a text of a form, in which a space is white space of any length. *at: behind it. */
static enum reply_calls_found match(const char *expected, const char *text, size_t n, size_t *at) {
    size_t to = *at;
    for (const char *c = expected; *c; c++) {
        if (*c == ' ') {
            to = behind_white(text, n, to);
            continue;
        }
        if (to == n) return CALLS_UNFINISHED;
        if (text[to++] != *c) return CALLS_BROKEN;
    }
    *at = to;
    return CALLS_WHOLE;
}

/* Returns where before_value, or one of before_arguments, ends that begins at text[at]. */
static enum reply_calls_found match_value(const struct call_form *form, const char *text, size_t n, size_t *at) {
    bool unfinished = false;
    if (form->before_value) return match(form->before_value, text, n, at);
    for (size_t i = 0; i < TOOL_MARKS && form->before_arguments[i]; i++) {
        enum reply_calls_found found = match(form->before_arguments[i], text, n, at);
        if (found == CALLS_WHOLE) return found;
        unfinished |= found == CALLS_UNFINISHED;
    }
    return unfinished ? CALLS_UNFINISHED : CALLS_BROKEN;
}

/* Reads the name before arguments that stand alone, text[n_name] behind *at. *at: where those begin. */
static enum reply_calls_found read_name(const struct call_form *form, const char *text, size_t n, size_t *n_name, size_t *at) {
    size_t begin = *at;
    *n_name = 0;
    while (begin + *n_name < n && !is_white(text[begin + *n_name]) && text[begin + *n_name] != '<') ++*n_name;
    if (begin + *n_name == n) return CALLS_UNFINISHED;
    for (*at = begin + *n_name; *at < n; ++*at) {
        enum reply_calls_found found = match_value(form, text, n, at);
        if (found == CALLS_WHOLE) return *n_name ? CALLS_WHOLE : CALLS_BROKEN;
        if (!form->before_value) return found; /* it follows the name at once */
    }
    return CALLS_UNFINISHED;
}

/* Reads a call whose name and arguments stand alone, text[n] behind *at. *at: behind it. */
static enum terse_status read_named(struct reply_calls *calls, const struct call_form *form, const char *text, size_t n, bool ended,
                                    size_t *at, enum reply_calls_found *found, struct terse_error *error) {
    size_t n_name, name = *at, end;
    if ((*found = read_name(form, text, n, &n_name, at)) != CALLS_WHOLE) return TERSE_OK;
    size_t begin = behind_white(text, n, *at);
    bool good = begin < n && text[begin] == '{';
    *found = begin < n && !good ? CALLS_BROKEN : CALLS_UNFINISHED;
    if (!good || !json_behind(text, n, begin, &end)) return TERSE_OK;
    *at = end;
    *found = match(form->after_arguments, text, n, at);
    if (*found == CALLS_UNFINISHED && ended && behind_white(text, n, end) == n) *found = CALLS_WHOLE;
    if (*found != CALLS_WHOLE) return TERSE_OK;
    cJSON *value = cJSON_ParseWithLength(text + begin, end - begin);
    if (!value) *found = CALLS_BROKEN;
    enum terse_status status = value ? add(calls, text + name, n_name, text + begin, end - begin, error) : TERSE_OK;
    cJSON_Delete(value);
    return status;
}

/* Reads what stands behind a call, text[n] behind *at. *another: a call follows. *at: behind it. */
static enum reply_calls_found read_behind(const struct call_form *form, const char *text, size_t n, bool ended, size_t *at,
                                          bool *another) {
    enum reply_calls_found next = form->before_another ? match(form->before_another, text, n, at) : CALLS_BROKEN;
    *another = next == CALLS_WHOLE;
    if (*another) return CALLS_WHOLE;
    enum reply_calls_found closed = form->close ? match(form->close, text, n, at) : CALLS_BROKEN;
    bool waits = !ended && closed != CALLS_WHOLE && (next == CALLS_UNFINISHED || closed == CALLS_UNFINISHED);
    return waits ? CALLS_UNFINISHED : CALLS_WHOLE;
}

/* Reads all such calls at the beginning of text[n]. *size: behind them. */
static enum terse_status read_all_named(struct reply_calls *calls, const struct call_form *form, const char *text, size_t n,
                                        bool ended, enum reply_calls_found *found, size_t *size, struct terse_error *error) {
    enum terse_status status = TERSE_OK;
    size_t before = calls->n;
    bool another = true;
    *size = 0;
    *found = match(form->before_name, text, n, size);
    while (!status && *found == CALLS_WHOLE && another) {
        status = read_named(calls, form, text, n, ended, size, found, error);
        if (!status && *found == CALLS_WHOLE) *found = read_behind(form, text, n, ended, size, &another);
    }
    if (*found == CALLS_UNFINISHED && ended) *found = CALLS_BROKEN;
    if (status || *found != CALLS_WHOLE) cut(calls, before);
    return status;
}

/* Finds what ends a call behind text[*at]. */
static enum reply_calls_found read_end(const struct call_form *form, const char *text, size_t n, bool ended, size_t *at) {
    size_t begin = behind_white(text, n, *at), size = form->end ? strlen(form->end) : 0, there = n - begin;
    if (!size) return CALLS_WHOLE;
    if (there >= size) {
        *at = begin + size;
        return memcmp(text + begin, form->end, size) == 0 ? CALLS_WHOLE : CALLS_BROKEN;
    }
    if (memcmp(text + begin, form->end, there) != 0) return CALLS_BROKEN;
    *at = n;
    return !ended ? CALLS_UNFINISHED : there ? CALLS_BROKEN : CALLS_WHOLE;
}

enum terse_status reply_calls_read(struct reply_calls *calls, const struct call_form *form, const char *text, size_t n, bool ended,
                                   enum reply_calls_found *found, size_t *size, struct terse_error *error) {
    size_t begin = behind_white(text, n, 0), before = calls->n;
    if (!form->name_key) return read_all_named(calls, form, text, n, ended, found, size, error);
    *found = ended ? CALLS_BROKEN : CALLS_UNFINISHED;
    if (begin == n) return TERSE_OK;
    bool good = text[begin] == '{' || text[begin] == '[';
    if (!good) *found = CALLS_BROKEN;
    if (!good || !json_behind(text, n, begin, size)) return TERSE_OK;
    size_t length = *size - begin;
    if ((*found = read_end(form, text, n, ended, size)) != CALLS_WHOLE) return TERSE_OK;
    cJSON *value = cJSON_ParseWithLength(text + begin, length);
    enum terse_status status = TERSE_OK;
    if (value)
        status = read_value(calls, form, value, text + begin, length, &good, error);
    else
        good = false;
    cJSON_Delete(value);
    if (status || !good) cut(calls, before);
    if (!good) *found = CALLS_BROKEN;
    return status;
}
