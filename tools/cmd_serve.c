/* Implements `terse serve`: one engine behind HTTP, for OpenAI's clients and llama.cpp's. */
#include "codebooks.h"
#include "commands.h"
#include "llama_flags.h"
#include "rate_choice.h"
#include "serve/http.h"
#include "setup.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PREFIXES 32 /* ends of prompts and of replies: 16 of each */

struct serve {
    struct setup setup;
    const char *host, *chat_template, *template_file, *api_key, *api_key_file, *state_dir, *slot_folder;
    const char *alias; /* NULL: the model's file names it */
    int64_t port, parallel, queue, n_predict;
    double temperature;
    bool chats;          /* the model has a chat format */
    char *template_text; /* of --chat-template-file, or NULL */
    char *key_text;      /* of the file: server.keys point into it */
    char model_name[128];
    struct server server;
    struct store *store;
    size_t kept; /* prefixes of the store */
    struct http *http;
};

static enum options_result parse(struct serve *serve, int argc, char **argv) {
    const struct option options[] = {
        {"--host", "ADDRESS", OPTION_TEXT, &serve->host, 0, 0, "listen there; 0.0.0.0: for all machines that reach this one"},
        {"--port", "N", OPTION_INTEGER, &serve->port, 0, 65535, "listen there; 0: at a port that is free"},
        {"-np, --parallel", "N", OPTION_INTEGER, &serve->parallel, 1, 1024, "slots: replies that are written at the same time"},
        {"--queue", "N", OPTION_INTEGER, &serve->queue, 1, 100000, "requests that may wait for a slot; more are refused with 429"},
        {"-a, --alias", "NAME", OPTION_TEXT, &serve->alias, 0, 0, "the model's name in replies; without it its file's"},
        {"-n, --predict|--n-predict", "N", OPTION_INTEGER, &serve->n_predict, -1, INT32_MAX,
         "tokens of a reply where a request does not say; -1: until the context is full, of /v1/completions 16"},
        {"--temp|--temperature", "X", OPTION_NUMBER, &serve->temperature, 0, 100, "temperature where a request does not say"},
        {"-c, --ctx-size", "N", OPTION_INTEGER, &serve->setup.context, 0, UINT32_MAX,
         "context of each slot in tokens; 0: the model's"},
        {"--kv", "METHOD", OPTION_TEXT, &serve->setup.method, 0, 0, serve->setup.method_help},
        {"--chat-template", "NAME", OPTION_TEXT, &serve->chat_template, 0, 0, "the chat format, when the model's own is not known"},
        {"--chat-template-file", "FILE", OPTION_TEXT, &serve->template_file, 0, 0,
         "a Jinja template in the place of the model's own"},
        {"--state-dir", "DIR", OPTION_TEXT, &serve->state_dir, 0, 0,
         "keep what replies have read there, so that it need not be read again after a restart"},
        {"--slot-save-path", "DIR", OPTION_TEXT, &serve->slot_folder, 0, 0,
         "where /slots/ID?action=save writes; without it --state-dir's"},
        {"--api-key", "KEY", OPTION_TEXT, &serve->api_key, 0, 0, "clients must say Authorization: Bearer KEY"},
        {"--api-key-file", "FILE", OPTION_TEXT, &serve->api_key_file, 0, 0, "the same with several keys, one a line"},
        {"--cors", "ORIGIN", OPTION_TEXT, &serve->server.cors, 0, 0,
         "pages of this origin may ask, as https://example.org; *: of any"},
        {"--max-body", "SIZE", OPTION_SIZE, &serve->server.most_body, 0, 0, "refuse larger requests; 16M"},
        {"--timeout", "SECONDS", OPTION_INTEGER, &serve->server.timeout, 1, 86400, "time that a client has to send a request"},
    };
    const struct option_set set = {
        .usage = "terse serve [options]",
        .about =
            "Serves the model over HTTP: OpenAI's chat and text completions, and llama.cpp's addresses (docs/serve.md). SIGINT or\n"
            "SIGTERM lets running replies end; a second one does not. Without --kv the cache is that of\n"
            "--kv auto: " METHOD_DEFAULT ", or what terse tune or terse calibrate has measured.\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .common = serve->setup.common,
        .n_common = SETUP_COMMON,
        .llama_flags = true,
    };
    return options_parse(&set, argc, argv);
}

/* ---- Keys */

static int add_key(struct keys *keys, char *key) {
    char **larger = realloc(keys->key, (keys->n + 1) * sizeof *larger);
    if (!larger) return complain("no memory for API keys");
    keys->key = larger;
    keys->key[keys->n++] = key;
    return EXIT_OK;
}

