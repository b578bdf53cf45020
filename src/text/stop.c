/* Finds stop strings in a stream of text: holds back an end that a stop string may begin with. */
#include "base/memory.h"
#include "base/status.h"

#include <string.h>

struct terse_stop {
    size_t n;
    char **strings;
    size_t *lengths;
    char *text;                   /* what is held back, and what was pushed last */
    size_t capacity, held, shown; /* bytes held back; bytes in front of them that were shown and are not needed any more */
    bool stopped;
};

enum terse_status terse_stop_new(const char *const *strings, size_t n, struct terse_stop **stop, struct terse_error *error) {
    *stop = NULL;
    for (size_t i = 0; i < n; i++)
        if (!strings[i] || !*strings[i]) return status_fail(error, TERSE_E_ARGUMENT, "stop string %zu is empty", i);
    struct terse_stop *s = memory_zeros(1, sizeof *s);
    if (!s) return status_no_memory(error, sizeof *s, "stop strings");
    s->strings = memory_zeros(n + 1, sizeof *s->strings);
    s->lengths = memory_zeros(n + 1, sizeof *s->lengths);
    size_t bytes = n * (sizeof *s->strings + sizeof *s->lengths);
    bool whole = s->strings && s->lengths;
    for (; whole && s->n < n; s->n++) {
        s->lengths[s->n] = strlen(strings[s->n]);
        bytes += s->lengths[s->n];
        if (!(s->strings[s->n] = memory_array(s->lengths[s->n], 1))) whole = false;
        if (whole) memcpy(s->strings[s->n], strings[s->n], s->lengths[s->n]);
    }
    if (!whole) {
        terse_stop_free(s);
        return status_no_memory(error, bytes, "stop strings");
    }
    *stop = s;
    return TERSE_OK;
}

void terse_stop_free(struct terse_stop *stop) {
    if (!stop) return;
    for (size_t i = 0; i < stop->n; i++) memory_free(stop->strings[i]);
    memory_free(stop->strings);
    memory_free(stop->lengths);
    memory_free(stop->text);
    memory_free(stop);
}

/* Returns where the first stop string begins in text[n]; n: there is none. */
static size_t find(const struct terse_stop *s, const char *text, size_t n) {
    for (size_t at = 0; at < n; at++)
        for (size_t i = 0; i < s->n; i++)
            if (s->lengths[i] <= n - at && memcmp(text + at, s->strings[i], s->lengths[i]) == 0) return at;
    return n;
}

/* Returns where the longest end of text[n] begins that a stop string begins with; n: there is none. */
static size_t find_beginning(const struct terse_stop *s, const char *text, size_t n) {
    for (size_t at = 0; at < n; at++)
        for (size_t i = 0; i < s->n; i++)
            if (s->lengths[i] > n - at && memcmp(text + at, s->strings[i], n - at) == 0) return at;
    return n;
}

static enum terse_status append(struct terse_stop *s, const char *text, size_t n, struct terse_error *error) {
    if (s->held + n > s->capacity) {
        size_t capacity = 2 * (s->held + n);
        char *larger = memory_array(capacity, 1);
        if (!larger) return status_no_memory(error, capacity, "text held back for stop strings");
        if (s->held) memcpy(larger, s->text + s->shown, s->held);
        memory_free(s->text);
        s->text = larger;
        s->capacity = capacity;
    } else if (s->held) {
        memmove(s->text, s->text + s->shown, s->held);
    }
    s->shown = 0;
    if (n) memcpy(s->text + s->held, text, n);
    s->held += n;
    return TERSE_OK;
}

enum terse_status terse_stop_push(struct terse_stop *s, const char *text, size_t n_bytes, const char **out, size_t *n_out,
                                  bool *stopped, struct terse_error *error) {
    *out = "";
    *n_out = 0;
    *stopped = s->stopped;
    if (s->stopped) return TERSE_OK;
    enum terse_status status = append(s, text, n_bytes, error);
    if (status) return status;
    size_t n = s->held, end = find(s, s->text, n);
    *stopped = s->stopped = end < n;
    if (!s->stopped) end = find_beginning(s, s->text, n);
    s->shown = end;
    s->held = s->stopped ? 0 : n - end;
    if (end) *out = s->text;
    *n_out = end;
    return TERSE_OK;
}

const char *terse_stop_finish(struct terse_stop *s, size_t *n_out) {
    const char *out = s->held ? s->text + s->shown : "";
    *n_out = s->held;
    s->held = s->shown = 0;
    s->stopped = false;
    return out;
}
