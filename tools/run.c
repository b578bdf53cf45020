/* Reads text into a session, and writes the text that the model generates. */
#include "run.h"

#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The session */

enum terse_status run_open_session(struct run *run, const char *state, struct terse_session **session, struct terse_error *error) {
    enum terse_status status = state ? terse_session_load(run->setup.engine, &run->options, state, session, error)
                                     : terse_session_new(run->setup.engine, &run->options, session, error);
    if (status || (state && !run->sampling_given)) return status;
    if (!(status = terse_session_set_sampling(*session, &run->sampling, error))) return TERSE_OK;
    terse_session_free(*session);
    *session = NULL;
    return status;
}

/* Adds the session's counters to *sum and resets them. */
static void add_counters(struct terse_counters *sum, struct terse_session *session) {
    struct terse_counters counters;
    terse_session_counters(session, &counters, true);
    sum->prefill_tokens += counters.prefill_tokens;
    sum->prefill_seconds += counters.prefill_seconds;
    sum->decode_tokens += counters.decode_tokens;
    sum->decode_seconds += counters.decode_seconds;
}

void run_replace_session(struct run *run, struct terse_session *session) {
    add_counters(&run->earlier, run->session);
    terse_session_free(run->session);
    run->session = session;
    run->full = false;
}

/* ---- Text in */

/* Joins the file and the prompt. One newline at the end of the file is not part of it. */
int run_join_input(const struct run *run, const char *prompt, char **input) {
    size_t n_text = run->n_text, n_prompt = prompt ? strlen(prompt) : 0;
    if (n_text && run->text[n_text - 1] == '\n') n_text--;
    *input = malloc(n_text + 2 + n_prompt + 1);
    if (!*input) return complain("no memory for the input");
    if (n_text) memcpy(*input, run->text, n_text);
    (*input)[n_text] = 0;
    if (run->text && prompt) strcat(*input + n_text, "\n\n");
    if (prompt) strcat(*input + n_text, prompt);
    return EXIT_OK;
}

int run_check_length(struct run *run) {
    struct setup *setup = &run->setup;
    size_t n = 0, context = setup->context ? (size_t)setup->context : setup->info.context;
    int32_t *tokens;
    char *input;
    if (run->state || setup->evict || (!run->file && !run->prompt)) return EXIT_OK;
    int status = run_join_input(run, run->prompt, &input);
    if (status == EXIT_OK) {
        status = text_tokenize(setup->model, input, strlen(input), TERSE_TOKENIZE_PARSE_SPECIAL, &tokens, &n);
        if (status == EXIT_OK) free(tokens);
        free(input);
    }
    if (!run->conversation && run->n_predict >= 0) setup->text_tokens = n + (uint64_t)run->n_predict;
    if (status != EXIT_OK || n <= context) return status;
    return complain("the prompt has %zu tokens and the context room for %zu: shorten it, or raise -c where the model allows more",
                    n, context);
}

/* Reads tokens[n] into the session, unless that is full now. */
static int read_tokens(struct run *run, const int32_t *tokens, size_t n) {
    struct terse_error error;
    if (!n) return complain("the prompt is empty; give some text with -p or -f");
    if (terse_session_prefill(run->session, tokens, n, NULL, &error) == TERSE_OK) return EXIT_OK;
    run->full = run->replied && error.code == TERSE_E_CONTEXT;
    if (!run->full) return complain_error(&error);
    remark("stopped: the conversation no longer fits: %s", error.message);
    return EXIT_OK;
}

int run_read_text(struct run *run, const char *text, size_t n_bytes, unsigned flags) {
    int32_t *tokens;
    size_t n_tokens;
    int status = text_tokenize(run->setup.model, text, n_bytes, flags, &tokens, &n_tokens);
    if (status != EXIT_OK) return status;
    /* A text that begins with its own BOS does not need a second one. */
    int32_t bos = terse_token_bos(run->setup.model, NULL);
    size_t first = n_tokens > 1 && tokens[0] == bos && tokens[1] == bos;
    status = read_tokens(run, tokens + first, n_tokens - first);
    free(tokens);
    return status;
}

struct terse_chat_options run_chat_options(const struct run *run) {
    struct terse_chat_options options = terse_chat_options_defaults();
    options.format = run->chat_template;
    options.template_text = run->template_text;
    return options;
}

