/* Implements `terse run`: reads a text, streams what the model writes, and sums up what it cost. A run is a completion, one
 * question, or a chat. */
#include "chat.h"
#include "codebooks.h"
#include "commands.h"
#include "llama_flags.h"
#include "rate_choice.h"
#include "run.h"
#include "text.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPEAT_LAST_MOST 4096 /* that the library looks at */

/* ---- The ways to run: these, and a chat */

static int run_completion(struct run *run) {
    char *input;
    unsigned begins = terse_session_length(run->session) ? 0 : TERSE_TOKENIZE_ADD_SPECIAL;
    int status = run_join_input(run, run->prompt, &input);
    if (status == EXIT_OK && (run->file || run->prompt))
        status = run_read_text(run, input, strlen(input), begins | TERSE_TOKENIZE_PARSE_SPECIAL);
    if (status == EXIT_OK) status = run_generate(run);
    free(input);
    /* Models for chats take a text for a whole message, after which nothing follows. */
    if (status == EXIT_OK && !run->written && run->end >= 0 && text_try_chat(run->setup.model, NULL, NULL, NULL) == TERSE_OK)
        remark("the model ended the text at once: it is made for chats; --chat asks it as one, and -cnv talks to it");
    return status;
}

static int run_question(struct run *run) {
    int status = run_read_turn(run, run->prompt);
    return status == EXIT_OK && !run->full ? run_generate(run) : status;
}

/* ---- Options */

/* Replaces escapes in place, in the argument vector: what they stand for is never longer. Other letters stay as they are. */
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
    resolve(run->in_prefix);
    resolve(run->in_suffix);
    for (size_t i = 0; i < run->reverse.n; i++) resolve(run->reverse.text[i]);
}

static int check_options(const struct run *run) {
    if (run->chat && run->conversation) return complain("--chat (one question) and -cnv (a conversation) exclude each other");
    if (run->conversation && run->no_conversation) return complain("-cnv and -no-cnv exclude each other");
    if (run->chat_template && !run->chat && !run->conversation) return complain("--chat-template is for --chat and -cnv");
    if (run->template_file && !run->chat && !run->conversation) return complain("--chat-template-file is for --chat and -cnv");
    if (run->template_file && run->chat_template) return complain("--chat-template and --chat-template-file: give one of them");
    bool in_chat = run->chat || run->conversation, between = run->in_prefix || run->in_suffix;
    if (run->system && !in_chat) return complain("-sys is for --chat and -cnv");
    if (between && !in_chat) return complain("--in-prefix and --in-suffix are for the messages of --chat and -cnv");
    if (between && (run->system || run->chat_template))
        return complain("with --in-prefix or --in-suffix messages are read without a chat format: %s",
                        run->system ? "say with -f what -sys should" : "omit --chat-template");
    if (run->json_schema && run->ignore_end) return complain("--json-schema and --ignore-eos exclude each other");
    if (run->system && run->state) return complain("-sys goes before the first message of a chat, which --state has read already");
    for (size_t i = 0; i < run->reverse.n; i++)
        if (!*run->reverse.text[i]) return complain("-r takes some text");
    if (run->conversation && run->file && strcmp(run->file, "-") == 0)
        return complain("-f - and -cnv both read standard input: give the text as a file");
    if (run->state && run->file && in_chat)
        return complain("-f goes before the first message of a chat, which --state has read already: give the text with -p");
    int status = setup_check_codebook(&run->setup);
    return status == EXIT_OK && run->prompt ? text_check("the text of -p", run->prompt, strlen(run->prompt)) : status;
}

