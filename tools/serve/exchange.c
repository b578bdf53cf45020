#define _GNU_SOURCE /* POLLRDHUP */
#include "exchange.h"

#include "buffer.h"

#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct exchange {
    pthread_mutex_t lock;
    int owners;
    struct MHD_Connection *connection; /* NULL before exchange_wait and after exchange_leave */
    int socket;
    bool suspended, left, stream, ended;
    int status; /* 0: not begun */
    struct buffer bytes;
    size_t sent; /* of bytes */
};

struct exchange *exchange_new(void) {
    struct exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    pthread_mutex_init(&x->lock, NULL);
    x->owners = 2;
    return x;
}

void exchange_release(struct exchange *x) {
    pthread_mutex_lock(&x->lock);
    int owners = --x->owners;
    pthread_mutex_unlock(&x->lock);
    if (owners) return;
    pthread_mutex_destroy(&x->lock);
    buffer_free(&x->bytes);
    free(x);
}

/* ---- With the lock held */

static void resume(struct exchange *x) {
    if (!x->suspended || !x->status) return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

static void suspend(struct exchange *x) {
    x->suspended = true;
    MHD_suspend_connection(x->connection);
}

/* ---- The scheduler's side */

void exchange_begin(struct exchange *x, int status, bool stream) {
    pthread_mutex_lock(&x->lock);
    x->status = status;
    x->stream = stream;
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

bool exchange_begun(struct exchange *x) {
    pthread_mutex_lock(&x->lock);
    bool begun = x->status != 0;
    pthread_mutex_unlock(&x->lock);
    return begun;
}

void exchange_add(struct exchange *x, const void *bytes, size_t n) {
    pthread_mutex_lock(&x->lock);
    if (!x->left) buffer_add(&x->bytes, bytes, n);
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_end(struct exchange *x) {
    pthread_mutex_lock(&x->lock);
    x->ended = true;
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_close(struct exchange *x) {
    pthread_mutex_lock(&x->lock);
    if (!x->status) x->status = MHD_HTTP_SERVICE_UNAVAILABLE;
    x->ended = true;
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

bool exchange_gone(struct exchange *x) {
    pthread_mutex_lock(&x->lock);
    bool gone = x->left || x->bytes.failed;
    if (!gone && x->connection) {
        struct pollfd client = {.fd = x->socket, .events = POLLRDHUP};
        gone = poll(&client, 1, 0) > 0 && (client.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
    }
    pthread_mutex_unlock(&x->lock);
    return gone;
}

/* ---- HTTP's side */

bool exchange_wait(struct exchange *x, struct MHD_Connection *connection, int socket) {
    pthread_mutex_lock(&x->lock);
    x->connection = connection;
    x->socket = socket;
    bool wait = x->status == 0;
    if (wait) suspend(x);
    pthread_mutex_unlock(&x->lock);
    return wait;
}

int exchange_status(struct exchange *x, bool *stream, uint64_t *size) {
    pthread_mutex_lock(&x->lock);
    int status = x->status;
    *stream = x->stream;
    *size = x->ended ? x->bytes.n : MHD_SIZE_UNKNOWN;
    pthread_mutex_unlock(&x->lock);
    return status;
}

ssize_t exchange_read(void *exchange, uint64_t position, char *bytes, size_t most) {
    struct exchange *x = exchange;
    ssize_t result = 0;
    (void)position;
    pthread_mutex_lock(&x->lock);
    size_t n = x->bytes.n - x->sent;
    if (n) {
        n = n < most ? n : most;
        memcpy(bytes, x->bytes.bytes + x->sent, n);
        x->sent += n;
        if (x->sent == x->bytes.n) x->sent = x->bytes.n = 0;
        result = (ssize_t)n;
    } else if (x->bytes.failed) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->ended) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        suspend(x);
    }
    pthread_mutex_unlock(&x->lock);
    return result;
}

void exchange_leave(struct exchange *x) {
    pthread_mutex_lock(&x->lock);
    x->left = true;
    x->connection = NULL;
    x->suspended = false;
    pthread_mutex_unlock(&x->lock);
}
