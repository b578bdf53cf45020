/* A task is a request in the scheduler's hands, with the replies to it. All of it belongs to the scheduler's thread, except the
 * exchange. */
#ifndef TERSE_SERVE_TASK_H
#define TERSE_SERVE_TASK_H

#include "buffer.h"
#include "exchange.h"
#include "request.h"

/* A token_log is one token of a text with log probabilities. */
struct token_log {
    int32_t token;
    bool known; /* false of a prompt's first token: nothing comes before it */
    float logprob;
    uint32_t n_top;
    struct terse_logprob top[REQUEST_LOGPROBS];
};

enum generation_state {
    GENERATION_QUEUED,
    GENERATION_READING, /* its prompt; of several replies to one prompt, the first one reads it for all */
    GENERATION_WRITING,
    GENERATION_PREEMPTED, /* in its slot, without a cache: the budget was needed by older ones, and what it has read is to be read again */
    GENERATION_SAVING, /* all is written, and it has left its slot; what it has read is being saved, and its end is told when it is */
    GENERATION_DONE
};

enum finish { FINISH_NONE, FINISH_END, FINISH_STOP_STRING, FINISH_LENGTH };

/* A generation is one reply: the session, the text so far, and why it ended. */
struct generation {
    struct task *task;
    const struct prompt *prompt;
    size_t index, choice; /* of the task's generations; of the replies to its prompt, the first one 0 */
    enum generation_state state;
    struct terse_session *session; /* NULL unless reading or writing */
    struct saving *saving;         /* the session is away to be saved; NULL: it is not */
    struct terse_detokenizer *detokenizer;
    struct terse_stop *stop;           /* NULL: no stop strings */
    struct terse_reply_reader *reader; /* takes thoughts and tool calls out of the text; NULL: it is no chat */
    size_t calls_piece;                /* as piece */
    size_t begun;                      /* tokens of the prompt of which the session was told */
    size_t cached, read;               /* tokens of the prompt that a prefix brought; that are read, those included */
    int64_t tokens, thought;           /* written; of these before what the reply says or calls */
    double logprobs; /* the sum over its `judged` tokens, the one that ended it included, where the best is to be chosen */
    size_t judged;
    int32_t next;          /* token to be read in the next step */
    bool chosen;           /* while the reply was preempted: no other is chosen before it is read */
    struct buffer written; /* the tokens, int32_t each, as they were chosen */
    struct buffer text, thoughts;
    size_t thoughts_piece; /* as piece */
    size_t piece;          /* where what the newest token added begins, in text */
    struct token_log *logs;
    size_t n_logs, logs_capacity, logs_piece; /* as piece */
    enum finish finish;
    bool announced; /* a stream of a chat has said who speaks */
    struct {
        size_t events, items;                         /* sent; output items so far */
        size_t thoughts_at, text_at;                  /* of them the thoughts and the message, from 1 on, 0: there are none */
        size_t thoughts;                              /* bytes of the thoughts' item, which has ended; 0: it has not */
    } response;                                       /* of API_RESPONSES */
    double began, read_at, first_token, newest_token; /* console_seconds; read_at: when its prompt was */
    double waited;                                    /* seconds between the newest two tokens; 0: there is one */
};

struct task {
    struct request request;
    struct exchange *exchange;
    char id[48];
    const struct request_limits *limits;
    const char *model; /* its name */
    int64_t created;   /* seconds since 1970 */
    double arrived;    /* console_seconds */
    uint64_t client;   /* tells clients apart, for fairness */
    struct generation *generations;
    size_t n_generations, done;
    uint32_t slots_taken; /* by generations of it */
    size_t next_prompt;   /* the first whose generations are queued */
    struct task *next;
};

/* Makes a task of *request, which is empty afterwards, and of one owner's share of the exchange. NULL when memory is refused; both
 * are then as before. */
struct task *task_new(struct request *request, struct exchange *exchange, const struct request_limits *limits, const char *model,
                      uint64_t client);
void task_free(struct task *task);
/* Puts the best replies to each prompt first, by the mean log probability of their tokens, and numbers them so: the request's first n
 * are its choice. All of them have ended. */
void task_choose_best(struct task *task);
/* Returns the part of the id that is the task's alone. */
const char *task_number(const struct task *task);

#endif