static enum options_result parse(struct run *run, int argc, char **argv) {
    const struct option options[] = {
        {"-f, --file", "FILE", OPTION_TEXT, &run->file, 0, 0, "text to read; -: standard input, as where nothing is given"},
        {"-p, --prompt", "TEXT", OPTION_TEXT, &run->prompt, 0, 0, "text to read; after -f and an empty line when both are given"},
        {"--chat", NULL, OPTION_FLAG, &run->chat, 0, 0, "put what is read as one user message and print the reply"},
        {"-cnv, --conversation|-i|--interactive|-if|--interactive-first", NULL, OPTION_FLAG, &run->conversation, 0, 0,
         "chat, one line a message, goes on after a \\ at its end; -f goes before the first; /help"},
        {"-sys, --system-prompt", "TEXT", OPTION_TEXT, &run->system, 0, 0, "the system message before the first one of a chat"},
        {"-e, --escape", NULL, OPTION_FLAG, &run->escape, 0, 0,
         "\\n, \\t, \\\" and the like in -p, -sys, -r, --in-prefix and --in-suffix are what they stand for"},
        {"-r, --reverse-prompt", "TEXT", OPTION_TEXTS, &run->reverse, 0, 0, "end a reply before this text; may come several times"},
        {"-j, --json-schema", "SCHEMA", OPTION_TEXT, &run->json_schema, 0, 0, "replies are JSON of this schema; {}: any JSON"},
        {"--chat-template", "NAME", OPTION_TEXT, &run->chat_template, 0, 0, "the chat format, when the model's own is not known"},
        {"--chat-template-file", "FILE", OPTION_TEXT, &run->template_file, 0, 0,
         "a Jinja template in the place of the model's own"},
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
        /* These are llama.cpp's: docs/llama-cpp-users.md. */
        {"--in-prefix", "TEXT", OPTION_TEXT, &run->in_prefix, 0, 0, NULL},
        {"--in-suffix", "TEXT", OPTION_TEXT, &run->in_suffix, 0, 0, NULL},
        {"--ignore-eos", NULL, OPTION_FLAG, &run->ignore_end, 0, 0, NULL},
        {"-l, --logit-bias", "TOKEN+X", OPTION_TEXTS, &run->biases, 0, 0, NULL},
        {"-no-cnv, --no-conversation", NULL, OPTION_FLAG, &run->no_conversation, 0, 0, NULL},
        {"--color", NULL, OPTION_FLAG, &run->color, 0, 0, NULL},
    };
    const struct option_set set = {
        .usage = "terse run [MODEL.gguf] -p TEXT | -f FILE [-p TEXT] | -cnv [options]",
        .about = "Reads a text and continues it. The text goes to stdout, progress and a summary to stderr.\n"
                 "Without --kv the cache is that of --kv auto: " METHOD_DEFAULT
                 ", or what terse tune or terse calibrate has measured.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .common = run->setup.common,
        .n_common = SETUP_COMMON,
        .llama_flags = true,
        .positional = &run->model,
        .n_positional = 1,
    };
    return options_parse(&set, argc, argv);
}

/* Makes `terse MODEL.gguf` a chat, where standard input is a terminal and there is nothing to read. */
static int choose_model(struct run *run) {
    bool nothing = !run->file && !run->prompt && !run->state && !run->chat;
    if (!run->model) return EXIT_OK;
    if (!setup_names_model(run->model)) return complain("unexpected argument \"%s\"; see --help", run->model);
    if (run->setup.model_path) return complain("two models: %s, and -m %s", run->model, run->setup.model_path);
    run->setup.model_path = run->model;
    if (nothing && !run->no_conversation && isatty(STDIN_FILENO)) run->conversation = true;
    return EXIT_OK;
}

/* Reads the text of -f; that of standard input where there is nothing else to read and it is no terminal. */
static int read_file(struct run *run) {
    bool nothing = !run->conversation && !run->file && !run->prompt && (!run->state || run->chat);
    if (nothing && !isatty(STDIN_FILENO)) run->file = "-";
    if (!console_is_first()) return EXIT_OK; /* rank 0 reads it */
    int status = run->file ? text_read(run->file, &run->text, &run->n_text) : EXIT_OK;
    if (status == EXIT_OK && nothing && !run->n_text)
        return complain("nothing to read: give -p TEXT, -f FILE or both, a text at standard input, or -cnv to chat");
    if (status == EXIT_OK && run->file && !run->n_text) return complain("%s is empty: nothing to read", run->file);
    return status;
}

