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

#endif
