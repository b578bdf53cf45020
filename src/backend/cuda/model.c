/* Uploads models. Owns the device memory of their weights. */
#include "backend/cuda/model.h"

#include "backend/cuda/device.h"

#include <stdlib.h>

#define STAGED ((size_t)64 << 20) /* bytes of a file's matrix on the device at a time */

static const char what[] = "the model's weights";

/* ---- Everything that a model has, in one order */

struct visitor {
    enum terse_status (*matrix)(struct visitor *visitor, const struct matrix *from, struct device_matrix *to);
    enum terse_status (*vector)(struct visitor *visitor, const float *const *from, const float **to, uint32_t n);
    struct device_model *model;
    uint32_t count; /* of matrices of experts that `from` of a visit has, whose rows lie one after the other */
    void *staged;
    size_t staged_bytes, sent;
    const struct terse_progress *progress; /* or NULL */
    struct terse_error *error;
};

static enum terse_status visit_norm(struct visitor *v, const struct norm *from, struct norm *to, uint32_t width) {
    to->kind = from->kind;
    to->epsilon = from->epsilon;
    to->heads = from->heads;
    if (from->heads) width *= from->heads;
    enum terse_status status = v->vector(v, &from->gain, &to->gain, width);
    return status ? status : v->vector(v, &from->bias, &to->bias, width);
}

static enum terse_status visit_experts(struct visitor *v, const struct terse_model *m, const struct experts *from,
                                       struct device_experts *to) {
    const struct matrix *matrices[] = {&from->router, &from->shared_gate, &from->shared_up, &from->shared_down},
                        *of_experts[] = {&from->gate, &from->up, &from->down},
                        shared_router = {.data = from->shared_router,
                                         .type = TENSOR_F32,
                                         .rows = 1,
                                         .columns = m->width,
                                         .row_bytes = m->width * sizeof(float)};
    struct device_matrix *device[] = {&to->router, &to->shared_gate, &to->shared_up, &to->shared_down},
                         *device_experts[] = {&to->gate, &to->up, &to->down};
    enum terse_status status = v->matrix(v, &shared_router, &to->shared_router);
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0] && !status; i++) status = v->matrix(v, matrices[i], device[i]);
    v->count = m->experts;
    for (size_t i = 0; i < sizeof of_experts / sizeof of_experts[0] && !status; i++)
        status = v->matrix(v, of_experts[i], device_experts[i]);
    v->count = 1;
    return status;
}

static enum terse_status visit_layer(struct visitor *v, const struct terse_model *m, const struct layer *from,
                                     struct device_layer *to) {
    const struct matrix *matrices[] = {&from->q, &from->k, &from->v, &from->o, &from->gate, &from->up, &from->down};
    struct device_matrix *device[] = {&to->q, &to->k, &to->v, &to->o, &to->gate, &to->up, &to->down};
    enum terse_status status = visit_norm(v, &from->attention_norm, &to->attention_norm, m->width);
    if (!status) status = visit_norm(v, &from->feed_forward_norm, &to->feed_forward_norm, m->width);
    if (!status) status = visit_norm(v, &from->attention_post_norm, &to->attention_post_norm, m->width);
    if (!status) status = visit_norm(v, &from->feed_forward_post_norm, &to->feed_forward_post_norm, m->width);
    if (!status) status = visit_norm(v, &from->q_norm, &to->q_norm, m->head_dim);
    if (!status) status = visit_norm(v, &from->k_norm, &to->k_norm, m->head_dim);
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0] && !status; i++) status = v->matrix(v, matrices[i], device[i]);
    return status || !m->experts ? status : visit_experts(v, m, &from->experts, &to->experts);
}

static enum terse_status visit(struct visitor *v) {
    struct device_model *d = v->model;
    const struct terse_model *m = d->model;
    v->count = 1;
    enum terse_status status = v->matrix(v, &m->embedding, &d->embedding);
    if (!status) status = v->matrix(v, &m->output, &d->output);
    if (!status) status = v->matrix(v, &m->positions, &d->positions);
    if (!status) status = visit_norm(v, &m->output_norm, &d->output_norm, m->width);
    for (uint32_t i = 0; i < m->layers && !status; i++) status = visit_layer(v, m, &m->layer[i], &d->layer[i]);
    return status;
}