/* Reads "15043-1": the number of a token, then what is added to its logit. */
static int read_bias(const struct run *run, const char *text, struct terse_logit_bias *bias) {
    char *sign, *end;
    errno = 0;
    long long token = strtoll(text, &sign, 10);
    double value = strtod(sign, &end);
    if (sign == text || (*sign != '+' && *sign != '-') || end == sign || *end || isnan(value) || errno)
        return complain("--logit-bias takes a token's number and what is added to its logit, as 15043+1 or 15043-inf, not \"%s\"",
                        text);
    if (token < 0 || token >= run->setup.info.vocabulary)
        return complain("--logit-bias %s: the model has tokens 0 to %u", text, run->setup.info.vocabulary - 1);
    *bias = (struct terse_logit_bias){(int32_t)token, (float)value};
    return EXIT_OK;
}

/* Sets the logit biases that the options give; with --ignore-eos, tokens that end a text are never chosen. */
static int set_biases(struct run *run) {
    uint32_t vocabulary = run->setup.info.vocabulary;
    size_t n = run->biases.n;
    int status = EXIT_OK;
    for (uint32_t token = 0; run->ignore_end && token < vocabulary; token++)
        n += terse_token_ends(run->setup.model, (int32_t)token);
    if (!n) return EXIT_OK;
    if (!(run->bias_list = malloc(n * sizeof *run->bias_list))) return complain("no memory for logit biases");
    run->sampling.biases = run->bias_list;
    run->sampling.n_biases = n;
    for (n = 0; n < run->biases.n && status == EXIT_OK; n++) status = read_bias(run, run->biases.text[n], &run->bias_list[n]);
    for (uint32_t token = 0; run->ignore_end && token < vocabulary; token++)
        if (terse_token_ends(run->setup.model, (int32_t)token))
            run->bias_list[n++] = (struct terse_logit_bias){.token = (int32_t)token, .bias = -INFINITY};
    return status;
}

/* Checks the schema before the prompt is read, with a session of no method. */
static int check_schema(const struct run *run) {
    struct terse_session_options options = terse_session_options_defaults();
    struct terse_session *session;
    struct terse_error error;
    if (!run->json_schema) return EXIT_OK;
    enum terse_status status = terse_session_new(run->setup.engine, &options, &session, &error);
    if (!status) status = terse_session_require_json(session, run->json_schema, &error);
    terse_session_free(session);
    return status ? complain_error(&error) : EXIT_OK;
}

/* Checks the chat format before the first message of a chat. */
static int check_chat_format(struct run *run) {
    struct terse_error error;
    size_t n;
    if (run->template_file && text_read(run->template_file, &run->template_text, &n) != EXIT_OK) return EXIT_FAILED;
    bool needed = (run->chat || run->conversation) && !run->in_prefix && !run->in_suffix;
    if (!needed || text_try_chat(run->setup.model, run->chat_template, run->template_text, &error) == TERSE_OK) return EXIT_OK;
    return complain_error(&error);
}