/* Reads what follows the after-th message of messages[n] in the model's chat format. */
static int read_messages(struct run *run, const struct terse_message *messages, size_t n, size_t after) {
    struct terse_error error;
    int32_t *tokens;
    size_t n_tokens;
    struct terse_chat_options options = run_chat_options(run);
    options.after = after;
    if (terse_chat_tokenize_with(run->setup.model, &options, messages, n, &tokens, &n_tokens, &error) != TERSE_OK)
        return complain_error(&error);
    int status = read_tokens(run, tokens, n_tokens);
    terse_tokens_free(tokens);
    return status;
}

/* Reads a message as text: between its prefix and suffix, behind the token that ended the reply before it, or what -f has. */
static int read_plain_turn(struct run *run, const char *message) {
    const char *prefix = run->in_prefix ? run->in_prefix : "", *suffix = run->in_suffix ? run->in_suffix : "";
    bool first = !run->replied;
    size_t n_text = first && run->text ? run->n_text : 0, n = n_text + strlen(prefix) + strlen(message) + strlen(suffix);
    char *input = malloc(n + 1);
    if (!input) return complain("no memory for the input");
    snprintf(input, n + 1, "%.*s%s%s%s", (int)n_text, n_text ? run->text : "", prefix, message, suffix);
    int status = !first && run->end >= 0 ? read_tokens(run, &run->end, 1) : EXIT_OK;
    run->end = -1;
    if (status == EXIT_OK && !run->full)
        status = run_read_text(run, input, n, (first ? TERSE_TOKENIZE_ADD_SPECIAL : 0) | TERSE_TOKENIZE_PARSE_SPECIAL);
    free(input);
    run->replied = run->replied || status == EXIT_OK;
    return status;
}

int run_read_turn(struct run *run, const char *message) {
    char *input = NULL;
    int status;
    if (run->in_prefix || run->in_suffix) return read_plain_turn(run, message);
    if (run->replied) {
        /* The session ends with the reply as it was generated, without its end token; the tokens after a reply are the same
         * whatever it says. */
        const struct terse_message messages[] = {{"user", "-"}, {"assistant", "-"}, {"user", message}};
        return read_messages(run, messages, 3, 2);
    }
    if ((status = run_join_input(run, message, &input)) != EXIT_OK) return status;
    const struct terse_message messages[] = {{"system", run->system}, {"user", input}};
    status = read_messages(run, messages + !run->system, 1 + (run->system != NULL), 0);
    run->replied = status == EXIT_OK;
    free(input);
    return status;
}

/* ---- Text out */

/* Shows text that a reply has, or a part of its thoughts, which are dimmed. */
static bool show(struct run *run, const char *text, size_t n_bytes, bool thoughts, char *last) {
    if (!n_bytes) return true;
    const char *before = thoughts == run->dimmed ? "" : thoughts ? "\033[2m" : "\033[0m\n\n";
    run->dimmed = thoughts;
    *last = text[n_bytes - 1];
    return output_write(before, strlen(before)) && output_write(text, n_bytes);
}

/* Shows more of a reply, thoughts apart where they are dimmed. `ends`: it is the last. */
static int show_reply(struct run *run, const char *text, size_t n_bytes, bool ends, char *last) {
    struct terse_reply_piece piece = {text, n_bytes, NULL, 0};
    struct terse_error error;
    enum terse_status status = !run->reader ? TERSE_OK : terse_reply_reader_push(run->reader, text, n_bytes, &piece, &error);
    if (status != TERSE_OK) return complain_error(&error);
    bool shown = show(run, piece.thoughts, piece.n_thoughts, true, last) && show(run, piece.text, piece.n_text, false, last);
    if (!run->reader || !ends || !shown) return shown ? EXIT_OK : EXIT_FAILED;
    if (terse_reply_reader_finish(run->reader, &piece, &error) != TERSE_OK) return complain_error(&error);
    shown = show(run, piece.thoughts, piece.n_thoughts, true, last) && show(run, piece.text, piece.n_text, false, last);
    if (run->dimmed) shown = output_write("\033[0m", 4) && shown, *last = 'm'; /* the line goes on behind that */
    run->dimmed = false;
    return shown ? EXIT_OK : EXIT_FAILED;
}

/* Makes what tells thoughts from text, for a new reply. */
static int begin_reply(struct run *run) {
    struct terse_chat_options options = run_chat_options(run);
    struct terse_error error;
    terse_reply_reader_free(run->reader);
    run->reader = NULL;
    if (run->dims && terse_reply_reader_new(run->setup.model, &options, &run->reader, &error) != TERSE_OK)
        return complain_error(&error);
    return EXIT_OK;
}

/* Writes text, except for what may be the beginning of a string that ends the reply. Returns false where the reply ends, as
 * write_token does. */
