/* Writes a reply token by token. The errors of these calls are meant for the task's client. */
#ifndef TERSE_SERVE_GENERATION_H
#define TERSE_SERVE_GENERATION_H

#include "task.h"

/* Readies a generation whose session has read its prompt to write: sampling, JSON, stop strings, and the prompt's text where it is echoed. */
enum terse_status generation_start(struct generation *g, struct terse_error *error);

/* Chooses the next token: text, logs and tool calls grow from `piece`, `logs_piece` and `calls_piece` on. Unless `finish` is set afterwards, `next` is the
 * token to read. */
enum terse_status generation_next(struct generation *g, struct terse_error *error);

/* Ends the text, where something other than its tokens ends it. */
void generation_finish(struct generation *g, enum finish finish);

/* Begins to read the prompt, whose tokens' log probabilities are kept where they are asked for; or, where the reply was preempted, all that it had
 * read. Opens a session with these options unless there is one, from the engine's kept prefixes where the request allows it. */
enum terse_status generation_begin_prompt(struct generation *g, struct terse_engine *engine,
                                          const struct terse_session_options *options, struct terse_error *error);
/* Returns whether a prompt that was read to the end of a part goes on: the part ends where the conversation's next turn begins to differ. */
bool generation_reads_on(const struct generation *g);
enum terse_status generation_read_on(struct generation *g, struct terse_error *error);
/* Copies the log probabilities of the prompt's tokens from another reply to the same prompt. */
enum terse_status generation_copy_logs(struct generation *g, const struct generation *from, struct terse_error *error);
/* Returns whether generation_start was called: the session must then be kept, for its random numbers and its JSON text. */
bool generation_started(const struct generation *g);
/* Gives back the generation's share of the KV budget. */
enum terse_status generation_preempt(struct generation *g, struct terse_error *error);

/* Writes the tool calls that the reply has made so far to *calls, which are the generation's, and returns their number. */
size_t generation_calls(const struct generation *g, const struct terse_tool_call **calls);
/* Notes that all of the reply so far was sent: what comes is a new piece. */
void generation_sent(struct generation *g);

/* Frees the session and the writing state, and keeps the text and the tool calls. */
void generation_stop(struct generation *g);
void generation_free(struct generation *g);

#endif
