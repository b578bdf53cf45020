#include "generation.h"

#include "console.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum terse_status no_memory(struct terse_error *error) {
    *error = (struct terse_error){.code = TERSE_E_MEMORY, .offset = TERSE_NO_OFFSET, .message = "no memory for a reply"};
    return TERSE_E_MEMORY;
}

/* ---- Log probabilities */

static bool logs_prompt(const struct generation *g) { return g->task->request.echo && g->task->request.logprobs >= 0; }

static struct token_log *add_log(struct generation *g, int32_t token) {
    if (g->n_logs == g->logs_capacity) {
        size_t capacity = g->logs_capacity ? 2 * g->logs_capacity : 64;
        struct token_log *larger = realloc(g->logs, capacity * sizeof *larger);
        if (!larger) return NULL;
        g->logs = larger;
        g->logs_capacity = capacity;
    }
    struct token_log *log = &g->logs[g->n_logs++];
    *log = (struct token_log){.token = token};
    return log;
}

/* Keeps the `most` largest logits in order; equal ones by their numbers. */
static void insert_top(struct token_log *log, uint32_t most, int32_t token, float logit) {
    uint32_t at = log->n_top;
    if (at == most && (!most || !(logit > log->top[most - 1].logprob))) return;
    if (at == most)
        at--;
    else
        log->n_top++;
    for (; at > 0 && logit > log->top[at - 1].logprob; at--) log->top[at] = log->top[at - 1];
    log->top[at] = (struct terse_logprob){token, logit};
}

/* Takes the prompt's logits as their sink: row i holds those after its i-th token, of the token behind it. */
static void log_prompt(void *user, size_t row, const float *logits) {
    struct generation *g = user;
    uint32_t vocabulary = g->task->limits->vocabulary, most = (uint32_t)g->task->request.logprobs;
    if (row == 0 && !add_log(g, g->prompt->tokens[0])) g->text.failed = true;
    if (row + 1 >= g->prompt->n || g->text.failed) return;
    struct token_log *log = add_log(g, g->prompt->tokens[row + 1]);
    if (!log) {
        g->text.failed = true; /* generation_start says so */
        return;
    }
    float largest = logits[0];
    double sum = 0;
    for (uint32_t i = 0; i < vocabulary; i++) {
        largest = fmaxf(largest, logits[i]);
        insert_top(log, most, (int32_t)i, logits[i]);
    }
    for (uint32_t i = 0; i < vocabulary; i++) sum += exp((double)(logits[i] - largest));
    double shift = (double)largest + log1p(sum - 1);
    log->known = true;
    log->logprob = (float)((double)logits[log->token] - shift);
    for (uint32_t i = 0; i < log->n_top; i++) log->top[i].logprob = (float)((double)log->top[i].logprob - shift);
}

static enum terse_status log_token(struct generation *g, int32_t token, struct terse_error *error) {
    if (g->task->request.logprobs < 0) return TERSE_OK;
    struct token_log *log = add_log(g, token);
    if (!log) return no_memory(error);
    uint32_t most = (uint32_t)g->task->request.logprobs, vocabulary = g->task->limits->vocabulary;
    log->known = true;
    log->n_top = most < vocabulary ? most : vocabulary;
    return terse_session_logprobs(g->session, token, &log->logprob, log->top, log->n_top, error);
}

/* Adds a token to what the best of the replies is chosen by. */
static enum terse_status judge(struct generation *g, int32_t token, struct terse_error *error) {
    float logprob;
    if (g->task->request.best_of == g->task->request.n) return TERSE_OK;
    enum terse_status status = terse_session_logprobs(g->session, token, &logprob, NULL, 0, error);
    if (status) return status;
    g->logprobs += (double)logprob;
    g->judged++;
    return TERSE_OK;
}

enum terse_status generation_copy_logs(struct generation *g, const struct generation *from, struct terse_error *error) {
    for (size_t i = 0; i < from->n_logs; i++) {
        struct token_log *log = add_log(g, from->logs[i].token);
        if (!log) return no_memory(error);
        *log = from->logs[i];
    }
    return TERSE_OK;
}

/* ---- Text */

size_t generation_calls(const struct generation *g, const struct terse_tool_call **calls) {
    size_t n = 0;
    *calls = g->reader ? terse_reply_reader_calls(g->reader, &n) : NULL;
    return n && g->task->request.one_call ? 1 : n; /* formats whose calls stand in one list are read as a whole */
}

void generation_sent(struct generation *g) {
    const struct terse_tool_call *calls;
    g->piece = g->text.n;
    g->thoughts_piece = g->thoughts.n;
    g->logs_piece = g->n_logs;
    g->calls_piece = generation_calls(g, &calls);
}

