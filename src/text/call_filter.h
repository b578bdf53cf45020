/* Reads a reply to a conversation with tools byte by byte and tells whether it can still be continued to one whose calls are of these tools, with
 * arguments of the schemas of their parameters. Text is free, and so are thoughts; where the reply opens a call, its name comes first, then its
 * arguments. It is for sampling, like json_filter.h, which it holds arguments to. */
#ifndef TERSE_TEXT_CALL_FILTER_H
#define TERSE_TEXT_CALL_FILTER_H

#include "text/chat_format.h"
#include "text/json_filter.h"

#include <cjson/cJSON.h>

struct call_filter {
    struct chat_format format;
    const struct call_form *form;   /* the format's */
    char **name;                    /* [n] in order of their bytes */
    struct json_schema **arguments; /* [n] */
    uint32_t n, others;             /* others: owners beside the first */
    bool begun;                     /* the reply begins within a call, which is then all of it */
};

/* Makes a filter of tools, an array that chat_tools_parse has checked, for replies in this format, which has tools and need not outlive the call.
 * `begun`: the reply begins behind the format's call.begun; what of a schema is not understood is then refused (TERSE_E_ARGUMENT), else left out. */
enum terse_status call_filter_new(const struct chat_format *format, const cJSON *tools, bool begun, struct call_filter **filter,
                                  struct terse_error *error);
/* Adds one owner, who frees it too; not thread-safe. */
void call_filter_share(struct call_filter *filter);
void call_filter_free(struct call_filter *filter);

/* A state is plain data. Of `json` only the ways in use are set. */
struct call_state {
    uint8_t phase, n_newest, spaces;
    uint8_t at[TOOL_MARKS];      /* bytes of each text that may come next which are there; NOT_AT: another text is */
    uint32_t low, high, name_at; /* the tools whose names begin with name_at bytes that are there */
    char newest[64];             /* text, in which a mark may have begun */
    struct json_state json;
};

void call_begin(const struct call_filter *filter, struct call_state *state);
/* Takes text[n]. Returns false where it does not fit a call that is open; the rest is then read as text. */
bool call_push(const struct call_filter *filter, struct call_state *state, const char *text, size_t n);
/* Returns whether call_push would return true. */
bool call_allows(const struct call_filter *filter, const struct call_state *state, const char *text, size_t n);
/* Returns whether any text is allowed that does not hold a whole mark and more: no call is open and no mark has begun. */
bool call_is_free(const struct call_filter *filter, const struct call_state *state);
/* Returns whether the state is in text, thoughts included. */
bool call_in_text(const struct call_state *state);
/* Returns whether the reply may end here. */
bool call_may_end(const struct call_filter *filter, const struct call_state *state);

#endif
