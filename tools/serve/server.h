/* Declares the state that the server's parts share. Only the fields that say so change while the server runs. */
#ifndef TERSE_SERVE_SERVER_H
#define TERSE_SERVE_SERVER_H

#include "scheduler.h"

#include <stdatomic.h>

/* Clients may use these keys, which are compared in constant time. */
struct keys {
    char **key;
    size_t n;
};

struct server {
    struct request_limits limits;
    struct terse_model_info model;
    const char *model_name, *model_path; /* path NULL: built in */
    const char *slot_folder;             /* for saved slots; NULL: none */
    char method[256];                    /* setup_method_text */
    uint32_t slots, queue;
    uint64_t kv_budget;
    struct scheduler *scheduler;
    struct metrics metrics; /* changes */
    struct keys keys;       /* none: everybody may ask */
    const char *cors;       /* origin that may ask from a browser, "*": any; NULL: none but the server's own page */
    uint64_t most_body;     /* bytes of a request's body */
    int64_t timeout;        /* seconds that a client has to send a request, or to take what it is sent */
    atomic_bool stopping;   /* changes: no new replies */
    atomic_size_t bodies;   /* changes: bytes of bodies that are being read */
};

#endif
