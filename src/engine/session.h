/* Declares the inside of struct terse_session: one sequence with its cache, its tokens and its sampler. prompt.c and step.c read,
 * session.c samples; session_state.c truncates and forks, session_prefix.c begins where others have been, session_file.c saves and
 * loads. All use session_check.c, which says whether a session may read, and session_tokens.c, which has the memory of its tokens
 * and logits. */
#ifndef TERSE_ENGINE_SESSION_H
#define TERSE_ENGINE_SESSION_H

#include "engine/constraint.h"
#include "engine/engine.h"
#include "engine/sampler.h"

#include <stdatomic.h>

#define SESSION_NO_TOKEN (-1) /* of random keys and values: terse_session_fill_random */

struct terse_session {
    struct terse_engine *engine;
    uint64_t number;                      /* of the engine's sessions, from 1 on */
    struct terse_session_options options; /* names in options.cache are not kept: see method */
    struct method method;
    struct cache *cache;
    struct sampler sampler;
    struct constraint constraint;
    struct terse_counters counters;
    float *logits;      /* [vocabulary] */
    float *next_logits; /* [vocabulary] of the step in progress: the two change places when it has succeeded */
    bool has_logits;
    /* The backend may hold the logits instead; these two change places as well. */
    struct device_logits held, next_held;
    bool logits_held;  /* the logits are those of `held`, and not in `logits` yet */
    bool logits_asked; /* since the last step all of them were wanted here: the next step brings them */
    int32_t *tokens;   /* [n_tokens] of the sequence; n_tokens is the cache's length */
    size_t n_tokens, token_capacity;
    size_t first_prompt;   /* of them read by one exact prefill of an empty session */
    bool in_batch;         /* while a step's items are checked: this one was seen */
    struct prompt *prompt; /* under way; NULL: none is */
    /* This is the cache as it was, for a reading that may be broken off; NULL outside a reading, or where there were no tokens. */
    struct cache *before;
    /* A decoding step failed so over numbers that were not finite, which left some layers' caches within the step: every call is
     * refused with this failure until a reset. TERSE_OK: there was none. */
    struct terse_error damaged;
    atomic_bool cancelled;
};

static inline const struct terse_model *model_of(const struct terse_session *s) { return s->engine->model; }
static inline const struct kv_ops *kv_of(const struct terse_session *s) { return s->engine->backend.kv; }

/* Checks that a prompt of n tokens more fits the engine's budget, by what parts_predict says of a cache of that length: asked before a long
 * prompt is read. Steps take what they need themselves, and fail where it is not left. */
enum terse_status session_admit(const struct terse_session *session, size_t n, struct terse_error *error);
/* Resolves the method of caches of the engine, with what it has learned: the options' codebook, or the profile of the model's weights. */
enum terse_status session_resolve_method(struct terse_engine *engine, const struct terse_cache_options *options,
                                         struct method *method, struct terse_error *error);
/* Returns the hash of the session's codebook, or of the profile in its place; 0 when the method needs none. */
static inline uint64_t session_codebook_hash(const struct terse_session *s) {
    return s->method.learned ? codebook_hash(s->method.learned) : 0;
}

/* Writes what the numbers in its cache depend on beside the model and the codebook: the method's identity, and which of the model's rotations. */
void session_identity(const struct terse_session *session, char text[METHOD_IDENTITY]);

/* Checks that no prompt is under way and the session is not damaged; otherwise most calls are refused. */
enum terse_status session_check_idle(const struct terse_session *session, struct terse_error *error);
/* Breaks off the prompt that may be under way, which leaves the session as it was before; not on the driver thread. */
void session_drop_prompt(struct terse_session *session);

/* Allocates memory for a new session's logits; session_free_logits releases it, also after a failure. */
enum terse_status session_make_logits(struct terse_session *session, struct terse_error *error);
void session_free_logits(struct terse_session *session);
/* Copies the logits, if there are any, to session->logits: those that the device holds are copied when they are first asked for.
 * Any thread that has the session may call it. */
enum terse_status session_fetch_logits(const struct terse_session *session, struct terse_error *error);
/* Reserves memory for n tokens more; session_add_tokens, which does not fail, then takes them. */
enum terse_status session_reserve_tokens(struct terse_session *session, size_t n, struct terse_error *error);
/* Adds tokens[n], which the cache has taken and which may lie behind the session's own; NULL: SESSION_NO_TOKEN each. */
void session_add_tokens(struct terse_session *session, const int32_t *tokens, size_t n);
/* Shows the sampler the first n_tokens tokens and no others. */
void session_remember_tokens(struct terse_session *session);
/* Checks that n tokens more fit the context, of which `together` are read in one step. Methods that evict read at positions by
 * index: for them the tokens that they keep must fit beside a step, not the whole sequence. */
enum terse_status session_check_room(const struct terse_session *session, size_t n, size_t together, struct terse_error *error);

#endif
