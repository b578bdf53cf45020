/* Declares the forms in which chat formats call tools, as rows: how a reply opens a call, and what stands between its parts. */
#ifndef TERSE_TEXT_TOOL_FORM_H
#define TERSE_TEXT_TOOL_FORM_H

#include <stdbool.h>
#include <stddef.h>

enum { TOOL_MARKS = 4 };

/* A space in these texts, but for those of `open`, is white space of any length, or none: models vary it. They end with other letters. */
struct call_form {
    const char *open[TOOL_MARKS]; /* any of these opens a reply's calls; NULL behind the last */
    bool opens_reply;             /* these are spaced, too, and open calls only where the reply begins */
    const char *before_name;      /* of the first call; "": the name follows at once */
    const char *before_arguments[TOOL_MARKS];
    const char *after_arguments; /* or "" */
    const char *before_another;  /* call; NULL: there is none without another opening */
    const char *close;           /* behind the last call; NULL: nothing */
    bool text_follows;           /* or another opening */
    const char *begun;           /* what a reply that shall be a call begins with */
    /* A reply that nothing held to this is read more freely: white space and the order of members do not matter. */
    const char *name_key,
        *arguments_key; /* of the JSON object that is a call; calls may be an array of these. NULL: the name stands in the text */
    const char *before_value; /* between that name and its arguments, as far as it is always there */
    const char *end;          /* behind a call; NULL: nothing */
};

struct tool_form {
    const char *mark; /* only templates with this text write tools */
    struct call_form call;
};

/* Hermes, Qwen 2.5 and Qwen 3: <tool_call>\n{"name": NAME, "arguments": ARGUMENTS}\n</tool_call> */
extern const struct tool_form tool_form_hermes;

#endif
