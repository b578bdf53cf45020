/* A saver is a thread that saves sessions to the store or to files of their own, so that replies go on meanwhile: tens of megabytes are written and brought
 * to the disk. */
#ifndef TERSE_SERVE_SAVER_H
#define TERSE_SERVE_SAVER_H

#include "slot_action.h"
#include "store.h"

struct saver;

/* A saving is a session of tokens[n] on its way to the store. It must not be used until it has come back. */
struct saving {
    struct terse_session *session;
    const int32_t *tokens; /* the session's */
    size_t n;
    void *owner;                /* whose it is, for the one who gave it */
    struct slot_action *action; /* saves to its file instead of the store; NULL: there is none */
    enum terse_status status;   /* written: of such a saving */
    struct terse_error error;
    uint64_t bytes; /* written: of its file */
    struct saving *next;
};

/* Starts the thread; `store` NULL: only for files of their own. `done(user)` is called on the saver's thread when something has come back. NULL when memory is refused. */
struct saver *saver_start(struct store *store, void (*done)(void *user), void *user);
void saver_give(struct saver *saver, struct saving *saving);
/* Returns a session that has been saved, or could not be; NULL when none has come back. Accepts NULL. */
struct saving *saver_take(struct saver *saver);
/* Stops the thread and frees the saver, when all sessions have come back. Accepts NULL. */
void saver_stop(struct saver *saver);

#endif
