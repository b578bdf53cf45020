/* A saver is a thread that saves sessions to the store, so that replies go on meanwhile: tens of megabytes are written and brought
 * to the disk. */
#ifndef TERSE_SERVE_SAVER_H
#define TERSE_SERVE_SAVER_H

#include "store.h"

struct saver;

/* A saving is a session of tokens[n] on its way to the store. It must not be used until it has come back. */
struct saving {
    struct terse_session *session;
    int32_t *tokens;
    size_t n;
    void *owner; /* whose it is, for the one who gave it */
    struct saving *next;
};

/* Starts the thread; `done(user)` is called on the saver's thread when something has come back. NULL when memory is refused. */
struct saver *saver_start(struct store *store, void (*done)(void *user), void *user);
void saver_give(struct saver *saver, struct saving *saving);
/* Returns a session that has been saved, or could not be; NULL when none has come back. */
struct saving *saver_take(struct saver *saver);
/* Stops the thread and frees the saver, when all sessions have come back. Accepts NULL. */
void saver_stop(struct saver *saver);

#endif
