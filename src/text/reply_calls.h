/* Reads the tool calls in a reply's text, behind the mark that opens them. */
#ifndef TERSE_TEXT_REPLY_CALLS_H
#define TERSE_TEXT_REPLY_CALLS_H

#include "base/status.h"
#include "text/tool_form.h"

struct reply_calls {
    struct terse_tool_call *call; /* [n], of `capacity` */
    size_t n, capacity;
};

enum reply_calls_found { CALLS_UNFINISHED, CALLS_BROKEN, CALLS_WHOLE };

/* Reads text[n] behind a mark. `ended`: the reply goes no further, which also ends calls. *found: CALLS_UNFINISHED, never where it has ended: what
 * follows will tell; CALLS_BROKEN: this is no call; CALLS_WHOLE: *size bytes are, and were added to *calls. */
enum terse_status reply_calls_read(struct reply_calls *calls, const struct call_form *form, const char *text, size_t n, bool ended,
                                   enum reply_calls_found *found, size_t *size, struct terse_error *error);
void reply_calls_free(struct reply_calls *calls);

#endif
