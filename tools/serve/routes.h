/* Answers the requests to each address. It knows nothing of sockets. */
#ifndef TERSE_SERVE_ROUTES_H
#define TERSE_SERVE_ROUTES_H

#include "server.h"

/* A call is a request that was received whole, and its answer: a body, or an exchange that the scheduler writes to. */
struct call {
    const char *method, *path;
    const char *action; /* of the address's query; NULL: none */
    const char *body;   /* [n] */
    size_t n;
    uint64_t client;
    bool known; /* the client has a key, or needs none */

    int status;
    const char *type; /* of text */
    struct buffer text;
    struct exchange *exchange; /* where not NULL: status and text come from it; one owner's share */
};

/* Answers the call, in any thread. */
void routes_answer(struct server *server, struct call *call);
/* Makes the error the answer. */
void routes_refuse(struct call *call, const struct api_error *error);
/* Returns whether an address takes a body with this HTTP method. */
bool routes_takes_body(const char *method, const char *path);

#endif
