/* Sends and receives orders. */
#include "engine/orders.h"

#include "base/memory.h"

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
