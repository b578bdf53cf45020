/* Saves and loads sessions: docs/state-format.md. Owns the sections of session, tokens and logits, and decides whether a file fits;
 * kv/state_file.c handles the container, and the backend the cache's sections. */
#include "engine/session_file.h"

#include "base/finite.h"
#include "base/memory.h"
#include "base/text.h"
#include "engine/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A saved_session lies so in the file, little-endian; the biases follow. */
struct saved_session {
    float temperature, typical_p, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    uint32_t top_k, repeat_last, n_biases;
    uint64_t seed, random;
    uint64_t first_prompt; /* of struct terse_session */
};

struct saved_bias {
    int32_t token;
    float bias;
};

_Static_assert(sizeof(struct saved_session) == 64 && sizeof(struct saved_bias) == 8, "as docs/state-format.md has it");

static struct state_identity identity_of(const struct terse_session *s) {
    return (struct state_identity){.model = model_of(s)->fingerprint, .codebook = session_codebook_hash(s)};
}

/* ---- Saving */

static void save_session(const struct terse_session *session, struct state_writer *writer) {
    const struct sampler *sampler = &session->sampler;
    const struct terse_sampling *s = &sampler->settings;
    const struct saved_session saved = {.temperature = s->temperature,
                                        .typical_p = s->typical_p,
                                        .top_p = s->top_p,
                                        .min_p = s->min_p,
                                        .repeat_penalty = s->repeat_penalty,
                                        .presence_penalty = s->presence_penalty,
                                        .frequency_penalty = s->frequency_penalty,
                                        .top_k = s->top_k,
                                        .repeat_last = s->repeat_last,
                                        .n_biases = (uint32_t)s->n_biases,
                                        .seed = s->seed,
                                        .random = sampler->random,
                                        .first_prompt = session->first_prompt};
    state_writer_begin(writer, STATE_SESSION);
    state_writer_put(writer, &saved, sizeof saved);
    for (size_t i = 0; i < s->n_biases; i++)
        state_writer_put(writer, &(struct saved_bias){sampler->biases[i].token, sampler->biases[i].bias},
                         sizeof(struct saved_bias));
}

enum terse_status terse_session_save(const struct terse_session *s, const char *path, struct terse_error *error) {
    struct state_writer *writer;
    char method[METHOD_IDENTITY];
    enum terse_status status = session_check_idle(s, error);
    if (status) return status;
    if (constraint_holds(&s->constraint))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "a session that requires JSON or holds tool calls to their tools cannot be saved: call "
                           "terse_session_allow_any_text before");
    if (s->sampler.settings.n_biases > UINT32_MAX)
        return status_fail(error, TERSE_E_UNSUPPORTED, "a session with %zu logit biases cannot be saved",
                           s->sampler.settings.n_biases);
    status = session_fetch_logits(s, error);
    if (!status) status = state_writer_new(path, &writer, error);
    if (status) return status;
    session_identity(s, method);
    state_writer_begin(writer, STATE_METHOD);
    state_writer_put(writer, method, strlen(method));
    save_session(s, writer);
    state_writer_begin(writer, STATE_TOKENS);
    state_writer_put(writer, s->tokens, s->n_tokens * sizeof *s->tokens);
    state_writer_begin(writer, STATE_LOGITS);
    if (s->has_logits) state_writer_put(writer, s->logits, model_of(s)->vocabulary * sizeof *s->logits);
    lead_save(s->engine->lead, s->cache, writer);
    struct state_identity identity = identity_of(s);
    return state_writer_finish(writer, &identity, error);
}

/* ---- Whether a file fits */

/* Writes the first item in which two lists differ to text[capacity]. */
static void first_difference(const char *list, size_t n, const char *other, char *text, size_t capacity) {
    size_t item = 0, i = 0;
    for (; i < n && list[i] == other[i]; i++)
        if (list[i] == ' ' && i && list[i - 1] == ',') item = i + 1;
    struct text_line line = text_line_begin(text, capacity);
    for (i = item; i < n && list[i] != ',';) i++;
    text_line_string(&line, list + item, i - item, false);
    text_line_end(&line);
}

