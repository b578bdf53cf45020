/* A prompt under way is tokens of one session that go through the model piece by piece; between two pieces other sessions may
 * decode. terse_session_prefill runs one to its end at once. */
#ifndef TERSE_ENGINE_PROMPT_H
#define TERSE_ENGINE_PROMPT_H

#include "engine/reading.h"

struct prompt {
    struct reading reading;        /* of the tokens that lie behind the session's own */
    struct terse_logits_sink sink; /* which the reading's points to, where rows are wanted */
    size_t count;                  /* of them in the step in progress */
    struct step_part part;
    struct pass *pass; /* NULL between steps */
    uint64_t turn;     /* of the engine's turns the last that was this prompt's: step.c */
};

/* Returns the kind of step in which a mode reads prompts. */
enum cache_step_kind prompt_step_kind(enum terse_prefill mode);

/* Does the next piece of the work, as long as one of executor_ops.advance, on the engine's driver thread. With the last piece, and
 * with a failure, which leaves the session as it was before the prompt, session->prompt becomes NULL. */
enum terse_status prompt_advance(struct terse_session *session, struct terse_error *error);

#endif