static void add_piece(struct generation *g, const struct terse_reply_piece *piece) {
    if (piece->n_text) buffer_add(&g->text, piece->text, piece->n_text);
    if (piece->n_thoughts) buffer_add(&g->thoughts, piece->thoughts, piece->n_thoughts);
}

/* Adds text that the reply has shown, but for its thoughts and tool calls. */
static enum terse_status add_shown(struct generation *g, const char *text, size_t n, struct terse_error *error) {
    struct terse_reply_piece piece = {.text = text, .n_text = n};
    const struct terse_tool_call *calls;
    if (g->reader) {
        enum terse_status status = terse_reply_reader_push(g->reader, text, n, &piece, error);
        if (status) return status;
        if (g->task->request.one_call && generation_calls(g, &calls)) g->finish = FINISH_END;
    }
    add_piece(g, &piece);
    return g->text.failed || g->thoughts.failed ? no_memory(error) : TERSE_OK;
}

/* Adds the text that might have become something else. */
static void finish_reader(struct generation *g) {
    struct terse_reply_piece piece;
    struct terse_error error;
    if (!g->reader) return;
    if (terse_reply_reader_finish(g->reader, &piece, &error) != TERSE_OK)
        g->text.failed = true;
    else
        add_piece(g, &piece);
}

/* Adds text that the model wrote, up to a stop string. */
static enum terse_status add_text(struct generation *g, const char *text, size_t n, struct terse_error *error) {
    bool stopped = false;
    if (g->stop && n) {
        enum terse_status status = terse_stop_push(g->stop, text, n, &text, &n, &stopped, error);
        if (status) return status;
    }
    enum terse_status status = add_shown(g, text, n, error);
    if (!stopped) return status;
    g->finish = FINISH_STOP_STRING;
    finish_reader(g);
    return status;
}

/* Adds the text that the detokenizer, the stop strings and the reader still hold back. */
void generation_finish(struct generation *g, enum finish finish) {
    struct terse_error error;
    size_t n;
    const char *text = terse_detokenizer_finish(g->detokenizer, &n);
    g->finish = FINISH_NONE;
    (void)add_text(g, text, n, &error);
    if (g->finish == FINISH_STOP_STRING) return;
    if (g->stop) {
        text = terse_stop_finish(g->stop, &n);
        if (n) (void)add_shown(g, text, n, &error);
    }
    finish_reader(g);
    g->finish = finish;
}

/* Adds the prompt's text, as its tokens have it. */
static enum terse_status echo_prompt(struct generation *g, struct terse_error *error) {
    struct terse_detokenizer *detokenizer;
    size_t n;
    enum terse_status status = terse_detokenizer_new(g->task->limits->model, true, &detokenizer, error);
    if (status) return status;
    for (size_t i = g->prompt->added; i < g->prompt->n; i++) {
        const char *text = terse_detokenizer_push(detokenizer, g->prompt->tokens[i], &n);
        if (n) buffer_add(&g->text, text, n);
    }
    const char *text = terse_detokenizer_finish(detokenizer, &n);
    if (n) buffer_add(&g->text, text, n);
    terse_detokenizer_free(detokenizer);
    return g->text.failed ? no_memory(error) : TERSE_OK;
}

/* ---- Tokens */

bool generation_started(const struct generation *g) { return g->detokenizer != NULL; }

/* Begins to read again the prompt's tokens and those that were written, except for the last one: a step reads that one, and a JSON
 * text takes it. */
static enum terse_status read_again(struct generation *g, struct terse_error *error) {
    size_t n_prompt = g->prompt->n, n_written = g->written.n / sizeof(int32_t) - 1, n = n_prompt + n_written;
    int32_t *tokens = malloc(n * sizeof *tokens);
    if (!tokens) return no_memory(error);
    memcpy(tokens, g->prompt->tokens, n_prompt * sizeof *tokens);
    memcpy(tokens + n_prompt, g->written.bytes, n_written * sizeof *tokens);
    g->chosen = true;
    enum terse_status status = terse_session_begin_prompt(g->session, tokens, n, NULL, error);
    free(tokens);
    return status;
}

static enum terse_status open_session(struct generation *g, struct terse_engine *engine,
                                      const struct terse_session_options *options, struct terse_error *error) {
    if (!g->task->request.use_prefix || logs_prompt(g)) return terse_session_new(engine, options, &g->session, error);
    return terse_session_new_with_prefix(engine, options, g->prompt->tokens, g->prompt->n, &g->session, &g->cached, error);
}

/* Begins to read what follows of the prompt: up to its turn, or behind that. */
static enum terse_status begin_part(struct generation *g, const struct terse_logits_sink *log, struct terse_error *error) {
    size_t from = g->begun, to = from < g->prompt->turn && g->task->request.use_prefix ? g->prompt->turn : g->prompt->n;
    g->begun = to;
    return terse_session_begin_prompt(g->session, g->prompt->tokens + from, to - from, log, error);
}

