/* A reading is the tokens that a session reads in one call. They go through the model in one step or several, and become part of
 * the session when all have; a reading that is broken off leaves the session as it was. */
#ifndef TERSE_ENGINE_READING_H
#define TERSE_ENGINE_READING_H

#include "engine/session.h"

struct reading {
    struct terse_session *session;
    const int32_t *tokens; /* [n] */
    size_t n;
    const struct terse_logits_sink *sink; /* or NULL */
    size_t first;                         /* of the step in progress: the reading's token that is its first */
    bool ends;                            /* with it the reading ends */
};

/* Checks that the session may read now: no prompt is under way, there are tokens, all of the vocabulary. */
enum terse_status reading_check(const struct terse_session *session, const int32_t *tokens, size_t n, struct terse_error *error);

/* Returns the reading's tokens from r->first on, `count` of them, as a part of a step; the reading must outlive the step. */
struct step_part reading_part(struct reading *r, enum cache_step_kind kind, size_t count);

/* Keeps the cache as it is, for reading_end of a reading that may be broken off. */
enum terse_status reading_keep_cache(const struct reading *r, struct terse_error *error);
/* Ends a reading whose cache was kept: puts it back if the reading has failed, and releases what is not needed any more. */
void reading_end(const struct reading *r, bool failed);

/* Makes what was read part of the session. */
void reading_take(const struct reading *r);

/* Returns TERSE_E_INTERRUPTED if the session was cancelled, and forgets the cancelling. */
enum terse_status reading_check_cancelled(const struct reading *r, struct terse_error *error);

#endif
