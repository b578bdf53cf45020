/* A reply, token by token. What a call fails with is for the task's client. */
#ifndef TERSE_SERVE_GENERATION_H
#define TERSE_SERVE_GENERATION_H

#include "task.h"

/* Readies a generation whose session has read its prompt to write: sampling, JSON, stop strings, and the prompt's text where it is echoed. */
enum terse_status generation_start(struct generation *g, struct terse_error *error);

/* Chooses the next token: text and logs grow from `piece` and `logs_piece` on. Unless `finish` is set then, `next` is to be read. */
enum terse_status generation_next(struct generation *g, struct terse_error *error);

/* Ends the text, where something else than its tokens ends it. */
void generation_finish(struct generation *g, enum finish finish);

/* A sink for the prompt's logits that logs its tokens; `user` is the generation. */
void generation_log_prompt(void *user, size_t row, const float *logits);
bool generation_logs_prompt(const struct generation *g);

/* Frees the session and what writes, keeps the text. */
void generation_stop(struct generation *g);
void generation_free(struct generation *g);

#endif