enum terse_status generation_begin_prompt(struct generation *g, struct terse_engine *engine,
                                          const struct terse_session_options *options, struct terse_error *error) {
    const struct terse_logits_sink log = {.row = log_prompt, .user = g};
    enum terse_status status = g->session ? TERSE_OK : open_session(g, engine, options, error);
    if (status) return status;
    g->read = g->cached;
    if (generation_started(g)) return read_again(g, error);
    g->n_logs = 0;
    g->begun = g->cached;
    return begin_part(g, logs_prompt(g) ? &log : NULL, error);
}

bool generation_reads_on(const struct generation *g) { return !generation_started(g) && g->begun < g->prompt->n; }

enum terse_status generation_read_on(struct generation *g, struct terse_error *error) { return begin_part(g, NULL, error); }

enum terse_status generation_preempt(struct generation *g, struct terse_error *error) {
    if (generation_started(g)) {
        if (g->state == GENERATION_READING) terse_session_reset(g->session); /* which drops the prompt */
        enum terse_status status = terse_session_truncate(g->session, 0, error);
        if (status) return status;
    } else {
        terse_session_free(g->session);
        g->session = NULL;
        g->cached = 0;
    }
    g->read = 0;
    g->state = GENERATION_PREEMPTED;
    return TERSE_OK;
}

/* Makes what turns tokens into text, and of a chat's reply into its parts, and holds its tool calls to their tools. */
static enum terse_status make_readers(struct generation *g, struct terse_error *error) {
    const struct request *r = &g->task->request;
    const struct request_limits *limits = g->task->limits;
    if (!api_is_chat(r->api)) return terse_detokenizer_new(limits->model, false, &g->detokenizer, error);
    struct terse_chat_options options = request_chat_options(limits, r);
    if (r->callable) options.tools = r->callable;
    enum terse_status status = terse_reply_reader_new(limits->model, &options, &g->reader, error);
    if (!status && !r->require_json) status = terse_session_hold_calls(g->session, &options, error);
    return status ? status : terse_detokenizer_new_for_reply(limits->model, &options, &g->detokenizer, error);
}

enum terse_status generation_start(struct generation *g, struct terse_error *error) {
    const struct request *r = &g->task->request;
    struct terse_sampling sampling = r->sampling;
    enum terse_status status;
    sampling.seed += g->choice;
    g->read_at = console_seconds();
    buffer_add(&g->text, "", 0);
    if ((status = terse_session_set_sampling(g->session, &sampling, error))) return status;
    if (r->require_json && (status = terse_session_require_json(g->session, r->schema, error))) return status;
    if ((status = make_readers(g, error))) return status;
    if (r->n_stops && (status = terse_stop_new((const char *const *)r->stops, r->n_stops, &g->stop, error))) return status;
    if (r->echo && (status = echo_prompt(g, error))) return status;
    g->state = GENERATION_WRITING;
    if (r->max_tokens == 0) generation_finish(g, FINISH_LENGTH);
    return TERSE_OK;
}

enum terse_status generation_next(struct generation *g, struct terse_error *error) {
    const struct terse_tool_call *calls;
    int32_t token;
    size_t n;
    generation_sent(g);
    enum terse_status status = terse_session_sample(g->session, &token, error);
    if (status) return status;
    double now = console_seconds(), before = g->newest_token;
    g->newest_token = now;
    if (!g->first_token) g->first_token = now;
    g->waited = before > 0 ? now - before : 0;
    if ((status = judge(g, token, error))) return status;
    if (terse_token_ends(g->task->limits->model, token)) {
        generation_finish(g, FINISH_END);
        return TERSE_OK;
    }
    if ((status = log_token(g, token, error))) return status;
    const char *text = terse_detokenizer_push(g->detokenizer, token, &n);
    if ((status = add_text(g, text, n, error))) return status;
    g->tokens++;
    if (g->thoughts.n && !g->text.n && !generation_calls(g, &calls)) g->thought = g->tokens;
    g->next = token;
    buffer_add(&g->written, &token, sizeof token);
    if (!g->finish && g->task->request.max_tokens >= 0 && g->tokens >= g->task->request.max_tokens)
        generation_finish(g, FINISH_LENGTH);
    return TERSE_OK;
}

void generation_stop(struct generation *g) {
    terse_session_free(g->session);
    terse_detokenizer_free(g->detokenizer);
    terse_stop_free(g->stop);
    g->session = NULL;
    g->detokenizer = NULL;
    g->stop = NULL;
    g->state = GENERATION_DONE;
}

void generation_free(struct generation *g) {
    generation_stop(g);
    terse_reply_reader_free(g->reader);
    buffer_free(&g->written);
    buffer_free(&g->text);
    buffer_free(&g->thoughts);
    free(g->logs);
}
