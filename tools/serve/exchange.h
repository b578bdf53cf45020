/* An exchange connects HTTP's threads with the scheduler's: one request that waits for its reply, and the reply's bytes as they
 * come. While it waits its connection is suspended, so that it takes no thread. Both sides own it; each gives up its own share. */
#ifndef TERSE_SERVE_EXCHANGE_H
#define TERSE_SERVE_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct MHD_Connection;
struct exchange;

/* Makes an exchange that has two owners. NULL when memory is refused. */
struct exchange *exchange_new(void);
void exchange_release(struct exchange *exchange);

/* ---- The scheduler's side */

/* Lets HTTP answer: with `status`, with events where the reply is a stream, else with JSON. What was added before is a part of the
 * reply; a reply that has ended by now has its length in its header. */
void exchange_begin(struct exchange *exchange, int status, bool stream);
bool exchange_begun(struct exchange *exchange);
void exchange_add(struct exchange *exchange, const void *bytes, size_t n);
/* Ends the reply: nothing more comes. */
void exchange_end(struct exchange *exchange);
/* Ends the reply wherever it is, so that nothing waits for it; it does nothing to a reply that has ended. */
void exchange_close(struct exchange *exchange);
/* Returns whether the client has stopped waiting for the reply. It asks the socket itself, because HTTP does not look at the socket
 * while the connection is suspended. */
bool exchange_gone(struct exchange *exchange);

/* ---- HTTP's side */

/* Suspends the connection unless the scheduler has begun the reply; it is resumed then. Returns false where the reply has begun,
 * and nothing was suspended. */
bool exchange_wait(struct exchange *exchange, struct MHD_Connection *connection, int socket);
/* Returns HTTP's status, and writes the size of the whole reply to *size, or MHD_SIZE_UNKNOWN where it has not ended. */
int exchange_status(struct exchange *exchange, bool *stream, uint64_t *size);
/* Reads bytes of the reply, as a content reader of libmicrohttpd; 0, with the connection suspended, where there are none yet. */
ssize_t exchange_read(void *exchange, uint64_t position, char *bytes, size_t most);
/* Tells that the client went away, or has the whole reply. */
void exchange_leave(struct exchange *exchange);

#endif