static enum terse_status check_method(const struct terse_session *s, const struct state_file *file, struct terse_error *error) {
    char method[METHOD_IDENTITY], own[128], saved[128];
    size_t n;
    const char *text = state_file_section(file, STATE_METHOD, &n);
    session_identity(s, method);
    if (n >= METHOD_IDENTITY) return state_file_refuse(file, STATE_METHOD, "it is too long", error);
    if (n == strlen(method) && memcmp(text, method, n) == 0) return TERSE_OK;
    first_difference(text, n, method, saved, sizeof saved);
    first_difference(method, strlen(method), (const char *)memcpy((char[METHOD_IDENTITY]){0}, text, n), own, sizeof own);
    return status_fail(error, TERSE_E_ARGUMENT,
                       "%s: was saved with another cache (%s) than this session's (%s): use the method and options that it was "
                       "saved with%s",
                       state_file_name(file), saved, own,
                       strcmp(saved, METHOD_OWN_TRANSFORMS) == 0 ? ", which had no profile: --codebook none" : "");
}

static enum terse_status check_identity(const struct terse_session *s, const struct state_file *file, struct terse_error *error) {
    struct state_identity own = identity_of(s), saved = state_file_identity(file);
    if (saved.model != own.model)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "%s: was saved with another model (fingerprint %016" PRIx64 ", this one's is %016" PRIx64
                           "): use the one that it was saved with",
                           state_file_name(file), saved.model, own.model);
    enum terse_status status = check_method(s, file, error);
    if (status) return status;
    if (saved.codebook != own.codebook)
        return status_fail(error, TERSE_E_ARGUMENT,
                           "%s: was saved with another codebook (%016" PRIx64 ", this session's is %016" PRIx64
                           "): use the one that it was saved with",
                           state_file_name(file), saved.codebook, own.codebook);
    return TERSE_OK;
}

enum terse_status terse_state_method(const char *path, char *name, size_t capacity, struct terse_error *error) {
    struct state_file *file;
    size_t n, length = 0;
    enum terse_status status = state_file_open_method(path, &file, error);
    if (status) return status;
    const char *text = state_file_section(file, STATE_METHOD, &n);
    while (length < n && text[length] && text[length] != ',') length++; /* method_identity begins with the name */
    if (!length)
        status = state_file_refuse(file, STATE_METHOD, "it is empty", error);
    else if (length >= capacity)
        status =
            status_fail(error, TERSE_E_ARGUMENT, "the name of a state's method has %zu letters, room is for %zu", length, capacity);
    if (!status) snprintf(name, capacity, "%.*s", (int)length, text);
    state_file_close(file);
    return status;
}

/* ---- Loading */

static enum terse_status load_settings(struct terse_session *s, const struct state_file *file, struct terse_error *error) {
    struct saved_session saved;
    size_t bytes;
    const uint8_t *data = state_file_section(file, STATE_SESSION, &bytes);
    if (bytes < sizeof saved) return state_file_refuse(file, STATE_SESSION, "it is too short", error);
    memcpy(&saved, data, sizeof saved);
    if ((bytes - sizeof saved) / sizeof(struct saved_bias) != saved.n_biases || (bytes - sizeof saved) % sizeof(struct saved_bias))
        return state_file_refuse(file, STATE_SESSION, "it is of another size", error);
    struct terse_logit_bias *biases = memory_array(saved.n_biases, sizeof *biases);
    if (!biases) return status_no_memory(error, saved.n_biases * sizeof *biases, "logit biases");
    for (uint32_t i = 0; i < saved.n_biases; i++) {
        struct saved_bias bias;
        memcpy(&bias, data + sizeof saved + i * sizeof bias, sizeof bias);
        biases[i] = (struct terse_logit_bias){bias.token, bias.bias};
    }
    struct terse_sampling sampling = terse_sampling_defaults();
    sampling.temperature = saved.temperature;
    sampling.typical_p = saved.typical_p;
    sampling.top_p = saved.top_p;
    sampling.min_p = saved.min_p;
    sampling.repeat_penalty = saved.repeat_penalty;
    sampling.presence_penalty = saved.presence_penalty;
    sampling.frequency_penalty = saved.frequency_penalty;
    sampling.top_k = saved.top_k;
    sampling.repeat_last = saved.repeat_last;
    sampling.seed = saved.seed;
    sampling.biases = biases;
    sampling.n_biases = saved.n_biases;
    enum terse_status status = sampler_set(&s->sampler, &sampling, error);
    memory_free(biases);
    if (status == TERSE_E_ARGUMENT) return state_file_refuse(file, STATE_SESSION, "a setting is out of range", error);
    s->sampler.random = saved.random;
    s->first_prompt = saved.first_prompt;
    return status;
}

