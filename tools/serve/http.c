#include "http.h"

#include "console.h"
#include "routes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    THREADS = 4, /* that parse, tokenize and send; none waits for a reply */
    MOST_CONNECTIONS = 512,
    HEADER_BYTES = 32768, /* of a connection's own memory: request line and headers */
    BODIES = 16           /* so many bodies of the largest size may be held at the same time */
};

/* A connection is a socket, from accept to close. */
struct connection {
    struct connection *next, **at;
    int socket;
    double waiting_since; /* for a whole request; 0: it has come */
};

struct http {
    struct server *server;
    struct MHD_Daemon *daemon;
    char address[128];
    bool local; /* only this machine reaches it */
    pthread_mutex_t lock;
    struct connection *connections; /* under lock */
    atomic_size_t open_requests;
};

/* An incoming is a request, from its headers to its completion. */
struct incoming {
    struct call call;
    struct buffer body;
    size_t received;
    bool discard;     /* the body is not wanted, or too large */
    size_t counted;   /* of server->bodies */
    char origin[256]; /* that the answer allows, or "" */
};

/* ---- Slow clients */

static void on_connection(void *cls, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode code) {
    struct http *http = cls;
    struct connection *c = *context;
    pthread_mutex_lock(&http->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED && (c = calloc(1, sizeof *c))) {
        c->socket = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        c->waiting_since = console_seconds();
        c->next = http->connections;
        c->at = &http->connections;
        if (c->next) c->next->at = &c->next;
        http->connections = c;
        *context = c;
    } else if (code == MHD_CONNECTION_NOTIFY_CLOSED && c) {
        *c->at = c->next;
        if (c->next) c->next->at = c->at;
        free(c);
        *context = NULL;
    }
    pthread_mutex_unlock(&http->lock);
}

static void set_waiting(struct http *http, struct MHD_Connection *mhd, double since) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct connection *c = info ? info->socket_context : NULL;
    pthread_mutex_lock(&http->lock);
    if (c) c->waiting_since = since;
    pthread_mutex_unlock(&http->lock);
}

void http_cut_slow(struct http *http) {
    double now = console_seconds();
    pthread_mutex_lock(&http->lock);
    for (struct connection *c = http->connections; c; c = c->next)
        if (c->waiting_since > 0 && now - c->waiting_since > (double)http->server->timeout) shutdown(c->socket, SHUT_RDWR);
    pthread_mutex_unlock(&http->lock);
}

/* ---- Who asks */

/* Compares in a time that depends on the length of `given` alone, which the client knows. */
static bool same_key(const char *given, size_t n_given, const char *key) {
    size_t n = strlen(key);
    unsigned different = n != n_given;
    for (size_t i = 0; i < n_given; i++) different |= (unsigned char)given[i] ^ (unsigned char)key[n ? i % n : 0];
    return !different;
}

static bool has_key(const struct server *server, struct MHD_Connection *mhd, uint64_t *client) {
    const char *header = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Authorization");
    bool known = false;
    if (!server->keys.n) return true;
    if (!header || strncasecmp(header, "Bearer ", 7) != 0) return false;
    header += 7;
    size_t n = strlen(header);
    for (size_t i = 0; i < server->keys.n; i++) {
        bool same = same_key(header, n, server->keys.key[i]);
        if (same) *client = i;
        known |= same;
    }
    return known;
}

/* Returns a number made from the address, by which clients without keys are told apart. */
static uint64_t address_number(struct MHD_Connection *mhd) {
    const struct sockaddr *address = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
    uint64_t number = 0;
    if (address && address->sa_family == AF_INET) return ((const struct sockaddr_in *)address)->sin_addr.s_addr;
    /* Only the network of an IPv6 address counts, since a client has as many hosts in it as it likes. */
    if (address && address->sa_family == AF_INET6)
        memcpy(&number, &((const struct sockaddr_in6 *)address)->sin6_addr, sizeof number);
    return number;
}

/* Returns whether the host's name is one that a page of another site cannot have made its own. */
static bool names_this_machine(const char *host) {
    size_t n = strncmp(host, "127.", 4) == 0            ? strspn(host, "0123456789.")
               : strncmp(host, "[::1]", 5) == 0         ? 5
               : strncasecmp(host, "localhost", 9) == 0 ? 9
                                                        : 0;
    return n && (!host[n] || host[n] == ':');
}

/* Returns whether a page of this origin may send requests: the server's own page, or one that --cors names. A request without an
 * origin comes from no page. */
static bool origin_allowed(const struct http *http, struct MHD_Connection *mhd, struct incoming *in) {
    const struct server *server = http->server;
    const char *origin = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Origin");
    const char *host = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Host");
    if (!origin) return true;
    if (server->cors && (strcmp(server->cors, "*") == 0 || strcmp(server->cors, origin) == 0)) {
        snprintf(in->origin, sizeof in->origin, "%s", server->cors);
        return true;
    }
    const char *name = strstr(origin, "://");
    /* A site's name may be made to resolve to this machine (DNS rebinding): then its pages' origin is the host of their
     * requests. */
    return name && host && strcmp(name + 3, host) == 0 && (!http->local || names_this_machine(host));
}