static int read_keys(struct serve *serve) {
    struct keys *keys = &serve->server.keys;
    size_t n;
    if (serve->api_key && !*serve->api_key) return complain("--api-key is empty: give a key, or leave the option out");
    int status = serve->api_key ? add_key(keys, (char *)serve->api_key) : EXIT_OK;
    if (status != EXIT_OK || !serve->api_key_file) return status;
    if ((status = text_read(serve->api_key_file, &serve->key_text, &n)) != EXIT_OK) return status;
    char *rest = serve->key_text;
    size_t before = keys->n;
    for (char *line; status == EXIT_OK && (line = strtok_r(rest, "\r\n", &rest));) {
        line += strspn(line, " \t");
        line[strcspn(line, " \t")] = 0;
        if (*line && *line != '#') status = add_key(keys, line);
    }
    if (status == EXIT_OK && keys->n == before)
        return complain("%s has no API key: write one a line, or leave --api-key-file out", serve->api_key_file);
    return status;
}

/* ---- Starting */

/* Names the model as -a says; else "lab-27m" if it is the built-in one, or by its file without folder and ending. */
static void name_model(struct serve *serve) {
    const char *path = serve->setup.model_path, *slash = path ? strrchr(path, '/') : NULL;
    const char *name = serve->alias ? serve->alias : !path ? "lab-27m" : slash ? slash + 1 : path;
    snprintf(serve->model_name, sizeof serve->model_name, "%s", name);
    size_t n = strlen(serve->model_name);
    if (!serve->alias && path && n > 5 && strcmp(serve->model_name + n - 5, ".gguf") == 0) serve->model_name[n - 5] = 0;
    text_make_printable(serve->model_name);
}

static void describe(struct serve *serve) {
    struct server *server = &serve->server;
    struct setup *setup = &serve->setup;
    name_model(serve);
    server->model = setup->info;
    server->model_name = serve->model_name;
    setup_method_text(setup, server->method, sizeof server->method);
    server->slots = (uint32_t)serve->parallel;
    server->queue = (uint32_t)serve->queue;
    server->kv_budget = setup->kv_budget;
    server->limits = (struct request_limits){.model = setup->model,
                                             .vocabulary = setup->info.vocabulary,
                                             .context = setup->context ? (uint32_t)setup->context : setup->info.context,
                                             .slots = server->slots,
                                             .chat_format = serve->chat_template,
                                             .chat_template = serve->template_text,
                                             .temperature = &serve->temperature,
                                             .reply_tokens = serve->n_predict > 0 ? (uint32_t)serve->n_predict : 0};
}

/* Checks once whether the model has a chat format, which no request changes. Without one the server still completes texts, and says that it refuses
 * chats. */
static int check_chat_format(struct serve *serve) {
    struct terse_error error;
    size_t n;
    serve->chat_template = llama_template_name(serve->chat_template);
    if (serve->template_file && serve->chat_template) return complain("--chat-template and --chat-template-file: give one of them");
    if (serve->template_file && text_read(serve->template_file, &serve->template_text, &n) != EXIT_OK) return EXIT_FAILED;
    serve->chats = text_try_chat(serve->setup.model, serve->chat_template, serve->template_text, &error) == TERSE_OK;
    if (serve->chats) return EXIT_OK;
    if (serve->chat_template || serve->template_file) return complain_error(&error);
    remark("chats are refused: %s", error.message);
    return EXIT_OK;
}

/* Checks the options, before a model is loaded or anything is learned. */
static int check_options(struct serve *serve, int *socket_fd) {
    if (!serve->n_predict) return complain("-n 0: replies of no tokens; -1: as each request says");
    if (serve->alias && !*serve->alias) return complain("-a is empty: give a name, or leave the option out");
    int status = rate_choice_take(&serve->setup);
    if (status == EXIT_OK) status = read_keys(serve);
    if (status == EXIT_OK) status = setup_check_codebook(&serve->setup);
    if (status == EXIT_OK && serve->state_dir) status = store_check("--state-dir", serve->state_dir);
    if (status == EXIT_OK && serve->slot_folder) status = store_check("--slot-save-path", serve->slot_folder);
    if (status == EXIT_OK && console_is_first() && (*socket_fd = http_listen(serve->host, (uint16_t)serve->port)) < 0)
        status = EXIT_FAILED;
    return status;
}

