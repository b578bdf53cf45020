/* Declares the chat formats that terse knows, as rows of a table, and recognises which of them a model's own Jinja template is. */
#ifndef TERSE_TEXT_CHAT_FORMAT_H
#define TERSE_TEXT_CHAT_FORMAT_H

#include "text/tokenizer.h"
#include "text/tool_form.h"

/* A tool's results are written in a turn of the user, so that a format has no marks of their own. */
enum { CHAT_HIDDEN = 6 };

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_ROLES = CHAT_TOOL };

/* These bits say from whose messages white space is taken off at both ends. */
enum chat_trim {
    CHAT_TRIM_SYSTEM = 1,
    CHAT_TRIM_USER = 2,
    CHAT_TRIM_REPLY = 4,
    CHAT_TRIM_TURN = 8 /* the user's turn, with the system's text in it */
};

enum chat_system {
    CHAT_SYSTEM_OWN,        /* a message of its own, anywhere */
    CHAT_SYSTEM_FIRST_TURN, /* one at most, first; written within the user's first turn */
    CHAT_SYSTEM_LAST_TURN   /* the same, within the user's last turn */
};

/* This says which messages' thoughts a conversation has. */
enum chat_thoughts {
    CHAT_THOUGHTS_NONE,
    CHAT_THOUGHTS_SINCE_QUESTION, /* those behind the user's last message; a last message with calls has them even where there are none */
    CHAT_THOUGHTS_OF_CALLS,       /* those of messages with calls, unless one without follows */
    CHAT_THOUGHTS_OF_ALL_CALLS /* the same whatever follows, and also where there are none */
};

/* A chat format writes a conversation as [BOS] [preamble] messages [reply], and a message as open[role] content close[role]. */
struct chat_format {
    const char *name;
    const char *preamble;                       /* or NULL */
    const char *effort;                         /* of thinking, which stands behind the preamble; NULL: nothing */
    const char *preamble_rest, *preamble_close; /* behind that; what is told of tools stands between them. NULL: nothing */
    const char *system_begin; /* the system's message is always there, and begins with this; NULL: it is where there is one */
    const char *
        system_open; /* the preamble is its beginning; this stands between that and the text, where there is one. NULL: none of that */
    const char *open[CHAT_ROLES], *close[CHAT_ROLES];
    const char *reply; /* what the assistant's reply begins behind; "": the user's turn has opened it */
    enum chat_system system;
    unsigned trim;           /* enum chat_trim */
    bool alternates;         /* behind the system's message the user and the assistant alternate, the user first */
    bool bos_each_turn;      /* BOS stands before every message of the user, else before the first */
    bool eos_after_reply;    /* EOS stands behind what the assistant said */
    const char *thoughts;    /* of what the assistant said, what ends with the last such text is left out; or NULL */
    bool thoughts_and_line;  /* with the line ends behind it */
    bool tools_behind_lines; /* where the system says nothing, tools stand behind what separates them from its text all the same */
    const char *without;     /* the name of the same format whose replies do not think; or NULL */
    bool always_thinks;
    enum chat_thoughts kept;                      /* of the messages' */
    const char *thoughts_before, *thoughts_after; /* what stands around thoughts that are kept */
    const char *thoughts_open, *thoughts_close;   /* a reply's thoughts stand between these marks, where it begins; or NULL */
    const char
        *hidden[CHAT_HIDDEN]; /* marks of a reply that are no text; NULL behind the last. Thoughts may then open behind them, too */
    const struct tool_form *tools; /* NULL: the format has none */
};

/* Returns the i-th format, or NULL past the last. */
const struct chat_format *chat_format_at(size_t i);
/* Returns the format of that name, or NULL where there is none. */
const struct chat_format *chat_format_find(const char *name);

/* Finds the format of a model's own template and sets what such templates vary in it; returns false where terse does not know
 * it. */
bool chat_format_recognise(struct gguf_string template, struct chat_format *format);
/* Returns the bytes of a token of a reply, as tokenizer_bytes. Of control tokens those have bytes that the format tells thoughts, text and calls apart
 * by. */
const char *chat_format_bytes(const struct chat_format *format, const struct tokenizer *tokenizer, int32_t token, size_t *n_bytes);
/* Returns whether a template puts BOS before a conversation. */
bool chat_template_has_bos(struct gguf_string template);

#endif