static enum terse_status load_tokens(struct terse_session *s, const struct state_file *file, struct terse_error *error) {
    size_t bytes, logit_bytes, vocabulary = model_of(s)->vocabulary;
    const int32_t *tokens = state_file_section(file, STATE_TOKENS, &bytes);
    const float *logits = state_file_section(file, STATE_LOGITS, &logit_bytes);
    size_t n = bytes / sizeof *tokens;
    if (bytes % sizeof *tokens || n != cache_length(s->cache))
        return state_file_refuse(file, STATE_TOKENS, "there are not as many as the cache has seen", error);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] != SESSION_NO_TOKEN && (tokens[i] < 0 || (size_t)tokens[i] >= vocabulary))
            return state_file_refuse(file, STATE_TOKENS, "one is outside the vocabulary", error);
    if (logit_bytes && (logit_bytes != vocabulary * sizeof *logits || !n))
        return state_file_refuse(file, STATE_LOGITS, "they are of another vocabulary", error);
    if (!all_finite(logits, logit_bytes / sizeof *logits))
        return state_file_refuse(file, STATE_LOGITS, "they are not finite", error);
    if (s->first_prompt > n) return state_file_refuse(file, STATE_SESSION, "its first prompt is longer than its tokens", error);
    enum terse_status status = session_check_room(s, 0, 0, error);
    if (!status) status = session_reserve_tokens(s, n, error);
    if (status) return status;
    if (n) memcpy(s->tokens, tokens, bytes);
    s->n_tokens = n;
    session_remember_tokens(s);
    if (logit_bytes) memcpy(s->logits, logits, logit_bytes);
    s->has_logits = logit_bytes > 0;
    return TERSE_OK;
}

struct loading {
    struct terse_session *session;
    struct state_file *file;
};

static enum terse_status load_cache(void *user, struct terse_error *error) {
    const struct loading *l = user;
    return lead_load(l->session->engine->lead, l->session->cache, l->file, error);
}

enum terse_status session_load(struct terse_engine *engine, const struct terse_session_options *options, struct state_file *file,
                               struct terse_session **session, struct terse_error *error) {
    struct terse_session *s;
    *session = NULL;
    enum terse_status status = terse_session_new(engine, options, &s, error);
    if (status) return status;
    status = check_identity(s, file, error);
    if (!status) status = load_settings(s, file, error);
    if (!status) status = engine_run(engine, load_cache, &(struct loading){s, file}, error);
    if (!status) status = load_tokens(s, file, error);
    if (status)
        terse_session_free(s);
    else
        *session = s;
    return status;
}

enum terse_status terse_session_load(struct terse_engine *engine, const struct terse_session_options *options, const char *path,
                                     struct terse_session **session, struct terse_error *error) {
    struct state_file *file;
    *session = NULL;
    enum terse_status status = state_file_open(path, &file, error);
    if (status) return status;
    do status = session_load(engine, options, file, session, error);
    while (engine_asks_for_room(engine, status, PREFIX_NOW));
    state_file_close(file); /* the cache owns it too, if it has pages in it */
    return status;
}
