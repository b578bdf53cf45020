/* `terse run`: reads a text, streams what the model writes, and sums up what it cost. Completion, one question, or a chat. */
#include "codebooks.h"
#include "commands.h"
#include "setup.h"
#include "text.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The smallest terse-N whose mean KL divergence stays under 0.005 on both lab models: docs/reports/fidelity.md. */
#define DEFAULT_METHOD "terse-2"
#define REPEAT_LAST_MOST 4096 /* that the library looks at */

struct run {
    struct setup setup;
    const char *file, *prompt, *chat_template, *state, *save_state;
    bool sampling_given; /* by any option: else a saved session goes on sampling as it did */
    char *text;          /* of the file, or NULL */
    size_t n_text;
    bool chat, conversation, no_conversation, escape, ignore_end, color, display_nothing;
    const char *system;
    struct texts reverse; /* a reply ends before any of them */
    int64_t n_predict, top_k, repeat_last, seed;
    double temperature, typical_p, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;

    struct terse_session *session;
    struct terse_detokenizer *detokenizer;
    struct terse_stop *stop; /* NULL: nothing but the model ends a reply */
    bool replied;            /* in a conversation: from here on a message that does not fit only ends it */
    bool full;               /* the context: nothing more is read or written */
};

/* ---- Text in */

/* The text of the file, an empty line, the prompt; either may be missing. One newline at the end of the file is not part of it. */
static int join_input(const struct run *run, const char *prompt, char **input) {
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

/* The same of text[n_bytes]. `flags` as terse_tokenize. */
static int read_text(struct run *run, const char *text, size_t n_bytes, unsigned flags) {
    int32_t *tokens;
    size_t n_tokens;
    int status = text_tokenize(run->setup.model, text, n_bytes, flags, &tokens, &n_tokens);
    if (status != EXIT_OK) return status;
    /* A text that brings its own BOS does not need a second one. */
    int32_t bos = terse_token_bos(run->setup.model, NULL);
    size_t first = n_tokens > 1 && tokens[0] == bos && tokens[1] == bos;
    status = read_tokens(run, tokens + first, n_tokens - first);
    free(tokens);
    return status;
}

/* The same of what follows the after-th message of messages[n] in the model's chat format. */
static int read_messages(struct run *run, const struct terse_message *messages, size_t n, size_t after) {
    struct terse_error error;
    int32_t *tokens;
    size_t n_tokens;
    if (terse_chat_tokenize(run->setup.model, run->chat_template, messages, n, after, true, &tokens, &n_tokens, &error) != TERSE_OK)
        return complain_error(&error);
    int status = read_tokens(run, tokens, n_tokens);
    terse_tokens_free(tokens);
    return status;
}

/* ---- Text out */

/* Writes text, but for what may be the beginning of a string that ends the reply. False where the reply ends, as write_token. */
static bool write_text(struct run *run, const char *text, size_t n_bytes, int *status, char *last) {
    struct terse_error error;
    bool stopped = false;
    if (run->stop && terse_stop_push(run->stop, text, n_bytes, &text, &n_bytes, &stopped, &error) != TERSE_OK) {
        *status = complain_error(&error);
        return false;
    }
    if (n_bytes) *last = text[n_bytes - 1];
    if (!output_write(text, n_bytes)) *status = EXIT_FAILED;
    return !stopped && *status == EXIT_OK;
}

/* Writes one token more. False when the text ends here: at its own end with *status EXIT_OK, or for the reason that *status is.
 * *last is the last byte written. */
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
    if (terse_token_ends(run->setup.model, token)) return false;
    const char *text = terse_detokenizer_push(run->detokenizer, token, &n_bytes);
    bool goes_on = write_text(run, text, n_bytes, status, last);
    if (*status != EXIT_OK) return false;
    enum terse_status decoded = terse_session_decode(run->session, &token, 1, NULL, &error);
    if (decoded != TERSE_OK && decoded != TERSE_E_CONTEXT) *status = complain_error(&error);
    run->full = decoded == TERSE_E_CONTEXT;
    return goes_on && decoded == TERSE_OK;
}

