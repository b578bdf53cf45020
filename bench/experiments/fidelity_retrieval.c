/* Runs retrieval tasks: one exact prefill of the prompt for all caches, then greedy decoding with each of them until the answer is
 * complete or wrong. */
#include "fidelity.h"

#include "base/clock.h"
#include "console.h"
#include "fidelity_needles.h"
#include "fidelity_prefill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t lengths[FIDELITY_LENGTHS] = {4096, 8192, 16384, 32000};
#define ANSWER_TOKENS 64 /* more than any right answer has */

struct task {
    enum needle_kind kind;
    uint32_t length, number;
};

static const char *task_key(const struct run *run, const struct task *task, char *key, size_t capacity) {
    char what[64];
    snprintf(what, sizeof what, "%s|%u|%u", needle_kind_name(task->kind), task->length, task->number);
    return fidelity_key(run, what, key, capacity);
}

static int32_t most_likely(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* Appends the token to `text`, and returns whether that is still a prefix of the answer. */
static bool continues(struct terse_detokenizer *detokenizer, int32_t token, const char *answer, char *text, size_t capacity) {
    size_t size, length = strlen(text);
    const char *piece = terse_detokenizer_push(detokenizer, token, &size);
    if (length + size >= capacity) return false;
    memcpy(text + length, piece, size + 1);
    return strncmp(text, answer, length + size) == 0;
}

/* Decodes greedily from `token` on, the first of the reply. *right: the reply is the answer and nothing else. */
static int answer(const struct fidelity *f, struct terse_session *session, int32_t token, const char *wanted, bool *right) {
    struct terse_detokenizer *detokenizer;
    struct terse_error error;
    char text[256] = "";
    *right = false;
    if (terse_detokenizer_new(f->model, false, &detokenizer, &error) != TERSE_OK) return complain_error(&error);
    int status = EXIT_OK;
    for (int i = 0; i < ANSWER_TOKENS && status == EXIT_OK; i++) {
        if (terse_token_ends(f->model, token)) {
            *right = strcmp(text, wanted) == 0;
            break;
        }
        if (!continues(detokenizer, token, wanted, text, sizeof text)) break;
        if (terse_session_decode(session, &token, 1, NULL, &error) != TERSE_OK) status = complain_error(&error);
        if (status == EXIT_OK) token = most_likely(terse_session_logits(session), f->info.vocabulary);
    }
    terse_detokenizer_free(detokenizer);
    return status;
}

static int add_answer(struct fidelity *f, const struct run *run, const struct task *task, const struct needle *needle,
                      struct opened *opened, int32_t first) {
    bool right;
    char key[256];
    double start = clock_now();
    int status = answer(f, opened->session, first, needle->answer, &right);
    if (status != EXIT_OK) return status;
    cJSON *line = fidelity_line(run);
    cJSON_AddStringToObject(line, "kind", needle_kind_name(task->kind));
    cJSON_AddNumberToObject(line, "length", task->length);
    cJSON_AddNumberToObject(line, "task", task->number);
    cJSON_AddBoolToObject(line, "right", right);
    cJSON_AddNumberToObject(line, "seconds", clock_now() - start);
    return store_add(f->store, STORE_NEEDLES, task_key(run, task, key, sizeof key), line);
}

/* Does the exact prefill, and finds the first token of the reply, which is the same for every cache. */
static int read_prompt(struct fidelity *f, const struct needle *needle, struct opened *lead, struct opened *opened, size_t n,
                       int32_t *first) {
    const struct run exact = {.cache = terse_cache_options_defaults()};
    struct terse_error error;
    struct terse_session_options options = fidelity_session_options(&exact, f->info.context);
    if (opened_new(f->engine, &options, lead, &error) != TERSE_OK) return complain_error(&error);
    if (prefill_many(lead, opened, n, needle->tokens, needle->n_tokens, &error) != TERSE_OK) return complain_error(&error);
    *first = most_likely(terse_session_logits(lead->session), f->info.vocabulary);
    return EXIT_OK;
}

static int run_task(struct fidelity *f, const struct haystack *haystack, const struct task *task, const struct run **runs,
                    struct opened *opened) {
    struct needle needle = {0};
    struct opened lead = {0};
    struct terse_error error;
    char key[256];
    size_t n = 0;
    int32_t first = 0;
    int status = EXIT_OK;
    for (size_t i = 0; i < f->n_runs && status == EXIT_OK; i++) {
        if (store_has(f->store, STORE_NEEDLES, task_key(&f->runs[i], task, key, sizeof key))) continue;
        struct terse_session_options options = fidelity_session_options(&f->runs[i], f->info.context);
        if (opened_new(f->engine, &options, &opened[n], &error) != TERSE_OK) status = complain_error(&error);
        runs[n] = &f->runs[i];
        if (status == EXIT_OK) n++;
    }
    if (status == EXIT_OK && n) status = needle_new(haystack, task->kind, task->length, task->number, &needle);
    double start = clock_now();
    if (status == EXIT_OK && n) status = read_prompt(f, &needle, &lead, opened, n, &first);
    double prefill = clock_now() - start;
    opened_free(&lead);
    for (size_t i = 0; i < n; i++) {
        if (status == EXIT_OK)
            status = console_interrupted() ? EXIT_INTERRUPTED : add_answer(f, runs[i], task, &needle, &opened[i], first);
        opened_free(&opened[i]);
    }
    if (status == EXIT_OK && n)
        printf("needle %s %u, task %u: %zu caches, prefill %.1f s, answers %.1f s\n", needle_kind_name(task->kind), task->length,
               task->number, n, prefill, clock_now() - start - prefill);
    fflush(stdout);
    needle_free(&needle);
    return status;
}

int fidelity_needles(struct fidelity *f) {
    struct haystack *haystack = NULL;
    const struct run **runs = calloc(f->n_runs, sizeof *runs);
    struct opened *opened = calloc(f->n_runs, sizeof *opened);
    int status = runs && opened ? EXIT_OK : complain("no memory for %zu methods", f->n_runs);
    if (status == EXIT_OK) status = haystack_new(f->model, f->text, f->n_bytes, f->words, &haystack);
    for (size_t i = 0; i < FIDELITY_LENGTHS && status == EXIT_OK; i++) {
        if (lengths[i] + ANSWER_TOKENS > f->info.context && f->n_tasks[i]) {
            remark("the model's context of %u tokens ends before tasks of %u", f->info.context, lengths[i]);
            break;
        }
        for (uint32_t number = 0; number < f->n_tasks[i]; number++)
            for (enum needle_kind kind = 0; kind < NEEDLE_KINDS && status == EXIT_OK; kind++)
                status = run_task(f, haystack, &(struct task){kind, lengths[i], number}, runs, opened);
    }
    haystack_free(haystack);
    free(opened);
    free(runs);
    return status;
}