static bool write_text(struct run *run, const char *text, size_t n_bytes, int *status, char *last) {
    struct terse_error error;
    bool stopped = false;
    if (run->stop && terse_stop_push(run->stop, text, n_bytes, &text, &n_bytes, &stopped, &error) != TERSE_OK) {
        *status = complain_error(&error);
        return false;
    }
    int shown = show_reply(run, text, n_bytes, false, last);
    if (shown != EXIT_OK) *status = shown;
    return !stopped && *status == EXIT_OK;
}

/* Writes one more token. Returns false when the text ends here: at its own end with *status EXIT_OK, or for the reason that *status
 * is. *last is the last byte written. */
static bool write_token(struct run *run, int *status, char *last) {
    struct terse_error error;
    int32_t token;
    size_t n_bytes;
    if (console_interrupted()) {
        *status = EXIT_INTERRUPTED;
        return false;
    }
    if (terse_session_sample(run->session, &token, &error) != TERSE_OK) {
        *status = complain_error(&error);
        return false;
    }
    if (terse_token_ends(run->setup.model, token)) {
        run->end = token;
        return false;
    }
    const char *text = terse_detokenizer_push(run->detokenizer, token, &n_bytes);
    bool goes_on = write_text(run, text, n_bytes, status, last);
    if (*status != EXIT_OK) return false;
    enum terse_status decoded = terse_session_decode(run->session, &token, 1, NULL, &error);
    if (decoded != TERSE_OK && decoded != TERSE_E_CONTEXT) *status = complain_error(&error);
    run->full = decoded == TERSE_E_CONTEXT;
    return goes_on && decoded == TERSE_OK;
}

/* Requires the reply to be JSON from here on, or stops requiring it after a whole reply. */
static int require_json(struct run *run, bool required) {
    struct terse_error error;
    if (!run->json_schema) return EXIT_OK;
    if (!required) terse_session_allow_any_text(run->session);
    if (required && terse_session_require_json(run->session, run->json_schema, &error) != TERSE_OK) return complain_error(&error);
    return EXIT_OK;
}

int run_generate(struct run *run) {
    int status = require_json(run, true);
    char last = '\n';
    size_t n_bytes;
    if (status == EXIT_OK) status = begin_reply(run);
    if (status != EXIT_OK) return status;
    run->end = -1;
    for (run->written = 0; run->n_predict < 0 || run->written < (uint64_t)run->n_predict; run->written++)
        if (!write_token(run, &status, &last)) break;
    require_json(run, false);
    const char *text = terse_detokenizer_finish(run->detokenizer, &n_bytes);
    if (status == EXIT_OK && n_bytes) write_text(run, text, n_bytes, &status, &last);
    n_bytes = 0;
    if (run->stop) text = terse_stop_finish(run->stop, &n_bytes);
    show_reply(run, text, n_bytes, true, &last);
    if (last != '\n') output_write("\n", 1);
    if (run->full) remark("stopped: the context is full; raise -c, or generate without end with --kv streaming-N");
    return status;
}

static void print_rate(char *buffer, size_t capacity, uint64_t tokens, double seconds) {
    if (tokens && seconds > 0)
        snprintf(buffer, capacity, "%llu tokens, %.1f tokens/s", (unsigned long long)tokens, (double)tokens / seconds);
    else
        snprintf(buffer, capacity, "%llu tokens", (unsigned long long)tokens);
}

const char *run_cache_text(const struct run *run, const struct terse_cache_report *cache, char *buffer, size_t capacity) {
    enum { FEW = 256 }; /* tokens: of fewer the tables and the window are most, and bits would not be the method's */
    char method[128], bits[48] = "", rates[160];
    if (cache->tokens >= FEW) snprintf(bits, sizeof bits, ", %.2f bits per value", cache->bits_per_value);
    snprintf(buffer, capacity, "%.2f MiB%s (%s%s)", (double)cache->resident / 0x1p20, bits,
             setup_method_text(&run->setup, method, sizeof method), setup_rates_text(cache, rates, sizeof rates));
    return buffer;
}

void run_print_summary(struct run *run) {
    struct terse_counters *all = &run->earlier;
    struct terse_cache_report cache;
    char prompt[64], reply[64], text[384];
    add_counters(all, run->session);
    terse_session_cache(run->session, &cache);
    print_rate(prompt, sizeof prompt, all->prefill_tokens, all->prefill_seconds);
    print_rate(reply, sizeof reply, all->decode_tokens, all->decode_seconds);
    remark("prompt %s | generated %s | KV cache %s", prompt, reply, run_cache_text(run, &cache, text, sizeof text));
}
