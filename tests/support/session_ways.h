/* Ways in which sessions must not differ, for models whose caches hold something of their own. A difference fails the running test. */
#ifndef TESTS_SUPPORT_SESSION_WAYS_H
#define TESTS_SUPPORT_SESSION_WAYS_H

#include "terse.h"

/* Each takes tokens of a text of at least 450. Recent windows have 32 tokens. */

/* Three sessions, of a method each, that decode together do so as each would alone, bit for bit. */
void check_batch(struct terse_engine *engine, const char *const methods[3], const int32_t *tokens);
/* A fork and its origin go on differently, each as a session that has read the same alone, bit for bit. */
void check_fork(struct terse_engine *engine, const char *method, const int32_t *tokens);
/* A prompt of n tokens behind `first` others that is stopped late leaves the session as it was. */
void check_stopped_prompt(struct terse_engine *engine, const int32_t *tokens, size_t first, size_t n);

/* These are sessions for the same prompt, both of which have read it: one began with a prefix of `held` tokens, the other with nothing. */
struct alike_sessions {
    struct terse_session *session, *fresh;
    size_t held;
};
/* Keeps the first `kept` of tokens as a prefix for a prompt of n tokens of which the first `alike` are the same, and forgets it again. */
struct alike_sessions must_begin_alike(struct terse_engine *engine, const char *method, const int32_t *tokens, size_t kept,
                                       size_t alike, size_t n, uint32_t vocabulary);
void alike_free(struct alike_sessions *sessions);

#endif
