/* Sends a task's progress to its client, as events or as one JSON object, in the form of the API that the request came by. */
#ifndef TERSE_SERVE_REPLY_H
#define TERSE_SERVE_REPLY_H

#include "generation.h"

/* Tells a chat's client that asked for a stream that the reply has a slot: from here on failures are events. */
void reply_begin(struct generation *g);
/* Tells a client that asked for it how far the reply's prompt is read. */
void reply_progress(struct generation *g);
/* Sends what the newest token added, or with `finish` set the reply's end, to a client that asked for a stream. */
void reply_piece(struct generation *g);
/* Ends the reply to the client, after all replies of the task are there. */
void reply_end(struct task *task);
/* Ends the reply with *error; nothing more comes. */
void reply_fail(struct task *task, const struct api_error *error);

/* Returns one token as text: *n bytes, zero-terminated, released by free; NULL when memory is refused. Bytes that are no whole
 * character are U+FFFD; *whole is then false. Special tokens have their names. */
char *reply_token_text(const struct terse_model *model, int32_t token, size_t *n, bool *whole);

#endif
