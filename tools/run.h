/* A run is one use of a model: its options, its session, and what a completion and a chat share, reading and writing text. */
#ifndef TERSE_TOOLS_RUN_H
#define TERSE_TOOLS_RUN_H

#include "setup.h"

struct run {
    struct setup setup;
    const char *file, *prompt, *chat_template, *template_file, *state, *save_state;
    char *template_text;               /* of --chat-template-file, or NULL */
    const char *model;                 /* named without -m; NULL: it was not */
    const char *in_prefix, *in_suffix; /* NULL: none; with either, messages are read between them and not in a chat format */
    const char *json_schema;           /* of a reply; NULL: any text */
    bool sampling_given;               /* by any option: else a saved session goes on sampling as it did */
    char *text;                        /* of the file, or NULL */
    size_t n_text;
    bool chat, conversation, no_conversation, escape, ignore_end, color;
    const char *system;
    struct texts reverse; /* a reply ends before any of them */
    struct texts biases;  /* "15043-1" */
    int64_t n_predict, top_k, repeat_last, seed;
    double temperature, typical_p, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;

    struct terse_session_options options;
    struct terse_sampling sampling;
    struct terse_logit_bias *bias_list; /* of --logit-bias, and tokens that end a text, of --ignore-eos */
    struct terse_session *session;
    struct terse_counters earlier; /* of sessions that another one took the place of */
    struct terse_detokenizer *detokenizer;
    struct terse_stop *stop;           /* NULL: nothing but the model ends a reply */
    bool dims;                         /* thoughts, in a chat at a terminal: else a reply is shown as it is written */
    struct terse_reply_reader *reader; /* of the reply being written; NULL where nothing is dimmed */
    bool dimmed;                       /* the terminal is, since thoughts have begun */
    int32_t end;                       /* the token that the model ended its text with, which the session has not read; -1: none */
    uint64_t written;                  /* tokens by the last run_generate */
    bool replied;                      /* the session holds messages: the next one goes behind them */
    bool full;                         /* the context: nothing more is read or written */
};

/* Opens a session of run->options: the one saved at `state`, or a new one where that is NULL. */
enum terse_status run_open_session(struct run *run, const char *state, struct terse_session **session, struct terse_error *error);
/* Puts another session in the place of the run's, which is freed and counted. */
void run_replace_session(struct run *run, struct terse_session *session);

/* Returns the options of the run's chat format. */
struct terse_chat_options run_chat_options(const struct run *run);

/* Joins the text of -f, an empty line and the prompt to *input, which is released by free; either may be missing. Returns an exit status, as
 * all that follow. */
int run_join_input(const struct run *run, const char *prompt, char **input);
/* Refuses a first prompt that is longer than the context, before anything is learned for it, and notes how long its text can become. */
int run_check_length(struct run *run);
/* Reads text[n_bytes] into the session. `flags` as terse_tokenize. */
int run_read_text(struct run *run, const char *text, size_t n_bytes, unsigned flags);
/* Does the same with a user message in the model's chat format, or between --in-prefix and --in-suffix: the first one of a chat,
 * behind -sys and -f, or a later one. A later one that does not fit the context is no failure: it gives a remark, and sets
 * run->full. */
int run_read_turn(struct run *run, const char *message);
/* Writes tokens to stdout until the text ends, -n is reached, or the context is full. */
int run_generate(struct run *run);
/* Writes "16.51 MiB, 2.39 bits per value (terse-2)" into buffer[capacity], without the bits when there are few tokens; returns
 * it. */
const char *run_cache_text(const struct run *run, const struct terse_cache_report *cache, char *buffer, size_t capacity);
void run_print_summary(struct run *run);

#endif
