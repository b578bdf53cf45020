#include "infill.h"

#include "buffer.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_EXTRA = 1024 };

/* A writer adds tokens, int32_t each, to a prompt. */
struct writer {
    const struct request_limits *limits;
    struct buffer tokens;
    struct api_error *error;
};

static size_t tokens_in(const struct writer *w) { return w->tokens.n / sizeof(int32_t); }

static void add_token(struct writer *w, int32_t token) { buffer_add(&w->tokens, &token, sizeof token); }

/* Adds the model's token for a mark. Returns false where it has none. */
static bool add_mark(struct writer *w, enum terse_fim_mark mark) {
    int32_t token = terse_token_fim(w->limits->model, mark);
    if (token >= 0) add_token(w, token);
    return token >= 0;
}

/* Adds a text; `special`: what looks like a special token is one. Returns false, with *error, without memory. */
static bool add_text(struct writer *w, const char *text, bool special) {
    int32_t *tokens;
    size_t n;
    if (!text || !*text) return true;
    if (!request_tokenize(w->limits->model, text, strlen(text), false, special, &tokens, &n, w->error)) return false;
    buffer_add(&w->tokens, tokens, n * sizeof *tokens);
    free(tokens);
    return !w->tokens.failed || api_fail(w->error, 503, NULL, NULL, "no memory");
}

/* ---- Other files. Their names and what stands between them are llama-server's, whose users' models have seen them so. */

static bool add_extra(struct writer *w, const cJSON *file) {
    const char *text = NULL, *name = NULL;
    if (!cJSON_IsObject(file))
        return api_fail(w->error, 400, NULL, "input_extra", "\"input_extra\" must be an array of objects, not of %s",
                        json_kind(file));
    if (!json_text(file, "text", &text, w->error) || !json_text(file, "filename", &name, w->error)) return false;
    if (!text) return api_fail(w->error, 400, NULL, "input_extra", "an entry of \"input_extra\" has no \"text\"");
    if (!add_mark(w, TERSE_FIM_FILE)) return add_text(w, "\n\n--- snippet ---\n\n", false) && add_text(w, text, false);
    return add_text(w, name ? name : "tmp", false) && add_text(w, "\n", false) && add_text(w, text, false);
}

/* Adds as many of the last files as `room` tokens hold. */
static bool add_extras(struct writer *w, const cJSON *files, size_t room) {
    const cJSON *file;
    size_t left_out = 0, first = tokens_in(w), n = 0, begins[MOST_EXTRA + 1];
    if (files && !cJSON_IsArray(files))
        return api_fail(w->error, 400, NULL, "input_extra", "\"input_extra\" must be an array, not %s", json_kind(files));
    if (files && cJSON_GetArraySize(files) > MOST_EXTRA)
        return api_fail(w->error, 400, NULL, "input_extra", "\"input_extra\" has more than %d entries", MOST_EXTRA);
    cJSON_ArrayForEach(file, files) {
        begins[n++] = tokens_in(w);
        if (!add_extra(w, file)) return false;
    }
    begins[n] = tokens_in(w);
    while (left_out < n && begins[n] - begins[left_out] > room) left_out++;
    size_t kept = (begins[n] - begins[left_out]) * sizeof(int32_t);
    if (left_out) memmove(w->tokens.bytes + first * sizeof(int32_t), w->tokens.bytes + begins[left_out] * sizeof(int32_t), kept);
    w->tokens.n = first * sizeof(int32_t) + kept;
    return true;
}

/* ---- */

static bool check_marks(const struct request_limits *limits, struct api_error *error) {
    for (enum terse_fim_mark mark = TERSE_FIM_PREFIX; mark <= TERSE_FIM_MIDDLE; mark++)
        if (terse_token_fim(limits->model, mark) < 0)
            return api_fail(error, 501, NULL, NULL,
                            "this model does not fill in the middle: it has no token for %s; use a model that was trained for it, "
                            "such as Qwen2.5-Coder",
                            mark == TERSE_FIM_PREFIX   ? "a prefix"
                            : mark == TERSE_FIM_SUFFIX ? "a suffix"
                                                       : "the middle");
    return true;
}

/* Adds what comes behind the other files: the file that the reply is of. */
static bool add_file(struct writer *w, const cJSON *body) {
    const char *prefix = NULL, *suffix = NULL, *prompt = NULL;
    bool begins;
    int32_t bos = terse_token_bos(w->limits->model, &begins);
    if (!json_text(body, "input_prefix", &prefix, w->error) || !json_text(body, "input_suffix", &suffix, w->error) ||
        !json_text(body, "prompt", &prompt, w->error))
        return false;
    if (!prefix) return api_fail(w->error, 400, NULL, "input_prefix", "\"input_prefix\" is missing");
    if (!suffix) return api_fail(w->error, 400, NULL, "input_suffix", "\"input_suffix\" is missing");
    if (add_mark(w, TERSE_FIM_FILE) && !add_text(w, "filename\n", false)) return false;
    if (begins) add_token(w, bos);
    add_mark(w, TERSE_FIM_PREFIX);
    if (!add_text(w, prefix, false) || !add_text(w, prompt, true)) return false;
    add_mark(w, TERSE_FIM_SUFFIX);
    if (!add_text(w, suffix, false)) return false;
    add_mark(w, TERSE_FIM_MIDDLE);
    return true;
}

static bool write_prompt(struct writer *w, struct writer *file, const cJSON *body, const struct request *r) {
    uint64_t context = w->limits->context, reply = r->max_tokens > 1 ? (uint64_t)r->max_tokens : 1;
    if (!check_marks(w->limits, w->error) || !add_file(file, body)) return false;
    if (add_mark(w, TERSE_FIM_REPOSITORY) && !add_text(w, "myproject\n", false)) return false;
    uint64_t taken = tokens_in(w) + tokens_in(file) + reply;
    if (!add_extras(w, json_field(body, "input_extra"), context > taken ? (size_t)(context - taken) : 0)) return false;
    buffer_add(&w->tokens, file->tokens.bytes, file->tokens.n);
    return !(w->tokens.failed || file->tokens.failed) || api_fail(w->error, 503, NULL, NULL, "no memory");
}

bool infill_read(const struct request_limits *limits, const cJSON *body, struct request *request, struct api_error *error) {
    struct writer whole = {.limits = limits, .error = error}, file = whole;
    bool good = write_prompt(&whole, &file, body, request);
    buffer_free(&file.tokens);
    request->prompts->tokens = (int32_t *)(void *)whole.tokens.bytes;
    request->prompts->n = tokens_in(&whole);
    return good;
}