/* ---- Counting */

static enum terse_status skip_vector(struct visitor *v, const float *const *from, const float **to, uint32_t n) {
    (void)v, (void)from, (void)to, (void)n; /* nothing beside the matrices */
    return TERSE_OK;
}

static bool is_embedding(const struct visitor *v, const struct matrix *w, const struct device_matrix *to) {
    return to == &v->model->output && w->data == v->model->model->embedding.data;
}

static size_t bytes_of(const struct visitor *v, const struct matrix *from) {
    return v->count * weights_bytes(from->type, from->rows / v->count, from->columns);
}

static enum terse_status count_matrix(struct visitor *v, const struct matrix *from, struct device_matrix *to) {
    if (!from->data) return TERSE_OK;
    if (!is_embedding(v, from, to)) v->model->bytes += bytes_of(v, from);
    return TERSE_OK;
}

/* ---- Uploading */

static enum terse_status upload_vector(struct visitor *v, const float *const *from, const float **to, uint32_t n) {
    if (!*from) return TERSE_OK;
    void *memory = device_alloc(NULL, n * sizeof(float), what, v->error);
    if (!memory) return TERSE_E_MEMORY;
    *to = memory;
    return device_check(device_send(memory, *from, n * sizeof(float)), "uploading weights", v->error);
}

static enum terse_status stage(struct visitor *v, size_t bytes) {
    if (v->staged_bytes >= bytes) return TERSE_OK;
    device_free(NULL, v->staged, v->staged_bytes);
    v->staged_bytes = 0;
    if (!(v->staged = device_alloc(NULL, bytes, what, v->error))) return TERSE_E_MEMORY;
    v->staged_bytes = bytes;
    return TERSE_OK;
}

/* Asks the caller whether to go on. */
static enum terse_status goes_on(const struct visitor *v) {
    const struct terse_progress *p = v->progress;
    if (!p || !p->report || p->report(p->user, what, v->sent, v->model->bytes)) return TERSE_OK;
    return status_fail(v->error, TERSE_E_INTERRUPTED, "interrupted while sending the model to the GPU");
}

/* Packs the rows of one matrix. */
static enum terse_status upload_rows(struct visitor *v, const struct matrix *from, const struct device_matrix *to) {
    uint32_t most = (uint32_t)(STAGED / from->row_bytes) / 16 * 16;
    if (most < 16) most = 16;
    if (most > from->rows) most = from->rows;
    enum terse_status status = stage(v, most * from->row_bytes);
    for (uint32_t first = 0; first < from->rows && !status; first += most) {
        uint32_t count = from->rows - first < most ? from->rows - first : most;
        const char *rows = (const char *)from->data + first * from->row_bytes;
        cudaError_t result = cudaMemcpyAsync(v->staged, rows, count * from->row_bytes, cudaMemcpyHostToDevice, device_stream());
        if (result == cudaSuccess) result = weights_pack(to, v->staged, from->row_bytes, first, count, device_stream());
        if (result == cudaSuccess) result = cudaStreamSynchronize(device_stream());
        status = device_check(result, "uploading weights", v->error);
        v->sent += count * from->row_bytes;
        if (!status) status = goes_on(v);
    }
    return status;
}

static enum terse_status upload_matrix(struct visitor *v, const struct matrix *from, struct device_matrix *to) {
    if (!from->data) return TERSE_OK;
    *to = (struct device_matrix){.type = from->type, .rows = from->rows / v->count, .columns = from->columns, .count = v->count};
    const float *bias = NULL;
    enum terse_status status = upload_vector(v, &from->bias, &bias, from->rows);
    to->bias = (float *)(uintptr_t)bias;
    if (status) return status;
    to->bytes = bytes_of(v, from);
    if (is_embedding(v, from, to)) {
        to->data = v->model->embedding.data;
        to->shared = true;
        return TERSE_OK;
    }
    if (!(to->data = device_alloc(NULL, to->bytes, what, v->error))) return TERSE_E_MEMORY;
    for (uint32_t i = 0; i < v->count && !status; i++) {
        const struct matrix own = matrix_rows(from, i * to->rows, to->rows);
        struct device_matrix device = *to;
        device.data += i * (to->bytes / v->count);
        status = upload_rows(v, &own, &device);
    }
    return status;
}