static int start(struct serve *serve) {
    struct terse_error error;
    int socket_fd = -1, status = check_options(serve, &socket_fd);
    if (status == EXIT_OK) status = setup_load(&serve->setup);
    if (status == EXIT_OK) status = check_chat_format(serve);
    if (status == EXIT_OK) status = rate_choice_make(&serve->setup, NULL);
    if (status == EXIT_OK) status = setup_engine(&serve->setup);
    if (status == EXIT_OK) setup_remark_eviction(&serve->setup);
    if (status != EXIT_OK) return status;
    struct scheduler_options options = {.engine = serve->setup.engine,
                                        .session = setup_session_options(&serve->setup),
                                        .slots = (uint32_t)serve->parallel,
                                        .queue = (uint32_t)serve->queue};
    if ((status = codebooks_provide(&serve->setup, &options.session)) != EXIT_OK) return status;
    options.session.progress.report = NULL; /* it draws a bar */
    if (serve->state_dir &&
        (status = store_open(serve->state_dir, serve->setup.engine, &options.session, &serve->store, &serve->kept)) != EXIT_OK)
        return status;
    options.store = serve->store;
    serve->server.slot_folder = serve->slot_folder ? serve->slot_folder : serve->state_dir;
    options.saves_slots = serve->server.slot_folder != NULL;
    options.metrics = &serve->server.metrics;
    describe(serve);
    if (scheduler_start(&options, &serve->server.scheduler, &error) != TERSE_OK) return complain_error(&error);
    return http_start(&serve->server, socket_fd, &serve->http);
}

static void say_where(const struct serve *serve) {
    const struct server *server = &serve->server;
    const char *address = http_address(serve->http);
    char budget[64] = "no limit to KV caches", kept[64] = "";
    if (serve->kept) snprintf(kept, sizeof kept, ", %zu saved prefixes", serve->kept);
    if (server->kv_budget) snprintf(budget, sizeof budget, "KV caches up to %.0f MiB", (double)server->kv_budget / 0x1p20);
    remark(
        "%s: model %s, KV cache %s, %u slots of %u tokens, %s%s%s\ntry: curl %s/v1/%scompletions%s -d '{%s, \"max_tokens\": 32}'",
        address, server->model_name, server->method, server->slots, server->limits.context, budget, kept,
        server->keys.n ? ", with API keys" : "", address, serve->chats ? "chat/" : "",
        server->keys.n ? " -H \"Authorization: Bearer KEY\"" : "",
        serve->chats ? "\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]" : "\"prompt\": \"Once upon a time\"");
}

/* ---- Running and stopping */

static void pause_briefly(void) { nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); }

static void run(struct serve *serve) {
    double cut = 0;
    while (!console_interrupted()) {
        double now = console_seconds();
        if (now - cut >= 0.5) http_cut_slow(serve->http);
        if (now - cut >= 0.5) cut = now;
        pause_briefly();
    }
    remark("stopping: running replies end; a second signal ends them at once");
    atomic_store(&serve->server.stopping, true);
    scheduler_stop(serve->server.scheduler);
    while (!scheduler_idle(serve->server.scheduler)) pause_briefly();
    /* Clients have a little time to take the ends of their replies. */
    for (int i = 0; i < 40 && http_open_requests(serve->http); i++) pause_briefly();
}

int cmd_serve(int argc, char **argv) {
    struct serve serve = {.host = "127.0.0.1", .port = 8080, .parallel = 4, .queue = 64, .n_predict = -1};
    serve.temperature = (double)terse_sampling_defaults().temperature;
    serve.server.most_body = UINT64_C(16) << 20;
    serve.server.timeout = 60;
    metrics_begin(&serve.server.metrics);
    setup_init(&serve.setup);
    serve.setup.method = NULL;
    serve.setup.prefixes = PREFIXES;
    enum options_result parsed = parse(&serve, argc, argv);
    if (parsed != OPTIONS_GO) return parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED;
    int status = start(&serve);
    if (status == EXIT_OK) {
        rate_choice_say(&serve.setup);
        say_where(&serve);
        run(&serve);
    }
    if (serve.server.scheduler) {
        scheduler_stop(serve.server.scheduler);
        scheduler_wait(serve.server.scheduler); /* HTTP's threads ask it until they end, and must not be suspended by then */
    }
    http_stop(serve.http);
    scheduler_free(serve.server.scheduler);
    metrics_end(&serve.server.metrics);
    store_close(serve.store);
    setup_free(&serve.setup);
    free(serve.server.keys.key);
    free(serve.key_text);
    free(serve.template_text);
    return status;
}
