/* Serves HTTP by libmicrohttpd: connections, limits, who may send requests. routes.h answers them. */
#ifndef TERSE_SERVE_HTTP_H
#define TERSE_SERVE_HTTP_H

#include "server.h"

struct http;

/* Returns a socket that listens at host:port, port 0: any that is free; clients that connect wait until http_start takes the socket. -1 after a
 * complaint. */
int http_listen(const char *host, uint16_t port);
/* Serves the clients of a socket of http_listen, which is closed in any case. Returns an exit status. `server` must outlive it. */
int http_start(struct server *server, int socket_fd, struct http **http);
/* Returns the server's address, such as "http://127.0.0.1:8080". */
const char *http_address(const struct http *http);
/* Cuts off clients that take too long to send a request; to be called about once a second. */
void http_cut_slow(struct http *http);
/* Returns how many requests are not answered in full. */
size_t http_open_requests(const struct http *http);
/* Stops serving, after the scheduler has ended, so that nothing is suspended. */
void http_stop(struct http *http);

#endif
