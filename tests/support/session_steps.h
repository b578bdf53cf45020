/* Steps that tests take with sessions; where one fails, the running cmocka test fails with its message. */
#ifndef TESTS_SUPPORT_SESSION_STEPS_H
#define TESTS_SUPPORT_SESSION_STEPS_H

#include "engine/engine.h"
#include "terse.h"

/* Returns the options of a cache of `method` whose recent window has `tail_tokens` tokens, for sequences of up to 1,000 tokens whatever the model's
 * context. */
struct terse_session_options short_session_options(const char *method, uint32_t tail_tokens);
/* Loads a fixture model, starts an engine on the CPU and describes the model: the tests of a program work with these. */
void must_start_fixture(const char *name, uint32_t threads, struct terse_model **model, struct terse_engine **engine,
                        struct terse_model_info *info);
/* Writes a text of n < 2^15 tokens, whose order slowly changes. */
void write_text(int32_t *tokens, int n, uint32_t vocabulary);
/* Writes tokens[n] that are all equally likely, the same for the same seed. */
void random_tokens(int32_t *tokens, size_t n, uint32_t vocabulary, uint64_t seed);
/* Starts an engine on a backend with `threads` threads. */
struct terse_engine *must_start(const struct backend *backend, const struct terse_model *model, uint32_t threads);
struct terse_session *must_open(struct terse_engine *engine, const struct terse_session_options *options);
/* Opens a session of a method with the default options otherwise. */
struct terse_session *must_open_method(struct terse_engine *engine, const char *method);
void must_prefill(struct terse_session *session, const int32_t *tokens, size_t n);
/* Appends tokens[n] one at a time. */
void must_decode(struct terse_session *session, const int32_t *tokens, size_t n);
struct terse_session *must_fork(const struct terse_session *session);
void must_truncate(struct terse_session *session, uint64_t n);
void must_save(const struct terse_session *session, const char *path);
struct terse_session *must_load(struct terse_engine *engine, const struct terse_session_options *options, const char *path);
void must_keep_prefix(struct terse_engine *engine, const struct terse_session *session);
struct terse_session *must_open_with_prefix(struct terse_engine *engine, const struct terse_session_options *options,
                                            const int32_t *tokens, size_t n, size_t *held);
/* Appends n tokens as they are sampled, to out[n]. */
void must_generate(struct terse_session *session, size_t n, int32_t *out);
/* Sampling that looks at the tokens so far: a repetition penalty and a bias. */
void sample_by(struct terse_session *session, uint64_t seed, float temperature);

struct terse_cache_report report_of(const struct terse_session *session);
/* Fails the test unless both are as long and have the same logits, bit for bit. */
void check_same_logits(const struct terse_session *one, const struct terse_session *other);
/* Returns the largest difference of n logits, as a part of the largest of `want`. */
double logits_apart(const float *got, const float *want, size_t n);
/* Prints that difference of two sessions' logits, of a vocabulary of n, and fails the test where it is more than `bound`. */
void check_near_logits(size_t n, const char *what, const struct terse_session *one, const struct terse_session *other,
                       double bound);

#endif
