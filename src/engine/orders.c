/* Sends and receives orders. */
#include "engine/orders.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(struct order) == 256, "a broadcast of few bytes");

enum terse_status order_send(struct collective *ranks, struct order *order, const void *data, struct terse_error *error) {
    const bool fits = order->bytes <= ORDER_INLINE;
    if (fits && order->bytes && data != order->data) memcpy(order->data, data, order->bytes);
    enum terse_status status = collective_broadcast(ranks, order, sizeof *order, error);
    return status || fits ? status : collective_broadcast(ranks, (void *)data, order->bytes, error);
}

enum terse_status order_receive(struct collective *ranks, struct order *order, void **data, struct terse_error *error) {
    *data = NULL;
    enum terse_status status = collective_broadcast(ranks, order, sizeof *order, error);
    if (status) return status;
    if (!(*data = memory_array(order->bytes, 1))) return status_no_memory(error, order->bytes, "what rank 0 sends");
    if (order->bytes > ORDER_INLINE) return collective_broadcast(ranks, *data, order->bytes, error);
    memcpy(*data, order->data, order->bytes);
    return TERSE_OK;
}

struct outcome {
    int32_t status;
    char message[252];
};

enum terse_status orders_agree(struct collective *ranks, enum terse_status own, struct terse_error *error) {
    struct outcome mine = {.status = (int32_t)own};
    struct outcome *all = memory_array(ranks->ranks, sizeof *all);
    if (!all) return status_no_memory(error, ranks->ranks * sizeof *all, "an exchange between ranks");
    if (own && error) snprintf(mine.message, sizeof mine.message, "%.250s", error->message);
    enum terse_status status = collective_gather(ranks, &mine, sizeof mine, all, error);
    for (uint32_t rank = 0; rank < ranks->ranks && !status; rank++) {
        status = (enum terse_status)all[rank].status;
        if (status && rank != ranks->rank) status_fail(error, status, "rank %u: %s", rank, all[rank].message);
    }
    memory_free(all);
    return status;
}
