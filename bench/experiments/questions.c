/* Asks questions about a text that one cache holds, as `terse run --save-state` and then `terse run --state` for each of them would, but in one process:
 * on a GPU the start of a process takes longer than a reply.
 *
 *     questions -m MODEL.gguf -f TEXT --kv METHOD [--codebook FILE|none] [--device D] --state FILE < QUESTIONS
 *
 * A line of standard input is a question, which the model completes behind an empty line. The program prints of which commit it is, and a line of JSON:
 * {"tokens": of the text, "bits": of the cache per value, "replies": [one of each question]}. bench/experiments/quality.py calls it. */
#include "commit.h"
#include "console.h"
#include "options.h"
#include "terse.h"
#include "text.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct questions {
    const char *model_path, *file, *method, *codebook_path, *device, *state;
    int64_t threads, predict;
    struct terse_model *model;
    struct terse_engine *engine;
    struct terse_codebook *codebook;
    struct terse_session_options options;
    cJSON *results, *replies;
};

/* Reads text[n] behind what the session holds. */
static int read_behind(struct questions *q, struct terse_session *session, const char *text, size_t n, unsigned flags) {
    struct terse_error error;
    int32_t *tokens;
    size_t n_tokens;
    int status = text_tokenize(q->model, text, n, flags | TERSE_TOKENIZE_PARSE_SPECIAL, &tokens, &n_tokens);
    if (status != EXIT_OK) return status;
    if (terse_session_prefill(session, tokens, n_tokens, NULL, &error)) status = complain_error(&error);
    free(tokens);
    return status;
}

/* Writes the likeliest tokens to *reply, which is released by free. */
static int write_reply(struct questions *q, struct terse_session *session, char **reply) {
    struct terse_error error;
    struct terse_detokenizer *detokenizer;
    size_t size = 0, n;
    int status = EXIT_OK;
    FILE *out = open_memstream(reply, &size);
    if (!out) return complain("no memory for a reply");
    if (terse_detokenizer_new(q->model, false, &detokenizer, &error)) {
        fclose(out);
        return complain_error(&error);
    }
    for (int64_t i = 0; i < q->predict && status == EXIT_OK; i++) {
        int32_t token;
        if (console_interrupted())
            status = EXIT_INTERRUPTED;
        else if (terse_session_sample(session, &token, &error))
            status = complain_error(&error);
        else if (terse_token_ends(q->model, token))
            break;
        else {
            const char *text = terse_detokenizer_push(detokenizer, token, &n);
            fwrite(text, 1, n, out);
            if (terse_session_decode(session, &token, 1, NULL, &error)) status = complain_error(&error);
        }
    }
    const char *text = terse_detokenizer_finish(detokenizer, &n);
    fwrite(text, 1, n, out);
    terse_detokenizer_free(detokenizer);
    if (fclose(out) != 0) return complain("no memory for a reply");
    return status;
}

/* Asks a question of the saved session. */
static int ask(struct questions *q, const char *question) {
    const struct terse_sampling greedy = {.size = sizeof greedy, .typical_p = 1, .top_p = 1, .repeat_penalty = 1};
    struct terse_error error;
    struct terse_session *session;
    char *prompt = NULL, *reply = NULL;
    if (terse_session_load(q->engine, &q->options, q->state, &session, &error)) return complain_error(&error);
    int status = terse_session_set_sampling(session, &greedy, &error) ? complain_error(&error) : EXIT_OK;
    if (status == EXIT_OK && !(prompt = malloc(strlen(question) + 3))) status = complain("no memory for a question");
    if (status == EXIT_OK) {
        sprintf(prompt, "\n\n%s", question);
        status = read_behind(q, session, prompt, strlen(prompt), 0);
    }
    if (status == EXIT_OK) status = write_reply(q, session, &reply);
    if (status == EXIT_OK && !cJSON_AddItemToArray(q->replies, cJSON_CreateString(reply)))
        status = complain("no memory for a reply");
    terse_session_free(session);
    free(prompt);
    free(reply);
    return status;
}

