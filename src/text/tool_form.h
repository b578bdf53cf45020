/* Declares the forms of tools in chat formats, as rows: how a conversation tells of tools, what it writes of calls and of their results, and how a
 * reply calls. */
#ifndef TERSE_TEXT_TOOL_FORM_H
#define TERSE_TEXT_TOOL_FORM_H

#include "text/text_buffer.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

enum { TOOL_MARKS = 4 };

/* How a reply calls. In these texts, but for those of `open`, a space is white space of any length, or none, and a 0 any number of digits: models
 * vary both. They end with other letters. */
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
    const char
        *before_value; /* between that name and its arguments, as far as it is always there; NULL: one of before_arguments is */
    const char *end;   /* behind a call; NULL: nothing */
};

enum tool_place {
    TOOLS_BEHIND_SYSTEM,   /* in the system's message, behind its text */
    TOOLS_IN_PREAMBLE,     /* of the format */
    TOOLS_IN_FIRST_TURN,   /* of the user, before its text */
    TOOLS_BEFORE_LAST_TURN /* of the user */
};

struct tool_form {
    const char *mark; /* only templates with this text write tools */
    struct call_form call;
    /* These say how a conversation tells of tools. */
    enum tool_place place;
    const char *before, *between, *after; /* tools */
    /* Adds one tool, json[n], which `parsed` is. */
    enum terse_status (*declare)(struct text_buffer *to, const char *json, size_t n, const cJSON *parsed,
                                 struct terse_error *error);
    const char *before_system; /* text, in its message; or NULL */
    const char *system;        /* its text where no message is the system's; NULL: none */
    const char *behind_system; /* between its text and tools */
    bool behind_nothing;       /* the same where no message is the system's */
    const char *preamble;      /* stands behind that of the format; or NULL */
    const char *bare_open;     /* opens the system's message where the system says nothing; NULL: as usual, with an empty text */
    const char *system_close;  /* NULL: the format's */
    const char *before_reply;  /* stands behind all messages; or NULL */
    /* These say how it writes a message with calls. */
    const char *turn;                       /* opens it; NULL: the format's, with what the message says behind it */
    bool only_calls;                        /* what the message says is left out */
    bool one_call;                          /* of a message, no more */
    const char *calls_open;                 /* NULL: call_between, behind what the message says */
    const char *call_open, *call_arguments; /* before a name, before its arguments */
    const char *call_name;   /* between the call's number in the conversation, from 0, and its name; NULL: the name alone */
    bool arguments_indented; /* by 4 within 8 */
    const char *call_id;     /* before the call's nine letters, which '"' follows; NULL: they are left out */
    const char *call_close, *call_between, *calls_close;
    const char *turn_close; /* NULL: the format's */
    /* These say how it writes a result. */
    const char *results_open, *result_between, *results_close; /* around results side by side; NULL: nothing */
    const char *result_open, *result_name;                     /* result_name: behind the function's name; NULL: that is left out */
    const char *result_number; /* behind the call's number in the conversation; NULL: that is left out */
    bool result_quoted;        /* as a JSON string */
    bool result_trimmed;       /* of white space at both ends */
    const char *result_id;     /* before the call's nine letters, which '"' follows; NULL: they are left out */
    const char *result_close;
    bool answers_open; /* what the assistant says or calls behind results follows them at once */
};

/* Hermes, Qwen 2.5 and Qwen 3: <tool_call>\n{"name": NAME, "arguments": ARGUMENTS}\n</tool_call> */
extern const struct tool_form tool_form_hermes;
/* Llama 3.1 to 3.3: {"name": NAME, "parameters": ARGUMENTS}, one call that is the whole reply. */
extern const struct tool_form tool_form_llama;
/* Mistral 7B v0.3 and its like: [TOOL_CALLS] [{"name": NAME, "arguments": ARGUMENTS}, ...]; with the vocabulary Tekken without spaces. */
extern const struct tool_form tool_form_mistral, tool_form_mistral_tekken;
/* gpt-oss: <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS */
extern const struct tool_form tool_form_harmony;
/* Phi 4 mini, as llama.cpp's template for it has it: <|tool_call|>{"name": NAME, "arguments": ARGUMENTS}<|/tool_call|> */
extern const struct tool_form tool_form_phi;
/* Command R and R+: Action: and a list of {"tool_name": NAME, "parameters": ARGUMENTS} as a block of JSON. */
extern const struct tool_form tool_form_command;
/* Command R7B: <|START_ACTION|>[{"tool_call_id": "0", "tool_name": NAME, "parameters": ARGUMENTS}, ...]<|END_ACTION|> */
extern const struct tool_form tool_form_command_r7b;
/* DeepSeek V3-0324 and R1-0528, whose arguments are a block of JSON, and V3.1, where they follow the name at once. */
extern const struct tool_form tool_form_deepseek, tool_form_deepseek_v31;

#endif
