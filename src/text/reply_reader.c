/* Takes a reply apart as it is written: what it thinks, what it says, what it calls. */
#include "base/memory.h"
#include "base/status.h"
#include "text/chat_reply.h"
#include "text/reply_calls.h"
#include "text/text_buffer.h"

#include <string.h>

struct terse_reply_reader {
    struct chat_format format;
    bool finds_calls;
    bool thinking;
    bool fresh;              /* nothing but white space was there so far: thoughts may open, and calls that only open replies */
    bool skip_white;         /* behind thoughts, and where they begin */
    struct text_buffer held; /* what may still be a part of something else */
    struct text_buffer text, thoughts; /* what the last push has shown */
    struct reply_calls calls;
};

/* ---- Marks */

enum mark { NO_MARK, PART_OF_MARK, THOUGHTS, CALL, HIDDEN };

/* Compares the beginning of text[n] with a mark. Of several that are whole the longest counts, and one that may become longer before all. */
static void compare(const char *mark, enum mark kind, const char *text, size_t n, enum mark *found, size_t *size) {
    size_t length = mark ? strlen(mark) : 0, there = length < n ? length : n;
    if (!length || memcmp(text, mark, there) != 0) return;
    if (there < length)
        *found = PART_OF_MARK;
    else if (*found != PART_OF_MARK && (*found == NO_MARK || length > *size))
        *found = kind, *size = length;
}

/* Returns the mark at the beginning of text[n]. `fresh`: nothing is before it. */
static enum mark mark_at(const struct terse_reply_reader *r, const char *text, size_t n, bool fresh, size_t *size) {
    const struct chat_format *f = &r->format;
    enum mark found = NO_MARK;
    *size = 0;
    if (fresh || f->hidden[0]) compare(f->thoughts_open, THOUGHTS, text, n, &found, size);
    for (size_t i = 0; i < CHAT_HIDDEN && f->hidden[i]; i++) compare(f->hidden[i], HIDDEN, text, n, &found, size);
    if (!r->finds_calls) return found;
    const struct call_form *call = &f->tools->call;
    if (call->opens_reply && fresh && n && text[0] == '{') return CALL;
    for (size_t i = 0; i < TOOL_MARKS && call->open[i] && !call->opens_reply; i++)
        compare(call->open[i], CALL, text, n, &found, size);
    return found;
}

/* ---- Text */

static size_t without_white_end(const char *text, size_t n) {
    while (n && strchr(" \t\r\n", text[n - 1]) && text[n - 1]) n--;
    return n;
}

static size_t white_begin(const char *text, size_t n) {
    size_t at = 0;
    while (at < n && text[at] && strchr(" \t\r\n", text[at])) at++;
    return at;
}

/* Shows the first n bytes of what is held. */
static enum terse_status show(struct terse_reply_reader *r, size_t n, struct terse_error *error) {
    enum terse_status status = text_buffer_add(r->thinking ? &r->thoughts : &r->text, r->held.at, n, error);
    if (status) return status;
    if (n) r->fresh = r->skip_white = false;
    text_buffer_drop(&r->held, n);
    return TERSE_OK;
}

/* Takes thoughts off what is held, up to their end. */
static enum terse_status take_thoughts(struct terse_reply_reader *r, bool ended, bool *more, struct terse_error *error) {
    const char *text = r->held.at, *close = r->format.thoughts_close;
    size_t n = r->held.size, length = strlen(close), at = 0;
    while (at < n && memcmp(text + at, close, length < n - at ? length : n - at) != 0) at++;
    bool closed = at + length <= n;
    enum terse_status status = show(r, ended && !closed ? n : without_white_end(text, at), error);
    *more = closed;
    if (status || !closed) return status;
    text_buffer_drop(&r->held, white_begin(r->held.at, r->held.size) + length);
    r->thinking = false;
    r->skip_white = true;
    return TERSE_OK;
}

/* Takes a call off what is held, in which its mark of `size` bytes begins at `at`. */
static enum terse_status take_call(struct terse_reply_reader *r, size_t at, size_t size, bool ended, bool *more,
                                   struct terse_error *error) {
    enum reply_calls_found found;
    size_t body = at + size, n_call;
    enum terse_status status =
        reply_calls_read(&r->calls, &r->format.tools->call, r->held.at + body, r->held.size - body, ended, &found, &n_call, error);
    if (status) return status;
    *more = found != CALLS_UNFINISHED;
    if (found == CALLS_BROKEN) return show(r, size ? body : body + 1, error); /* the mark is text */
    size_t before = without_white_end(r->held.at, at);
    status = show(r, before, error);
    if (!status && found == CALLS_WHOLE) text_buffer_drop(&r->held, body - before + n_call);
    if (found == CALLS_WHOLE) r->fresh = false;
    return status;
}

/* Returns how much of text[n], in which no mark is, is certainly text: white space at its end may be before a call, or thoughts. */
static size_t certain_text(const struct terse_reply_reader *r, const char *text, size_t n) {
    return r->finds_calls || (r->fresh && r->format.thoughts_open) ? without_white_end(text, n) : n;
}