static int start(struct run *run) {
    struct terse_error error;
    run->sampling = (struct terse_sampling){
        .size = sizeof run->sampling,
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
    /* The text is read before a model is loaded or a codebook learned for it. */
    int status = read_file(run);
    if (status == EXIT_OK) status = setup_load(&run->setup);
    if (status == EXIT_OK) status = check_chat_format(run);
    if (status == EXIT_OK) status = set_biases(run);
    if (status == EXIT_OK) status = rate_choice_make(&run->setup, run->state);
    if (status == EXIT_OK && run->save_state) status = codebooks_check_place(run->save_state, false);
    if (status == EXIT_OK && codebooks_needed(&run->setup)) status = run_check_length(run);
    if (status == EXIT_OK) status = setup_engine(&run->setup);
    if (status == EXIT_OK) status = check_schema(run);
    if (status == EXIT_OK) setup_remark_eviction(&run->setup);
    if (status != EXIT_OK) return status;
    run->options = setup_session_options(&run->setup);
    if ((status = codebooks_provide(&run->setup, &run->options)) != EXIT_OK) return status;
    struct terse_chat_options chats = run_chat_options(run);
    run->dims = (run->chat || run->conversation) && !run->in_prefix && !run->in_suffix && output_is_terminal();
    if (run_open_session(run, run->state, &run->session, &error) != TERSE_OK ||
        (run->dims ? terse_detokenizer_new_for_reply(run->setup.model, &chats, &run->detokenizer, &error)
                   : terse_detokenizer_new(run->setup.model, false, &run->detokenizer, &error)) != TERSE_OK ||
        (run->reverse.n && terse_stop_new(run->reverse.text, run->reverse.n, &run->stop, &error) != TERSE_OK))
        return complain_error(&error);
    run->replied = terse_session_length(run->session) > 0;
    rate_choice_say(&run->setup);
    return EXIT_OK;
}

static bool names_sampling(const char *argument) {
    static const char *const names[] = {"--temp",
                                        "--top-k",
                                        "--typical",
                                        "--top-p",
                                        "--min-p",
                                        "--repeat-penalty",
                                        "--presence-penalty",
                                        "--frequency-penalty",
                                        "--repeat-last-n",
                                        "--temperature",
                                        "--ignore-eos",
                                        "-s",
                                        "--seed",
                                        "--logit-bias",
                                        "-l"};
    size_t n = strcspn(argument, "=");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == n && memcmp(argument, names[i], n) == 0) return true;
    return false;
}

int cmd_run(int argc, char **argv) {
    const struct terse_sampling sampling = terse_sampling_defaults();
    struct run run = {.n_predict = 512,
                      .end = -1,
                      .temperature = (double)sampling.temperature,
                      .top_k = sampling.top_k,
                      .typical_p = (double)sampling.typical_p,
                      .top_p = (double)sampling.top_p,
                      .min_p = (double)sampling.min_p,
                      .repeat_penalty = (double)sampling.repeat_penalty,
                      .repeat_last = sampling.repeat_last,
                      .seed = (int64_t)sampling.seed};
    setup_init(&run.setup);
    run.setup.method = NULL;
    for (int i = 0; i < argc; i++) run.sampling_given |= names_sampling(argv[i]);
    enum options_result parsed = parse(&run, argc, argv);
    if (parsed != OPTIONS_GO) return parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED;
    run.chat_template = llama_template_name(run.chat_template);
    if (run.escape) resolve_escapes(&run);
    int status = choose_model(&run);
    if (status == EXIT_OK) status = rate_choice_take(&run.setup);
    if (status == EXIT_OK) status = check_options(&run);
    if (status == EXIT_OK) status = start(&run);
    if (status == EXIT_OK) {
        bool refused = false;
        status = run.conversation ? chat(&run, &refused) : run.chat ? run_question(&run) : run_completion(&run);
        if (status != EXIT_FAILED) run_print_summary(&run);
        struct terse_error error;
        if (status != EXIT_FAILED && run.save_state && terse_session_save(run.session, run.save_state, &error) != TERSE_OK)
            status = complain_error(&error);
        if (status == EXIT_OK && refused) status = EXIT_FAILED;
    }
    terse_stop_free(run.stop);
    terse_reply_reader_free(run.reader);
    terse_detokenizer_free(run.detokenizer);
    terse_session_free(run.session);
    setup_free(&run.setup);
    free(run.text);
    free(run.template_text);
    free(run.bias_list);
    return status;
}