/* Reads the text and saves the session. */
static int read_whole(struct questions *q) {
    struct terse_error error;
    struct terse_session *session;
    struct terse_cache_report cache;
    char *text;
    size_t n;
    int status = text_read(q->file, &text, &n);
    if (status != EXIT_OK) return status;
    if (n && text[n - 1] == '\n') n--; /* as terse run */
    if (terse_session_new(q->engine, &q->options, &session, &error)) {
        free(text);
        return complain_error(&error);
    }
    status = read_behind(q, session, text, n, TERSE_TOKENIZE_ADD_SPECIAL);
    free(text);
    if (status == EXIT_OK && terse_session_save(session, q->state, &error)) status = complain_error(&error);
    terse_session_cache(session, &cache);
    cJSON_AddNumberToObject(q->results, "tokens", (double)cache.tokens);
    cJSON_AddNumberToObject(q->results, "bits", cache.bits_per_value);
    terse_session_free(session);
    return status;
}

static int start(struct questions *q) {
    struct terse_error error;
    struct terse_engine_options engine = terse_engine_options_defaults();
    bool none = !q->codebook_path || strcmp(q->codebook_path, "none") == 0;
    q->options = terse_session_options_defaults();
    q->options.cache.method = q->method;
    engine.threads = (uint32_t)q->threads;
    engine.device = q->device;
    if (terse_model_load(q->model_path, &q->model, &error) ||
        (!none && terse_codebook_load(q->codebook_path, &q->codebook, &error)) ||
        terse_engine_new(q->model, &engine, &q->engine, &error))
        return complain_error(&error);
    q->options.cache.codebook = q->codebook;
    q->results = cJSON_CreateObject();
    return q->results && (q->replies = cJSON_AddArrayToObject(q->results, "replies")) ? EXIT_OK : complain("no memory for replies");
}

static int run(struct questions *q) {
    char *line = NULL, *text;
    size_t capacity = 0;
    int status = start(q);
    if (status == EXIT_OK) status = read_whole(q);
    while (status == EXIT_OK && getline(&line, &capacity, stdin) > 0) {
        line[strcspn(line, "\n")] = 0;
        status = ask(q, line);
    }
    free(line);
    if (status != EXIT_OK) return status;
    if (!(text = cJSON_PrintUnformatted(q->results))) return complain("no memory for replies");
    printf("commit %s\n%s\n", build_commit(), text);
    cJSON_free(text);
    return EXIT_OK;
}

int main(int argc, char **argv) {
    struct questions q = {.method = "f16", .device = "cpu", .predict = 12};
    const struct option options[] = {
        {"-m, --model", "FILE", OPTION_TEXT, &q.model_path, 0, 0, "GGUF model"},
        {"-f, --file", "FILE", OPTION_TEXT, &q.file, 0, 0, "text to read"},
        {"--kv", "METHOD", OPTION_TEXT, &q.method, 0, 0, "method of the cache"},
        {"--codebook", "FILE", OPTION_TEXT, &q.codebook_path, 0, 0, "of the method; none: of none"},
        {"--device", "NAME", OPTION_TEXT, &q.device, 0, 0, "cpu or cuda"},
        {"--state", "FILE", OPTION_TEXT, &q.state, 0, 0, "where the session lies that has read the text"},
        {"-n, --predict", "N", OPTION_INTEGER, &q.predict, 1, 1 << 20, "tokens of a reply, at most"},
        {"-t, --threads", "N", OPTION_INTEGER, &q.threads, 0, 1024, "threads; 0: one per processor"},
    };
    const struct option_set set = {.usage = "questions -m MODEL -f TEXT --kv METHOD --state FILE [options] < QUESTIONS",
                                   .about = "Completes each line of standard input behind a text that the cache holds.\n",
                                   .options = options,
                                   .n_options = sizeof options / sizeof options[0]};
    console_begin("questions");
    enum options_result parsed = options_parse(&set, argc - 1, argv + 1);
    if (parsed != OPTIONS_GO) return console_end(parsed == OPTIONS_HELP ? EXIT_OK : EXIT_FAILED);
    if (!q.model_path || !q.file || !q.state)
        return console_end(complain("-m MODEL, -f TEXT and --state FILE are needed; see --help"));
    int status = run(&q);
    cJSON_Delete(q.results);
    terse_engine_free(q.engine);
    terse_codebook_free(q.codebook);
    terse_model_free(q.model);
    return console_end(status);
}
