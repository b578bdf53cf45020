/* Copies what a batch has in the host's memory to the device, and outputs back. */
#include "host_kv.h"

#include "backend/cuda/kv/batch.h"
#include "backend/cuda/kv/ops.h"
#include "backend/cuda/kv/state.h"

/* Kept for all steps of caches of a shape; what a batch has in it is written anew by each call. */
static struct batch_memory *memory;
static struct cache_shape shape;
static struct {
    float *at;
    size_t floats;
} device[3];

static size_t query_floats(const struct kv_rows *rows) { return rows->count * cache_shape_query_width(&shape); }
static size_t key_floats(const struct kv_rows *rows) { return rows->count * cache_shape_kv_width(&shape); }

/* The batch with memory of the device. */
static enum terse_status join_with(const struct kv_batch *batch, struct kv_batch *own, struct terse_error *error) {
    const struct cache_shape *wanted = &batch->caches[0]->base.shape;
    enum terse_status status = TERSE_OK;
    if (!memory || wanted->query_heads != shape.query_heads || wanted->kv_heads != shape.kv_heads ||
        wanted->head_dim != shape.head_dim) {
        batch_free(memory);
        status = batch_new(wanted, &memory, error);
        shape = *wanted;
    }
    *own = (struct kv_batch){batch->caches, batch->n, memory};
    return status ? status : cuda_kv_ops.join(own, error);
}

/* Copies numbers to the i-th piece of memory; NULL: for want of memory. */
static float *sent(int i, const float *numbers, size_t floats, struct terse_error *error) {
    if (floats > device[i].floats) {
        cudaStreamSynchronize(device_stream());
        device_free(NULL, device[i].at, device[i].floats * sizeof(float));
        device[i].at = device_alloc(NULL, floats * sizeof(float), "a step", error);
        device[i].floats = device[i].at ? floats : 0;
    }
    if (!device[i].at) return NULL;
    return device_check(device_send(device[i].at, numbers, floats * sizeof(float)), "sending a step", error) ? NULL : device[i].at;
}

static enum terse_status join(const struct kv_batch *batch, struct terse_error *error) {
    struct kv_batch own;
    return join_with(batch, &own, error);
}

static enum terse_status append(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    struct kv_batch own;
    enum terse_status status = join_with(batch, &own, error);
    if (status) return status;
    const struct kv_rows there = {.layer = rows->layer,
                                  .first = rows->first,
                                  .count = rows->count,
                                  .k = sent(0, rows->k, key_floats(rows), error),
                                  .v = sent(1, rows->v, key_floats(rows), error)};
    return there.k && there.v ? cuda_kv_ops.append(&own, &there, error) : TERSE_E_MEMORY;
}

/* `call` with the queries; `out` is written where they are. */
static enum terse_status show(enum terse_status (*call)(const struct kv_batch *, const struct kv_rows *, struct terse_error *),
                              const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    struct kv_batch own;
    enum terse_status status = join_with(batch, &own, error);
    if (status) return status;
    float *q = sent(2, rows->q, query_floats(rows), error);
    const struct kv_rows there = {.layer = rows->layer, .first = rows->first, .count = rows->count, .q = q, .out = q};
    return q ? call(&own, &there, error) : TERSE_E_MEMORY;
}

static enum terse_status observe(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    return show(cuda_kv_ops.observe, batch, rows, error);
}

static enum terse_status attend(const struct kv_batch *batch, const struct kv_rows *rows, struct terse_error *error) {
    enum terse_status status = show(cuda_kv_ops.attend, batch, rows, error);
    if (status || !rows->count) return status;
    return device_check(device_fetch(rows->out, device[2].at, query_floats(rows) * sizeof(float)), "attention", error);
}

const struct kv_ops *host_kv_ops(void) {
    static struct kv_ops ops;
    ops = cuda_kv_ops;
    ops.join = join;
    ops.append = append;
    ops.observe = observe;
    ops.attend = attend;
    return &ops;
}