/* ---- Life */

static enum terse_status free_matrix(struct visitor *v, const struct matrix *from, struct device_matrix *to) {
    (void)v, (void)from;
    if (!to->shared) device_free(NULL, to->data, to->bytes);
    device_free(NULL, to->bias, (size_t)to->count * to->rows * sizeof *to->bias);
    *to = (struct device_matrix){0};
    return TERSE_OK;
}

static enum terse_status free_vector(struct visitor *v, const float *const *from, const float **to, uint32_t n) {
    (void)v, (void)from;
    device_free(NULL, (void *)(uintptr_t)*to, n * sizeof(float));
    *to = NULL;
    return TERSE_OK;
}

void device_model_free(struct device_model *device) {
    if (!device->layer) return;
    visit(&(struct visitor){.matrix = free_matrix, .vector = free_vector, .model = device});
    free(device->layer);
    *device = (struct device_model){0};
}

static enum terse_status check_room(const struct device_model *device, size_t besides, struct terse_error *error) {
    size_t left = 0, total = 0;
    device_number();
    enum terse_status status = device_check(cudaMemGetInfo(&left, &total), "asking for its memory", error);
    if (status || device->bytes + besides <= left) return status;
    return status_fail(
        error, TERSE_E_MEMORY,
        "the model takes %.1f GiB on the GPU and %.1f GiB to work in, and %.1f of %.1f GiB are free: take weights of "
        "fewer bits, or --device cpu",
        (double)device->bytes / 1073741824, (double)besides / 1073741824, (double)left / 1073741824, (double)total / 1073741824);
}

enum terse_status device_model_load(const struct terse_model *model, size_t besides, const struct terse_progress *progress,
                                    struct device_model *device, struct terse_error *error) {
    *device = (struct device_model){.model = model, .layer = calloc(model->layers, sizeof *device->layer)};
    if (!device->layer) return status_no_memory(error, model->layers * sizeof *device->layer, "a model");
    enum terse_status status =
        visit(&(struct visitor){.matrix = count_matrix, .vector = skip_vector, .model = device, .error = error});
    if (!status) status = check_room(device, besides, error);
    struct visitor upload = {
        .matrix = upload_matrix, .vector = upload_vector, .model = device, .progress = progress, .error = error};
    if (!status) status = visit(&upload);
    device_free(NULL, upload.staged, upload.staged_bytes);
    if (status) device_model_free(device);
    return status;
}

/* ---- Finding */

/* Returns the number of the layer that something is a part of. */
static size_t layer_with(const struct terse_model *m, const void *part) {
    return (size_t)((const char *)part - (const char *)m->layer) / sizeof *m->layer;
}

const struct device_matrix *device_model_matrix(const struct device_model *device, const struct matrix *matrix) {
    const struct terse_model *m = device->model;
    if (matrix == &m->output) return &device->output;
    const size_t i = layer_with(m, matrix);
    const struct layer *l = &m->layer[i];
    const struct device_layer *d = &device->layer[i];
    const struct matrix *const matrices[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up};
    const struct device_matrix *const own[] = {&d->q, &d->k, &d->v, &d->o, &d->gate, &d->up};
    for (size_t k = 0; k < sizeof own / sizeof own[0]; k++)
        if (matrices[k] == matrix) return own[k];
    return &d->down;
}

const struct norm *device_model_norm(const struct device_model *device, const struct norm *norm) {
    const struct terse_model *m = device->model;
    if (norm == &m->output_norm) return &device->output_norm;
    const size_t i = layer_with(m, norm);
    const struct layer *l = &m->layer[i];
    const struct device_layer *d = &device->layer[i];
    const struct norm *const norms[] = {&l->attention_norm, &l->feed_forward_norm, &l->q_norm, &l->k_norm, &l->attention_post_norm};
    const struct norm *const own[] = {&d->attention_norm, &d->feed_forward_norm, &d->q_norm, &d->k_norm, &d->attention_post_norm};
    for (size_t k = 0; k < sizeof own / sizeof own[0]; k++)
        if (norms[k] == norm) return own[k];
    return &d->feed_forward_post_norm;
}
