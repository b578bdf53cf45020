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

/* Reads the name before arguments that stand alone. *at: behind it. */
static enum reply_calls_found read_name(const struct call_form *form, const char *text, size_t n, bool ended, size_t *n_name,
                                        size_t *at) {
    size_t mark = strlen(form->before_value);
    *n_name = 0;
    while (*n_name < n && !is_white(text[*n_name]) && text[*n_name] != '<') ++*n_name;
    for (*at = *n_name; *at + mark <= n; ++*at) {
        if (memcmp(text + *at, form->before_value, mark) != 0) continue;
        *at += mark;
        return *n_name ? CALLS_WHOLE : CALLS_BROKEN;
    }
    return ended ? CALLS_BROKEN : CALLS_UNFINISHED;
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
    size_t n_name = 0, begin = 0, before = calls->n;
    *found = form->name_key ? CALLS_WHOLE : read_name(form, text, n, ended, &n_name, &begin);
    if (*found != CALLS_WHOLE) return TERSE_OK;
    begin = behind_white(text, n, begin);
    *found = ended ? CALLS_BROKEN : CALLS_UNFINISHED;
    if (begin == n) return TERSE_OK;
    bool good = text[begin] == '{' || (form->name_key && text[begin] == '[');
    if (!good) *found = CALLS_BROKEN;
    if (!good || !json_behind(text, n, begin, size)) return TERSE_OK;
    size_t length = *size - begin;
    if ((*found = read_end(form, text, n, ended, size)) != CALLS_WHOLE) return TERSE_OK;
    cJSON *value = cJSON_ParseWithLength(text + begin, length);
    enum terse_status status = TERSE_OK;
    if (!value)
        good = false;
    else if (form->name_key)
        status = read_value(calls, form, value, text + begin, length, &good, error);
    else
        status = add(calls, text, n_name, text + begin, length, error);
    cJSON_Delete(value);
    if (status || !good) cut(calls, before);
    if (!good) *found = CALLS_BROKEN;
    return status;
}