/* Writes tokens until the text ends, -n is reached, or the context is full. */
static int generate(struct run *run) {
    int status = EXIT_OK;
    char last = '\n';
    size_t n_bytes;
    for (int64_t i = 0; run->n_predict < 0 || i < run->n_predict; i++)
        if (!write_token(run, &status, &last)) break;
    const char *text = terse_detokenizer_finish(run->detokenizer, &n_bytes);
    if (status == EXIT_OK && n_bytes) write_text(run, text, n_bytes, &status, &last);
    if (run->stop) {
        text = terse_stop_finish(run->stop, &n_bytes);
        if (n_bytes) last = text[n_bytes - 1];
        output_write(text, n_bytes);
    }
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

static void print_summary(const struct run *run) {
    struct terse_counters counters;
    struct terse_cache_report cache;
    char prompt[64], reply[64], method[128];
    terse_session_counters(run->session, &counters, false);
    terse_session_cache(run->session, &cache);
    print_rate(prompt, sizeof prompt, counters.prefill_tokens, counters.prefill_seconds);
    print_rate(reply, sizeof reply, counters.decode_tokens, counters.decode_seconds);
    remark("prompt %s | generated %s | KV cache %.2f MiB, %.2f bits per value (%s)", prompt, reply, (double)cache.resident / 0x1p20,
           cache.bits_per_value, setup_method_text(&run->setup, method, sizeof method));
}

/* ---- The three ways to run */

static int run_completion(struct run *run) {
    char *input;
    unsigned begins = terse_session_length(run->session) ? 0 : TERSE_TOKENIZE_ADD_SPECIAL;
    int status = join_input(run, run->prompt, &input);
    if (status == EXIT_OK && (run->file || run->prompt))
        status = read_text(run, input, strlen(input), begins | TERSE_TOKENIZE_PARSE_SPECIAL);
    if (status == EXIT_OK) status = generate(run);
    free(input);
    return status;
}

/* Reads the first user message and writes the reply. */
static int first_turn(struct run *run, const char *prompt) {
    char *input = NULL;
    int status = join_input(run, prompt, &input);
    const struct terse_message messages[] = {{"system", run->system}, {"user", input}};
    if (status == EXIT_OK) status = read_messages(run, messages + !run->system, 1 + (run->system != NULL), 0);
    if (status == EXIT_OK) status = generate(run);
    free(input);
    return status;
}

/* Reads a later user message. The session ends with the reply as it was generated, without its end token; what follows a reply is the same
 * whatever it says. */
static int later_turn(struct run *run, const char *prompt) {
    const struct terse_message messages[] = {{"user", "-"}, {"assistant", "-"}, {"user", prompt}};
    int status = read_messages(run, messages, 3, 2);
    if (status == EXIT_OK && !run->full) status = generate(run);
    return status;
}

static int one_turn(struct run *run, const char *prompt) {
    int status = run->replied ? later_turn(run, prompt) : first_turn(run, prompt);
    run->replied = true;
    return status;
}

static int run_conversation(struct run *run) {
    bool terminal = isatty(STDIN_FILENO);
    char *line = NULL, name[48];
    size_t capacity = 0;
    int status = EXIT_OK;
    if (terminal) remark("(/exit or the end of input leaves)");
    if (run->prompt) status = one_turn(run, run->prompt);
    for (size_t number = 1; status == EXIT_OK && !run->full; number++) {
        if (terminal) fputs(run->color ? "> \033[32m" : "> ", stderr);
        errno = 0;
        ssize_t length = getline(&line, &capacity, stdin);
        if (terminal && run->color) fputs("\033[0m", stderr);
        if (length < 0) {
            if (terminal) fputc('\n', stderr);
            if (console_interrupted())
                status = EXIT_INTERRUPTED;
            else if (ferror(stdin))
                status = complain("cannot read standard input: %s", strerror(errno));
            break;
        }
        if (line[length - 1] == '\n') line[--length] = 0;
        if (length == 0) continue;
        snprintf(name, sizeof name, "line %zu of standard input", number);
        if ((status = text_check(name, line, (size_t)length)) != EXIT_OK || strcmp(line, "/exit") == 0) break;
        status = one_turn(run, line);
    }
    free(line);
    return status;
}

/* ---- Options */

/* In place, in the argument vector: what it stands for is never longer. Other letters stay as they are. */
static void resolve(const char *argument) {
    static const char letters[] = "ntr\"'\\", stand_for[] = "\n\t\r\"'\\";
    char *to = (char *)(uintptr_t)argument;
    for (const char *from = argument; from && *from; from++) {
        const char *letter = *from == '\\' && from[1] ? strchr(letters, from[1]) : NULL;
        if (letter) from++;
        *to++ = letter ? stand_for[letter - letters] : *from;
    }
    if (to) *to = 0;
}

static void resolve_escapes(struct run *run) {
    resolve(run->prompt);
    resolve(run->system);
    for (size_t i = 0; i < run->reverse.n; i++) resolve(run->reverse.text[i]);
}

static int check_options(const struct run *run) {
    if (run->chat && run->conversation) return complain("--chat (one question) and -cnv (a conversation) exclude each other");
    if (run->conversation && run->no_conversation) return complain("-cnv and -no-cnv exclude each other");
    if (run->chat_template && !run->chat && !run->conversation) return complain("--chat-template is for --chat and -cnv");
    if (run->system && !run->chat && !run->conversation) return complain("-sys is for --chat and -cnv");
    if (run->system && run->state) return complain("-sys goes before the first message of a chat, which --state has read already");
    for (size_t i = 0; i < run->reverse.n; i++)
        if (!*run->reverse.text[i]) return complain("-r takes some text");
    if (run->conversation && run->file && strcmp(run->file, "-") == 0)
        return complain("-f - and -cnv both read standard input: give the text as a file");
    if (run->state && run->file && (run->chat || run->conversation))
        return complain("-f goes before the first message of a chat, which --state has read already: give the text with -p");
    int status = setup_check_codebook(&run->setup);
    return status == EXIT_OK && run->prompt ? text_check("the text of -p", run->prompt, strlen(run->prompt)) : status;
}

static enum options_result parse(struct run *run, int argc, char **argv) {
    const struct option options[] = {
        {"-f, --file", "FILE", OPTION_TEXT, &run->file, 0, 0, "text to read; -: standard input, as where nothing is given"},
        {"-p, --prompt", "TEXT", OPTION_TEXT, &run->prompt, 0, 0, "text to read; after -f and an empty line when both are given"},
        {"--chat", NULL, OPTION_FLAG, &run->chat, 0, 0, "put what is read as one user message and print the reply"},
        {"-cnv, --conversation", NULL, OPTION_FLAG, &run->conversation, 0, 0,
         "chat, one line a message; -f goes before the first; /exit leaves"},
        {"-sys, --system-prompt", "TEXT", OPTION_TEXT, &run->system, 0, 0, "the system message before the first one of a chat"},
        {"-e, --escape", NULL, OPTION_FLAG, &run->escape, 0, 0,
         "\\n, \\t, \\\" and the like in -p, -sys and -r are what they stand for"},
        {"-r, --reverse-prompt", "TEXT", OPTION_TEXTS, &run->reverse, 0, 0, "end a reply before this text; may come several times"},
        {"--ignore-eos", NULL, OPTION_FLAG, &run->ignore_end, 0, 0, "never let the model end its text"},
        {"--chat-template", "NAME", OPTION_TEXT, &run->chat_template, 0, 0, "the chat format, when the model's own is not known"},
        {"--state", "FILE", OPTION_TEXT, &run->state, 0, 0,
         "go on where a saved session was; -f and -p are read behind it, and may be missing"},
        {"--save-state", "FILE", OPTION_TEXT, &run->save_state, 0, 0, "save the session at the end, to go on with --state"},
        {"-n, --predict|--n-predict", "N", OPTION_INTEGER, &run->n_predict, -2, INT32_MAX,
         "tokens to write at most; -1 or -2: until the end"},
        {"-c, --ctx-size", "N", OPTION_INTEGER, &run->setup.context, 0, UINT32_MAX, "context in tokens; 0: the model's"},
        {"--kv", "METHOD", OPTION_TEXT, &run->setup.method, 0, 0, run->setup.method_help},
        {"--temp|--temperature", "X", OPTION_NUMBER, &run->temperature, 0, 100, "temperature; 0: always the likeliest token"},
        {"--top-k", "N", OPTION_INTEGER, &run->top_k, 0, INT32_MAX, "choose among the N likeliest; 0: all"},
        {"--typical", "X", OPTION_NUMBER, &run->typical_p, 0, 1, "choose among the least surprising that make up X; 1: all"},
        {"--top-p", "X", OPTION_NUMBER, &run->top_p, 0, 1, "choose among the likeliest that make up X; 1: all"},
        {"--min-p", "X", OPTION_NUMBER, &run->min_p, 0, 1, "drop what is less likely than X times the likeliest"},
        {"--repeat-penalty", "X", OPTION_NUMBER, &run->repeat_penalty, 0.01, 100, "make recent tokens less likely; 1: off"},
        {"--presence-penalty", "X", OPTION_NUMBER, &run->presence_penalty, -100, 100,
         "take X off the logit of recent tokens; 0: off"},
        {"--frequency-penalty", "X", OPTION_NUMBER, &run->frequency_penalty, -100, 100,
         "the same for each time that they were there"},
        {"--repeat-last-n", "N", OPTION_INTEGER, &run->repeat_last, -1, INT32_MAX,
         "how many tokens are recent; -1: as many as can be"},
        {"-s, --seed", "N", OPTION_INTEGER, &run->seed, -1, INT32_MAX, "the same seed gives the same text; -1: from the clock"},
        {"-no-cnv, --no-conversation", NULL, OPTION_FLAG, &run->no_conversation, 0, 0, NULL},
        {"--no-display-prompt", NULL, OPTION_FLAG, &run->display_nothing, 0, 0, NULL},
        {"--color", NULL, OPTION_FLAG, &run->color, 0, 0, NULL},
    };
    const struct option_set set = {
        .usage = "terse run -p TEXT | -f FILE [-p TEXT] | -cnv [options]",
        .about = "Reads a text and continues it. The text goes to stdout, progress and a summary to stderr.\n"
                 "Without --kv the cache is " DEFAULT_METHOD
                 ". The profile of a model is learned at first use where that takes less than\n"
                 "a minute; else the weights and the prompt stand in for it.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .common = run->setup.common,
        .n_common = SETUP_COMMON,
    };
    return options_parse(&set, argc, argv);
}

/* A session of these options: a new one, or the saved one. */
static enum terse_status open_session(struct run *run, const struct terse_session_options *options,
                                      const struct terse_sampling *sampling, struct terse_error *error) {
    enum terse_status status = run->state ? terse_session_load(run->setup.engine, options, run->state, &run->session, error)
                                          : terse_session_new(run->setup.engine, options, &run->session, error);
    if (!status && (!run->state || run->sampling_given)) status = terse_session_set_sampling(run->session, sampling, error);
    run->replied = run->state && run->session && terse_session_length(run->session);
    return status;
}

/* The text of -f; of standard input where nothing else is given to read, and nobody sits before it. */
static int read_file(struct run *run) {
    bool nothing = !run->conversation && !run->file && !run->prompt && (!run->state || run->chat);
    if (nothing && !isatty(STDIN_FILENO)) run->file = "-";
    int status = run->file ? text_read(run->file, &run->text, &run->n_text) : EXIT_OK;
    if (status == EXIT_OK && nothing && !run->n_text)
        return complain("nothing to read: give -p TEXT, -f FILE or both, a text at standard input, or -cnv to chat");
    if (status == EXIT_OK && run->file && !run->n_text) return complain("%s is empty: nothing to read", run->file);
    return status;
}

/* Tokens that end a text are never chosen; *never is the caller's to free. */
static int never_end(const struct terse_model *model, uint32_t vocabulary, struct terse_logit_bias **never,
                     struct terse_sampling *sampling) {
    size_t n = 0;
    for (uint32_t token = 0; token < vocabulary; token++) n += terse_token_ends(model, (int32_t)token);
    if (!(*never = malloc((n + 1) * sizeof **never))) return complain("no memory for --ignore-eos");
    sampling->biases = *never;
    for (uint32_t token = 0; token < vocabulary; token++)
        if (terse_token_ends(model, (int32_t)token))
            (*never)[sampling->n_biases++] = (struct terse_logit_bias){.token = (int32_t)token, .bias = -INFINITY};
    return EXIT_OK;
}

static int start(struct run *run) {
    struct terse_error error;
    struct terse_session_options options;
    struct terse_sampling sampling = {
        .size = sizeof sampling,
        .temperature = (float)run->temperature,
        .top_k = (uint32_t)run->top_k,
        .typical_p = (float)run->typical_p,
        .top_p = (float)run->top_p,
        .min_p = (float)run->min_p,
        .repeat_penalty = (float)run->repeat_penalty,
        .presence_penalty = (float)run->presence_penalty,
        .frequency_penalty = (float)run->frequency_penalty,
        .repeat_last = run->repeat_last < 0 ? REPEAT_LAST_MOST : (uint32_t)run->repeat_last,
        .seed = run->seed >= 0 ? (uint64_t)run->seed : (uint64_t)(console_seconds() * 1e9),
    };
    /* Before a model is loaded or a codebook learned for it. */
    int status = read_file(run);
    if (status == EXIT_OK) status = setup_load(&run->setup);
    if (status == EXIT_OK) status = setup_engine(&run->setup);
    if (status != EXIT_OK) return status;
    options = setup_session_options(&run->setup);
    if ((status = codebooks_provide(&run->setup, &options)) != EXIT_OK) return status;
    struct terse_logit_bias *never = NULL;
    if (run->ignore_end && (status = never_end(run->setup.model, run->setup.info.vocabulary, &never, &sampling)) != EXIT_OK)
        return status;
    enum terse_status opened = open_session(run, &options, &sampling, &error);
    free(never);
    if (opened != TERSE_OK || terse_detokenizer_new(run->setup.model, false, &run->detokenizer, &error) != TERSE_OK ||
        (run->reverse.n && terse_stop_new(run->reverse.text, run->reverse.n, &run->stop, &error) != TERSE_OK))
        return complain_error(&error);
    return EXIT_OK;
}

static bool names_sampling(const char *argument) {
    static const char *const names[] = {"--temp",          "--top-k",          "--typical",          "--top-p",
                                        "--min-p",         "--repeat-penalty", "--presence-penalty", "--frequency-penalty",
                                        "--repeat-last-n", "--temperature",    "--ignore-eos",       "-s",
                                        "--seed"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(argument, names[i]) == 0) return true;
    return false;
}

int cmd_run(int argc, char **argv) {
    const struct terse_sampling sampling = terse_sampling_defaults();
    struct run run = {.n_predict = 512,
                      .temperature = (double)sampling.temperature,
                      .top_k = sampling.top_k,
                      .typical_p = (double)sampling.typical_p,
                      .top_p = (double)sampling.top_p,
                      .min_p = (double)sampling.min_p,
                      .repeat_penalty = (double)sampling.repeat_penalty,
                      .repeat_last = sampling.repeat_last,
                      .seed = (int64_t)sampling.seed};
    setup_init(&run.setup);
    run.setup.method = DEFAULT_METHOD;
    for (int i = 0; i < argc; i++) run.sampling_given |= names_sampling(argv[i]);
    enum options_result parsed = parse(&run, argc, argv);
    if (parsed != OPTIONS_GO) return parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED;
    if (run.escape) resolve_escapes(&run);
    int status = check_options(&run);
    if (status == EXIT_OK) status = start(&run);
    if (status == EXIT_OK) {
        status = run.conversation ? run_conversation(&run) : run.chat ? one_turn(&run, run.prompt) : run_completion(&run);
        if (status != EXIT_FAILED) print_summary(&run);
        struct terse_error error;
        if (status != EXIT_FAILED && run.save_state && terse_session_save(run.session, run.save_state, &error) != TERSE_OK)
            status = complain_error(&error);
    }
    terse_stop_free(run.stop);
    terse_detokenizer_free(run.detokenizer);
    terse_session_free(run.session);
    setup_free(&run.setup);
    free(run.text);
    return status;
}
