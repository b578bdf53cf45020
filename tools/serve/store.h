/* Keeps prefixes on disk: the sessions of --state-dir, which are there again after a restart. One thread at a time uses it. */
#ifndef TERSE_SERVE_STORE_H
#define TERSE_SERVE_STORE_H

#include <terse.h>

struct store;

/* Makes the folder of an option where it is missing; complains where it cannot be read or written. Returns an exit status. */
int store_check(const char *option, const char *folder);
/* Opens a folder that store_check has accepted. Its sessions, where they fit the model and the options, become prefixes of the
 * engine; others are left alone. Writes their number to *kept. Returns an exit status. */
int store_open(const char *folder, struct terse_engine *engine, const struct terse_session_options *options, struct store **store,
               size_t *kept);
/* Returns whether a file of that name would be one of the store's. */
bool store_owns(const char *name);
void store_close(struct store *store);

/* Returns whether a session of n tokens is worth saving. */
bool store_takes(size_t n);
/* Saves a session of tokens[n], which it takes. It replaces the saved sessions that it goes on from or, if there are many, the oldest. Only the first
 * failure gives a remark. */
void store_save(struct store *store, const struct terse_session *session, const int32_t *tokens, size_t n);

#endif
