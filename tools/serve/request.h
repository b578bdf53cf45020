/* Turns a request's JSON into prompts of tokens and settings, checked. Requests of all forms of the API become the same struct here. */
#ifndef TERSE_SERVE_REQUEST_H
#define TERSE_SERVE_REQUEST_H

#include "json.h"
#include "options.h"

#include <terse.h>

enum api {
    API_CHAT,       /* OpenAI's /v1/chat/completions */
    API_COMPLETION, /* OpenAI's /v1/completions */
    API_LLAMA,      /* llama.cpp's /completion */
    API_INFILL,     /* llama.cpp's /infill, whose replies are those of /completion */
    API_RESPONSES   /* OpenAI's /v1/responses, whose requests are read as chats */
};

/* Returns whether requests and replies have the form of llama.cpp's /completion. */
static inline bool api_is_llama(enum api api) { return api == API_LLAMA || api == API_INFILL; }
/* Returns whether the prompt is a chat, so that a reply may have thoughts and tool calls beside its text. */
static inline bool api_is_chat(enum api api) { return api == API_CHAT || api == API_RESPONSES; }

enum { REQUEST_LOGPROBS = 20, REQUEST_PROMPTS = 1024, REQUEST_STOPS = TEXTS_MOST }; /* at most */

struct prompt {
    int32_t *tokens;
    size_t n;
    size_t turn;  /* the first of them that the conversation's next turn has, too, before any of its reply; n: all */
    size_t added; /* the first of them that the text itself did not have: BOS */
};

struct request {
    enum api api;
    bool stream, include_usage, echo, use_prefix, require_json;
    bool progress, timings_per_token; /* a stream tells how far its prompt is read; has timings with each token */
    int64_t n, best_of;               /* replies to each prompt; written to it, of which those n are the best */
    int64_t max_tokens;               /* of a reply; -1: until the context is full */
    int64_t logprobs;                 /* likeliest tokens beside each token; -1: no log probabilities at all */
    struct terse_sampling sampling;
    struct prompt *prompts;
    size_t n_prompts;
    char **stops;
    size_t n_stops;
    char *schema;                    /* of a reply that is JSON; NULL: any object */
    char *shown;                     /* of API_RESPONSES: what replies repeat of the request, as JSON */
    char *tools;                     /* that the prompt tells of, as JSON; NULL: none */
    char *callable;                  /* those that the reply may call; NULL: `tools` */
    enum terse_thinking thinking;    /* of a chat's reply */
    const char *effort;              /* of it, a literal; NULL: the format's */
    bool open_call;                  /* the prompt ends where a tool call is to follow, which is then the whole reply */
    bool one_call;                   /* the reply ends behind its first tool call */
    struct terse_logit_bias *biases; /* sampling's */
};

/* Requests are checked against these limits and defaults. Many threads use them at once, so they do not change. */
struct request_limits {
    const struct terse_model *model;
    uint32_t vocabulary;
    uint32_t context;          /* tokens of a prompt and its reply */
    uint32_t slots;            /* replies at the same time */
    const char *chat_format;   /* terse_chat_render's, or NULL */
    const char *chat_template; /* a template's text in the place of the model's own, or NULL */
    /* These are defaults for requests that leave them out. */
    const double *temperature; /* NULL: the library's */
    uint32_t reply_tokens;     /* 0: the API's own */
};

/* Reads a body. Returns false, with *error, where something in it is wrong, or a field is none of those in fields.h; nothing is
 * then left to free. */
bool request_read(const struct request_limits *limits, enum api api, const char *body, size_t n, struct request *request,
                  struct api_error *error);
/* Reads a body of API_CHAT in the same way, and renders the prompt as *text, which is released by terse_string_free. */
bool request_render(const struct request_limits *limits, const char *body, size_t n, char **text, struct api_error *error);
void request_free(struct request *request);
/* Returns the options of a chat's conversation; terse_chat_options' `tool_calls` are the messages'. */
struct terse_chat_options request_chat_options(const struct request_limits *limits, const struct request *request);

/* Returns text[n] as tokens, which are released by free. `special`: as TERSE_TOKENIZE_PARSE_SPECIAL. */
bool request_tokenize(const struct terse_model *model, const char *text, size_t n, bool add_special, bool special, int32_t **tokens,
                      size_t *n_tokens, struct api_error *error);

#endif