/* Takes text off what is held, up to the first mark. *more: something is behind it. `ended`: the reply goes no further. */
static enum terse_status take_text(struct terse_reply_reader *r, bool ended, bool *more, struct terse_error *error) {
    const char *text = r->held.at;
    size_t n = r->held.size, at = 0, size = 0;
    enum mark mark = NO_MARK;
    *more = false;
    for (; at < n; at++) {
        bool fresh = r->fresh && white_begin(text, at) == at;
        mark = mark_at(r, text + at, n - at, fresh, &size);
        if (mark != NO_MARK && !(mark == PART_OF_MARK && ended)) break;
    }
    if (at == n || mark == PART_OF_MARK) {
        bool behind_call = ended && r->calls.n && white_begin(text, n) == n;
        if (behind_call) text_buffer_drop(&r->held, n);
        return show(r, ended ? r->held.size : certain_text(r, text, at), error);
    }
    if (mark == CALL) return take_call(r, at, size, ended, more, error);
    bool only_white = r->fresh && white_begin(text, at) == at;
    enum terse_status status = only_white ? TERSE_OK : show(r, at, error);
    if (status) return status;
    text_buffer_drop(&r->held, only_white ? at + size : size);
    *more = true;
    r->thinking = mark == THOUGHTS;
    r->skip_white = r->thinking;
    return TERSE_OK;
}

static enum terse_status go_on(struct terse_reply_reader *r, const char *text, size_t n_bytes, bool ended,
                               struct terse_reply_piece *piece, struct terse_error *error) {
    bool more = true;
    r->text.size = r->thoughts.size = 0;
    *piece = (struct terse_reply_piece){"", 0, "", 0};
    enum terse_status status = text_buffer_add(&r->held, text, n_bytes, error);
    while (!status && more) {
        if (r->skip_white) text_buffer_drop(&r->held, white_begin(r->held.at, r->held.size));
        more = false;
        if (r->held.size) status = r->thinking ? take_thoughts(r, ended, &more, error) : take_text(r, ended, &more, error);
    }
    if (r->text.size) piece->text = r->text.at, piece->n_text = r->text.size;
    if (r->thoughts.size) piece->thoughts = r->thoughts.at, piece->n_thoughts = r->thoughts.size;
    return status;
}

enum terse_status terse_reply_reader_push(struct terse_reply_reader *r, const char *text, size_t n_bytes,
                                          struct terse_reply_piece *piece, struct terse_error *error) {
    return go_on(r, text, n_bytes, false, piece, error);
}

enum terse_status terse_reply_reader_finish(struct terse_reply_reader *r, struct terse_reply_piece *piece,
                                            struct terse_error *error) {
    return go_on(r, "", 0, true, piece, error);
}

const struct terse_tool_call *terse_reply_reader_calls(const struct terse_reply_reader *r, size_t *n) {
    *n = r->calls.n;
    return r->calls.call;
}

/* ---- Life */

/* Begins where the conversation ends: in thoughts, behind them, or within a call. */
static enum terse_status begin(struct terse_reply_reader *r, bool open_call, struct terse_error *error) {
    const struct chat_format *f = &r->format;
    size_t n = without_white_end(f->reply, strlen(f->reply)), n_open = f->thoughts_open ? strlen(f->thoughts_open) : 0;
    bool over = f->thoughts_close && strstr(f->reply, f->thoughts_close);
    r->thinking = n_open && n >= n_open && memcmp(f->reply + n - n_open, f->thoughts_open, n_open) == 0;
    r->fresh = !over || r->finds_calls;
    r->skip_white = r->thinking || over;
    if (over) r->format.thoughts_open = NULL;
    if (open_call) r->thinking = false;
    enum terse_status status = TERSE_OK;
    if (f->hidden[0]) status = text_buffer_add(&r->held, f->reply, strlen(f->reply), error);
    if (!status && open_call) status = text_buffer_add(&r->held, f->tools->call.begun, strlen(f->tools->call.begun), error);
    return status;
}

enum terse_status reply_reader_new(const struct chat_format *format, bool finds_calls, bool open_call,
                                   struct terse_reply_reader **reader, struct terse_error *error) {
    *reader = memory_zeros(1, sizeof **reader);
    if (!*reader) return status_no_memory(error, sizeof **reader, "the reader of a reply");
    (*reader)->format = *format;
    (*reader)->finds_calls = finds_calls;
    enum terse_status status = begin(*reader, open_call, error);
    if (!status) return TERSE_OK;
    terse_reply_reader_free(*reader);
    *reader = NULL;
    return status;
}

void terse_reply_reader_free(struct terse_reply_reader *r) {
    if (!r) return;
    reply_calls_free(&r->calls);
    text_buffer_free(&r->held);
    text_buffer_free(&r->text);
    text_buffer_free(&r->thoughts);
    memory_free(r);
}
