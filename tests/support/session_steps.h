/* Steps that tests take with sessions; where one fails, the running cmocka test fails with its message. */
#ifndef TESTS_SUPPORT_SESSION_STEPS_H
#define TESTS_SUPPORT_SESSION_STEPS_H

#include "engine/engine.h"
#include "terse.h"

/* Returns the options of a cache of `method` whose recent window has `tail_tokens` tokens, for sequences of up to 1,000 tokens whatever the model's
 * context. */
struct terse_session_options short_session_options(const char *method, uint32_t tail_tokens);
/* Starts an engine on a backend with `threads` threads. */
struct terse_engine *must_start(const struct backend *backend, const struct terse_model *model, uint32_t threads);
struct terse_session *must_open(struct terse_engine *engine, const struct terse_session_options *options);
/* Opens a session of a method with the default options otherwise. */
struct terse_session *must_open_method(struct terse_engine *engine, const char *method);
void must_prefill(struct terse_session *session, const int32_t *tokens, size_t n);
/* Appends n tokens as they are sampled, to out[n]. */
void must_generate(struct terse_session *session, size_t n, int32_t *out);
/* Sampling that looks at the tokens so far: a repetition penalty and a bias. */
void sample_by(struct terse_session *session, uint64_t seed, float temperature);

#endif