/* ---- Answers */

static void add_headers(struct MHD_Response *response, const struct incoming *in, const char *type, int status) {
    if (type) MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "X-Frame-Options", "DENY");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (status == 429) MHD_add_response_header(response, "Retry-After", "1");
    if (status == 503) MHD_add_response_header(response, "Retry-After", "5");
    if (status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (!in->origin[0]) return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", in->origin);
    MHD_add_response_header(response, "Vary", "Origin");
}

static enum MHD_Result queue(struct http *http, struct MHD_Connection *mhd, int status, struct MHD_Response *response) {
    metrics_add(&http->server->metrics, &http->server->metrics.answers[status], 1);
    enum MHD_Result result = MHD_queue_response(mhd, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_text(struct http *http, struct MHD_Connection *mhd, struct incoming *in) {
    struct call *call = &in->call;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(call->text.n, call->text.bytes ? call->text.bytes : "", MHD_RESPMEM_MUST_COPY);
    if (!response) return MHD_NO;
    add_headers(response, in, call->type, call->status);
    return queue(http, mhd, call->status, response);
}

static enum MHD_Result send_error(struct http *http, struct MHD_Connection *mhd, struct incoming *in, int status, const char *code,
                                  const char *message) {
    struct api_error error = {0};
    api_fail(&error, status, code, NULL, "%s", message);
    routes_refuse(&in->call, &error);
    return send_text(http, mhd, in);
}

static enum MHD_Result send_exchange(struct http *http, struct MHD_Connection *mhd, struct incoming *in) {
    bool stream;
    uint64_t size;
    int status = exchange_status(in->call.exchange, &stream, &size);
    struct MHD_Response *response =
        MHD_create_response_from_callback(stream ? MHD_SIZE_UNKNOWN : size, 16384, exchange_read, in->call.exchange, NULL);
    if (!response) return MHD_NO;
    add_headers(response, in, stream ? "text/event-stream; charset=utf-8" : "application/json; charset=utf-8", status);
    if (stream) MHD_add_response_header(response, "X-Accel-Buffering", "no");
    return queue(http, mhd, status, response);
}

/* Answers the preflight request that a browser sends before it lets another origin's page ask (CORS). */
static enum MHD_Result send_preflight(struct http *http, struct MHD_Connection *mhd, struct incoming *in) {
    struct MHD_Response *response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (!response) return MHD_NO;
    add_headers(response, in, NULL, 204);
    MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    MHD_add_response_header(response, "Access-Control-Allow-Headers", "Authorization, Content-Type");
    return queue(http, mhd, 204, response);
}

/* ---- Requests */

static void drop_body(struct http *http, struct incoming *in) {
    atomic_fetch_sub(&http->server->bodies, in->counted);
    in->counted = 0;
    buffer_free(&in->body);
}

static uint64_t announced_body(struct MHD_Connection *mhd) {
    const char *length = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Content-Length");
    return length ? strtoull(length, NULL, 10) : 0;
}

static enum MHD_Result send_too_large(struct http *http, struct MHD_Connection *mhd, struct incoming *in) {
    char message[96];
    snprintf(message, sizeof message, "the body is larger than %llu bytes", (unsigned long long)http->server->most_body);
    return send_error(http, mhd, in, 413, NULL, message);
}

static enum MHD_Result begin_request(struct http *http, struct MHD_Connection *mhd, const char *path, const char *method,
                                     void **context) {
    struct incoming *in = calloc(1, sizeof *in);
    if (!in) return MHD_NO;
    *context = in;
    atomic_fetch_add(&http->open_requests, 1);
    in->call.client = address_number(mhd);
    in->call.known = has_key(http->server, mhd, &in->call.client);
    in->discard = !in->call.known || !routes_takes_body(method, path);
    return announced_body(mhd) > http->server->most_body ? send_too_large(http, mhd, in) : MHD_YES;
}

/* Reads on beyond the limit, up to twice as much, and drops it, so that the client is able to read the answer. */
static enum MHD_Result add_body(struct http *http, struct incoming *in, const char *data, size_t n) {
    uint64_t most = http->server->most_body;
    in->received += n;
    if (in->received > most) {
        drop_body(http, in);
        in->discard = true;
        return in->received > 2 * most ? MHD_NO : MHD_YES;
    }
    if (in->discard) return MHD_YES;
    size_t all = atomic_fetch_add(&http->server->bodies, n) + n;
    in->counted += n;
    buffer_add(&in->body, data, n);
    return in->body.failed || all > BODIES * most ? MHD_NO : MHD_YES;
}

static enum MHD_Result answer(struct http *http, struct MHD_Connection *mhd, struct incoming *in, const char *path,
                              const char *method) {
    struct call *call = &in->call;
    set_waiting(http, mhd, 0);
    if (in->received > http->server->most_body) return send_too_large(http, mhd, in);
    if (!origin_allowed(http, mhd, in)) return send_error(http, mhd, in, 403, NULL, "pages of this origin may not ask: see --cors");
    if (in->origin[0] && strcmp(method, "OPTIONS") == 0) return send_preflight(http, mhd, in);
    call->method = method;
    call->path = path;
    call->action = MHD_lookup_connection_value(mhd, MHD_GET_ARGUMENT_KIND, "action");
    call->body = in->body.bytes ? in->body.bytes : "";
    call->n = in->body.n;
    routes_answer(http->server, call);
    drop_body(http, in);
    if (!call->exchange) return send_text(http, mhd, in);
    int socket = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    return exchange_wait(call->exchange, mhd, socket) ? MHD_YES : send_exchange(http, mhd, in);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mhd, const char *path, const char *method, const char *version,
                                  const char *data, size_t *n_data, void **context) {
    struct http *http = cls;
    struct incoming *in = *context;
    (void)version;
    if (!in) return begin_request(http, mhd, path, method, context);
    if (*n_data) {
        enum MHD_Result result = add_body(http, in, data, *n_data);
        *n_data = 0;
        return result;
    }
    return in->call.exchange ? send_exchange(http, mhd, in) : answer(http, mhd, in, path, method);
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode code) {
    struct http *http = cls;
    struct incoming *in = *context;
    (void)code;
    if (!in) return;
    set_waiting(http, mhd, console_seconds());
    if (in->call.exchange) {
        exchange_leave(in->call.exchange);
        exchange_release(in->call.exchange);
    }
    drop_body(http, in);
    buffer_free(&in->call.text);
    free(in);
    *context = NULL;
    atomic_fetch_sub(&http->open_requests, 1);
}

/* ---- Listening */

static int try_listen(const struct addrinfo *at) {
    int one = 1, socket_fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (socket_fd < 0) return -1;
    setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(socket_fd, IPPROTO_TCP, TCP_NODELAY, &one,
               sizeof one); /* accepted sockets have it too: each token is sent at once */
    if (bind(socket_fd, at->ai_addr, at->ai_addrlen) == 0 && listen(socket_fd, 128) == 0) return socket_fd;
    int why = errno;
    close(socket_fd);
    errno = why;
    return -1;
}

int http_listen(const char *host, uint16_t port) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    int why = getaddrinfo(host, service, &hints, &found), socket_fd = -1;
    if (why) {
        complain("cannot listen at --host \"%s\": %s", host, gai_strerror(why));
        return -1;
    }
    for (const struct addrinfo *at = found; at && socket_fd < 0; at = at->ai_next) socket_fd = try_listen(at);
    if (socket_fd < 0)
        complain("cannot listen at %s, port %u: %s%s", host, port, strerror(errno),
                 errno == EADDRINUSE ? "; choose another --port" : "");
    freeaddrinfo(found);
    return socket_fd;
}

static void name_address(struct http *http, int socket_fd) {
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    char host[64] = "?", service[8] = "?";
    if (getsockname(socket_fd, (struct sockaddr *)&bound, &size) == 0)
        (void)getnameinfo((struct sockaddr *)&bound, size, host, sizeof host, service, sizeof service,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    http->local = strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
    snprintf(http->address, sizeof http->address, bound.ss_family == AF_INET6 ? "http://[%s]:%s" : "http://%s:%s", host, service);
}

static void start_daemon(struct http *http, int socket_fd) {
    const struct MHD_OptionItem options[] = {{MHD_OPTION_LISTEN_SOCKET, socket_fd, NULL},
                                             {MHD_OPTION_THREAD_POOL_SIZE, THREADS, NULL},
                                             {MHD_OPTION_CONNECTION_LIMIT, MOST_CONNECTIONS, NULL},
                                             {MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEADER_BYTES, NULL},
                                             {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)http->server->timeout, NULL},
                                             {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, http},
                                             {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, http},
                                             {MHD_OPTION_END, 0, NULL}};
    http->daemon = MHD_start_daemon(MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, http,
                                    MHD_OPTION_ARRAY, options, MHD_OPTION_END);
}

int http_start(struct server *server, int socket_fd, struct http **out) {
    struct http *http = calloc(1, sizeof *http);
    *out = NULL;
    if (!http) {
        close(socket_fd);
        return complain("no memory for the server");
    }
    http->server = server;
    pthread_mutex_init(&http->lock, NULL);
    name_address(http, socket_fd);
    start_daemon(http, socket_fd);
    if (http->daemon) {
        *out = http;
        return EXIT_OK;
    }
    close(socket_fd);
    pthread_mutex_destroy(&http->lock);
    free(http);
    return complain("cannot start the HTTP server: no memory or no threads");
}

const char *http_address(const struct http *http) { return http->address; }

size_t http_open_requests(const struct http *http) { return atomic_load(&http->open_requests); }

void http_stop(struct http *http) {
    if (!http) return;
    MHD_stop_daemon(http->daemon);
    pthread_mutex_destroy(&http->lock);
    free(http);
}
